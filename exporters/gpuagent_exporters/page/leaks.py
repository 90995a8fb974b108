"""Why a process is called leaking, as a picture: its baseline, the windows that were judged, and what was free.

It is the evidence behind `gpuagent leaks explain`, drawn to the process's own scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from gpuagent.core.growth import Evidence, Verdict
from gpuagent.core.units import format_bytes, format_duration
from gpuagent.core.wording import assessment_words
from gpuagent_exporters.page.html import Document, attribute, duration, is_number, size, text
from gpuagent_exporters.page.memory_chart import time_axis

_WIDTH: Final = 1000
_HEIGHT: Final = 1000
_AHEAD: Final = 0.6
"""The forecast has at most this much of the room of the past."""
MOST: Final = 3
"""Leaks that are explained on one page, the gravest first: evidence takes a moment to put together."""
_BY_ALLOCATOR: Final = "allocator"


class _Scale(NamedTuple):
    begin: float
    end: float
    low: float
    high: float

    def x(self, seconds: float) -> float:
        return round(_WIDTH * (seconds - self.begin) / (self.end - self.begin), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT * (1 - (value - self.low) / (self.high - self.low)), 1)


def to_explain(status: Document) -> list[tuple[int, str]]:
    """Return pid and UUID of the GPU of each leak that the page explains, the one that is full soonest first."""
    leaks = [
        one
        for one in status.get("processes") or ()
        if one.get("verdict") == Verdict.LEAKING.value and isinstance(one.get("pid"), int)
    ]
    leaks.sort(key=lambda one: one["exhaustion_seconds"] if is_number(one.get("exhaustion_seconds")) else float("inf"))
    return [(int(one["pid"]), str(one.get("gpu_uuid") or "")) for one in leaks[:MOST]]


def leak_pictures(evidence: Iterable[Document], status: Document) -> str:
    """Return what explains the leaks, as HTML, the first one open; empty where there is none."""
    found = []
    for number, document in enumerate(evidence):
        process = _process_of(document, status)
        found.append(_explanation(document, process, is_open=number == 0))
    return f'<div id="leaks">{"".join(found)}</div>'


def _process_of(evidence: Document, status: Document) -> Document:
    """Return the process of the status document; {} where it has gone."""
    for one in status.get("processes") or ():
        if one.get("pid") == evidence.get("pid") and one.get("gpu_uuid") == evidence.get("gpu_uuid"):
            found: Document = one
            return found
    return {}


def _explanation(evidence: Document, process: Document, *, is_open: bool) -> str:
    who = f"{evidence.get('process') or 'process'} (pid {evidence.get('pid')})"
    left = process.get("gpu_exhaustion_seconds", evidence.get("exhaustion_seconds"))
    said = assessment_words({**evidence, "gpu_exhaustion_seconds": left})
    windows = list(_met(evidence))
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in _sentences(evidence, process, windows))
    key = f"leak-{attribute(evidence.get('gpu_uuid'))}-{attribute(evidence.get('pid'))}"
    return (
        f'<details class="leak card" data-key="{key}"{" open" if is_open else ""}>'
        f"<summary>Why {text(who)} on GPU {text(evidence.get('gpu'))} is called leaking</summary>"
        f'<div class="because"><div>{_picture(evidence, windows)}</div>'
        f'<div><p class="verdict">{text(said)}</p><ul>{items}</ul>{_as_file(evidence)}</div></div></details>'
    )


def _as_file(evidence: Document) -> str:
    """Return the link to all of it as one picture, to be sent to whoever owns the process."""
    if not isinstance(evidence.get("pid"), int):
        return ""
    address = f"api/v1/leaks/{evidence['pid']}/plot.svg?gpu={quote(str(evidence.get('gpu_uuid') or ''), safe='')}"
    return f'<p class="quiet"><a href="{attribute(address)}">As one picture</a></p>'


def _met(evidence: Document) -> Iterator[tuple[Document, Document]]:
    """Yield each standard that is met with the window that met it; of two with the same window the stricter one."""
    seen: set[tuple[float, float]] = set()
    for standard in evidence.get("standards") or ():
        if not standard.get("alarm") or not standard.get("windows"):
            continue
        window = standard["windows"][0]
        key = (standard["alarm_seconds"], window["seconds"])
        if key not in seen:
            seen.add(key)
            yield standard, window


def _picture(evidence: Document, windows: Sequence[tuple[Document, Document]]) -> str:
    points = [one for one in evidence.get("points") or () if one.get("used_bytes") is not None]
    if len(points) < 2:
        return ""
    scale = _scale_of(evidence, points)
    line, floor, tensors = (_series(points, key) for key in ("used_bytes", "baseline_bytes", "allocated_bytes"))
    now = max(float(evidence.get("time_seconds") or 0.0), line[-1][0])
    drawn = f'<path class="peaks" d="{_path(line, scale)}V{_HEIGHT}H{scale.x(line[0][0])}Z"/>'
    if len(tensors) > 1:
        drawn += f'<path class="tensors" d="{_path(tensors, scale)}"/>'
    if len(floor) > 1:
        drawn += f'<path class="baseline" d="{_path(floor, scale)}"/>{_forecast(evidence, floor[-1], now, scale)}'
    bands = "".join(_band(standard, window, scale) for standard, window in windows[:1])
    plot = (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{attribute(_aloud(evidence, points))}">{bands}{drawn}</svg>'
    )
    labels = (
        f'<svg class="labels" aria-hidden="true"><text x="6" y="0" dy="1.2em">{size(scale.high)}</text>'
        f'<text x="99%" y="100%" dy="-.5em" text-anchor="end">{size(scale.low)}</text></svg>'
    )
    rows = "".join(_window_row(standard, window, scale) for standard, window in windows)
    keys = [("baseline", "baseline: held and never given back"), ("peaks", "in use")]
    keys += [("tensors", "tensors")] if len(tensors) > 1 else []
    keys += [("forecast", "forecast")] if scale.end > now + 1 else []
    legend = "".join(f'<li class="key-{name}">{words}</li>' for name, words in keys)
    return (
        f'<div class="stack">{plot}{labels}</div>{_axis(evidence, now, scale)}{rows}{_free(points, scale)}'
        f'<ul class="legend">{legend}</ul>'
    )


def _series(points: Iterable[Document], key: str) -> list[tuple[float, float]]:
    return [(one["time_seconds"], one[key]) for one in points if one.get(key) is not None]


def _axis(evidence: Document, now: float, scale: _Scale) -> str:
    left = evidence.get("exhaustion_seconds")
    full = ""
    if scale.end > now + 1 and is_number(left):
        full = f"full in {duration(left)}" + ("" if now + left <= scale.end + 1 else " \N{RIGHTWARDS ARROW}")
    return time_axis(now - scale.begin, scale.x(now) / _WIDTH, full)


def _scale_of(evidence: Document, points: Sequence[Document]) -> _Scale:
    begin = float(points[0]["time_seconds"])
    now = max(float(evidence.get("time_seconds") or 0.0), float(points[-1]["time_seconds"]), begin + 1)
    known = [float(one[key]) for one in points for key in ("used_bytes", "baseline_bytes") if one.get(key) is not None]
    low, high = min(known), max(known)
    left, pace = evidence.get("exhaustion_seconds"), evidence.get("growth_bytes_per_second")
    end = now
    if is_number(left) and left >= 1 and is_number(pace):
        ahead = min(left * 1.02, (now - begin) * _AHEAD)
        end = now + ahead
        high = max(high, low + 1, known[-1] + pace * min(left, ahead))
    span = max(high - low, 0.002 * float(evidence.get("memory_total_bytes") or 0.0), 1.0)
    total = evidence.get("memory_total_bytes")
    top = max(high, min(high + 0.08 * span, total)) if is_number(total) and total else high + 0.08 * span
    return _Scale(begin, end, max(0.0, low - 0.08 * span), top)


def _path(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return "M" + "L".join(f"{scale.x(seconds):g} {scale.y(value):g}" for seconds, value in points)


def _forecast(evidence: Document, last: tuple[float, float], now: float, scale: _Scale) -> str:
    left, pace = evidence.get("exhaustion_seconds"), evidence.get("growth_bytes_per_second")
    if not is_number(left) or left < 1 or not is_number(pace) or not pace:
        return ""
    ahead = min(left, scale.end - now)
    end = (now + ahead, last[1] + pace * (now + ahead - last[0]))
    return f'<path class="forecast" d="{_path([last, end], scale)}"/>'


def _window_of(standard: Document, window: Document) -> tuple[float, float]:
    """Return the Unix times between which a window lay when its standard was met."""
    return float(standard["alarm_seconds"]) - float(window["seconds"]), float(standard["alarm_seconds"])


def _band(standard: Document, window: Document, scale: _Scale) -> str:
    """Mark the window of the strictest standard in the plot."""
    begin, end = (min(max(scale.x(one), 0.0), float(_WIDTH)) for one in _window_of(standard, window))
    return f'<rect class="band" x="{begin:g}" y="0" width="{max(1.0, end - begin):g}" height="{_HEIGHT}"/>'


def _window_row(standard: Document, window: Document, scale: _Scale) -> str:
    begin, end = (min(max(scale.x(one) / 10, 0.0), 100.0) for one in _window_of(standard, window))
    name = "suspicion" if standard.get("sensitivity") == "suspected" else str(standard.get("sensitivity"))
    words = f"{name}: +{format_bytes(max(0, window.get('growth_bytes') or 0))} in {format_duration(window['seconds'])}"
    return (
        '<svg class="window" aria-hidden="true">'
        f'<rect x="{begin:.1f}%" y="0" width="{max(0.5, end - begin):.1f}%" height="3"/>'
        f'<text x="{min(begin, 55):.1f}%" y="15">{attribute(words)}</text></svg>'
    )


def _free(points: Sequence[Document], scale: _Scale) -> str:
    """Draw what was free meanwhile: growth is judged in proportion to that."""
    free = [(one["time_seconds"], float(one["free_bytes"])) for one in points if one.get("free_bytes") is not None]
    if len(free) < 2:
        return ""
    highest = max(value for _, value in free) or 1.0
    own = scale._replace(low=0.0, high=highest * 1.05)
    path = f"{_path(free, own)}V{_HEIGHT}H{own.x(free[0][0])}Z"
    return (
        f'<p class="quiet strip">free memory: {size(free[0][1])}, now {size(free[-1][1])}</p>'
        f'<svg class="free" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{path}"/></svg>'
    )


def _aloud(evidence: Document, points: Sequence[Document]) -> str:
    first, last = points[0], points[-1]
    lasted = duration(last["time_seconds"] - first["time_seconds"])
    return (
        f"Memory of {evidence.get('process') or 'the process'} over {lasted}: "
        f"the baseline rose from {size(first.get('baseline_bytes'))} to {size(last.get('baseline_bytes'))}."
    )


def _sentences(evidence: Document, process: Document, windows: Sequence[tuple[Document, Document]]) -> Iterator[str]:
    """Say what it rests on, what was free, and why it is no cache."""
    for standard, window in windows[:1]:
        rose = f"{format_bytes(max(0, window.get('growth_bytes') or 0))} in {format_duration(window['seconds'])}"
        yield f'Baseline: it rose by {rose}, the window by which the standard "{standard["sensitivity"]}" was met.'
    for reason in evidence.get("reasons") or ():
        yield f"Evidence: {reason}."
    free = [one["free_bytes"] for one in evidence.get("points") or () if one.get("free_bytes") is not None]
    if free:
        yield f"Free memory: {size(free[0])} at first, {size(free[-1])} now; growth counts by what it takes of that."
    yield _cache_words(evidence, process)


def _cache_words(evidence: Document, process: Document) -> str:
    """Say why it is no cache, as far as anybody can tell."""
    tensors = [one["allocated_bytes"] for one in evidence.get("points") or () if one.get("allocated_bytes") is not None]
    cached = process.get("cached_bytes")
    if len(tensors) > 1 and tensors[-1] > tensors[0]:
        beside = f", and the allocator caches {size(cached)} beside them" if is_number(cached) else ""
        return f"No cache of the allocator: tensors grew from {size(tensors[0])} to {size(tensors[-1])}{beside}."
    if any(one.get("alarm") and one.get("signal") == _BY_ALLOCATOR for one in evidence.get("standards") or ()) or (
        evidence.get("evidence") == Evidence.ALLOCATOR.value
    ):
        return "No cache of the allocator: what the allocator has handed out grows."
    return (
        "Cache: a cache levels off or gives memory back, and this baseline did neither. The app runs without "
        "gpuagent-client, which would tell tensors and cache apart."
    )
