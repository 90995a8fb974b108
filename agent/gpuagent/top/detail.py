"""Everything that is known of one process, as lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from gpuagent.cli.cells import Paint, clean, cut, wrap
from gpuagent.cli.leaks import lines_of
from gpuagent.cli.status import peaks
from gpuagent.core.identity import format_container
from gpuagent.core.process_filter import owner
from gpuagent.core.units import format_bytes, format_duration, format_ratio
from gpuagent.core.wording import alone_words, assessment_words, since_of, summary_of
from gpuagent.top.acts import alert_targets
from gpuagent.top.look import SEVERITY_STYLES, VERDICT_STYLES, from_printed
from gpuagent.top.rows import row_key

Document = dict[str, Any]

_LABEL = 13
_MOST_POINTS = 120


class MemoryHistory:
    """The memory of each process over the last readings, as far as this screen has seen them. In bytes."""

    def __init__(self) -> None:
        self._points: dict[tuple[Any, ...], deque[float | None]] = {}

    def add(self, processes: Sequence[Document]) -> None:
        """Keep one reading; processes that are gone are forgotten."""
        keys = [row_key(process) for process in processes]
        self._points = {key: self._points.get(key) or deque(maxlen=_MOST_POINTS) for key in keys}
        for key, process in zip(keys, processes, strict=True):
            self._points[key].append(process["memory_used_bytes"])

    def of(self, process: Document) -> list[float | None]:
        """Return the points, oldest first."""
        return list(self._points.get(row_key(process), ()))


class ProcessDetails(NamedTuple):
    """What was asked about the process beside the status document."""

    evidence: Document | None = None
    remedies: Document | None = None
    alerts: Document | None = None
    blamed: Sequence[str] = ()
    points: Sequence[float | None] = ()
    gone: bool = False


def detail_lines(process: Document, known: ProcessDetails, width: int, *, plain: bool = False) -> list[Text]:
    """Return the lines, each of at most `width` cells. `plain`: without color."""
    lines = [_line(f"{process['process'] or '?'} (pid {process['pid']}) on GPU {process['gpu']}", width, "bold")]
    if known.gone:
        lines.append(_line("It is not on a GPU any more: this is how it was.", width, SEVERITY_STYLES["warning"]))
    ended = process["state"] == "dead"
    if ended:
        lines += [_line(piece, width, SEVERITY_STYLES["warning"]) for piece in wrap(_dead_words(process), width)]
    said = "" if ended else assessment_words(process)
    if said:
        alone = alone_words(process)
        lines.append(
            _line(f"{said}{f' ({alone})' if alone else ''}", width, VERDICT_STYLES.get(str(process["verdict"]), ""))
        )
    lines.append(Text(end=""))
    for label, text in _facts(process):
        pieces = wrap(text, max(10, width - _LABEL))
        for number, piece in enumerate(pieces[:6]):
            line = Text(f"{label if not number else '':>{_LABEL - 2}}  ", "dim", end="", no_wrap=True)
            line.append(cut(piece, width - _LABEL), "not dim")
            lines.append(line)
    if len(known.points) > 1:
        lines += [Text(end=""), *_curve(known.points, width)]
    if known.evidence is not None and not ended:
        paint = Paint(color=not plain)
        lines += _section("Evidence", width)
        lines += [from_printed(line) for line in lines_of(known.evidence, width, paint)[1:]]
    lines += list(_alerts(process, known.alerts, width))
    if known.blamed:
        lines += _section("What blame said", width)
        lines += [
            _line(piece, width)
            for line in known.blamed
            for piece in (wrap(line, width) if line.strip() == line else [line])
        ]
    lines += list(_remedies(known.remedies, width))
    return lines


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(cut(text, width), style, end="", no_wrap=True)


def _dead_words(process: Document) -> str:
    held = process["memory_used_bytes"]
    memory = "memory" if held is None else format_bytes(held)
    if process.get("process_state") == "Z":
        return f"ZOMBIE: it has ended and still holds {memory}; its parent has to collect it, or has to end."
    return f"DEAD: it has ended, and the driver still holds {memory}. Only a reset of the GPU or a reboot frees it."


def _section(title: str, width: int) -> list[Text]:
    return [Text(end=""), _line(title, width, "bold underline")]


def _facts(process: Document) -> Iterator[tuple[str, str]]:
    yield "command", process["command"] or "(not known)"
    yield "user", process["user"] or "(not known)"
    if owner(process):
        yield "belongs to", owner(process)
    if process["unit"] and process["unit"] != owner(process):
        yield "unit", process["unit"]
    if process["container_id"]:
        name, short = process.get("container_name"), format_container(process["container_id"])
        yield "container", f"{name} ({short})" if name else short
    held = process["memory_used_bytes"]
    yield "holds", "not known" if held is None else f"{format_bytes(held)} of GPU memory"
    if process["host_memory_bytes"] is not None:
        yield "host memory", format_bytes(process["host_memory_bytes"])
    busy = [
        f"{name} {format_ratio(process[f'{key}_utilization_ratio'])}"
        for name, key in (("SM", "sm"), ("memory", "memory"), ("encoder", "encoder"), ("decoder", "decoder"))
        if process[f"{key}_utilization_ratio"] is not None
    ]
    if busy:
        yield "busy", ", ".join(busy)
    age = process["age_seconds"]
    yield "started", "at an unknown time" if age is None else f"{format_duration(age)} ago"
    if process.get("reserved_bytes") is not None:
        figures = (
            ("tensors", "allocated_bytes"),
            ("cache", "cached_bytes"),
            ("outside the allocator", "outside_bytes"),
        )
        yield (
            "allocator",
            ", ".join(f"{name} {format_bytes(process[key])}" for name, key in figures if process.get(key) is not None),
        )
    elif process["state"] != "dead":
        yield "allocator", "not known: the app runs without gpuagent-client"
    if process["holder_unproven"]:
        yield "note", "the memory may be that of an earlier process with the same pid, so no rule acts on this one"


def _curve(points: Sequence[float | None], width: int) -> Iterator[Text]:
    """Yield the memory of the last readings between its lowest and its highest value."""
    known = [point for point in points if point is not None]
    if not known:
        return
    room = min(60, width - _LABEL - 24)
    low, high = min(known), max(known)
    span = max(high - low, high * 0.02, 1.0)
    shifted = [None if point is None else point - low + span * 0.1 for point in peaks(points, max(8, room))]
    line = Text(f"{'memory':>{_LABEL - 2}}  ", "dim", end="", no_wrap=True)
    line.append(Paint().sparkline(shifted, span * 1.1, min(len(shifted), max(8, room))), "not dim #7fa7c9")
    line.append(f"  {format_bytes(low)} to {format_bytes(high)}", "not dim")
    if line.cell_len > width:
        line.truncate(width)
    yield line


def _alerts(process: Document, alerts: Document | None, width: int) -> Iterator[Text]:
    found = [target for target in alert_targets(alerts, process) if target.about_process]
    if not found:
        return
    yield from _section("Alerts of it and of its GPU", width)
    for target in found:
        for number, piece in enumerate(wrap(f"{target.key}  {target.text}", width - 2)):
            yield _line(("" if not number else "  ") + piece, width)
    now = (alerts or {})["time_seconds"]
    for alert in (alerts or {}).get("alerts", ()):
        labels = alert["labels"]
        if labels.get("pid") == str(process["pid"]):
            for piece in wrap(f"{alert['name']}, {since_of(alert, now)}: {summary_of(alert)}", width - 2):
                yield _line(f"  {piece}", width, "dim")


def _remedies(record: Document | None, width: int) -> Iterator[Text]:
    runs = (record or {}).get("remedies") or ()
    if not runs:
        return
    yield from _section("What was done to it", width)
    for run in list(runs)[-5:]:
        steps = ", ".join(str(step.get("step")) for step in run.get("steps", ()) if step.get("kind") == "intent")
        result = str(run.get("result") or "in progress").replace("_", " ")
        text = f"{run.get('alertname') or 'by hand'}: {steps or 'no step'}: {result}"
        detail = f": {clean(run['detail'])}" if run.get("detail") else ""
        for piece in wrap(text + detail, width):
            yield _line(piece, width)
