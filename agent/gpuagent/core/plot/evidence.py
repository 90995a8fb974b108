"""The picture of a leak, from the document behind `gpuagent leaks explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from gpuagent.core.growth import Verdict
from gpuagent.core.plot.memory_plot import Alarm, Forecast, Lane, MemoryPlot, MemoryPoint, verdict_span, window_span
from gpuagent.core.units import FORECAST_RANGE_SECONDS, format_bytes, format_duration
from gpuagent.core.wording import assessment_words

Document = Mapping[str, Any]
_MOST_NOTES: Final = 3
_NEAR: Final = 4


def plot_of_evidence(document: Document) -> MemoryPlot:
    """Return what to draw of a process's evidence, as of the time in the document."""
    readings = list(_readings(document["points"]))
    now = max(float(document["time_seconds"]), readings[-1].seconds if readings else 0.0)
    met = list(_met(document))
    verdict = document["verdict"]
    return MemoryPlot(
        title=_who(document),
        verdict=assessment_words(dict(document)) or "no verdict",
        readings=readings,
        total_bytes=document["memory_total_bytes"] or 0,
        is_danger=verdict == Verdict.LEAKING.value,
        alarms=[Alarm(seconds, f"leak, {name}") for seconds, name, _ in met[:1]],
        lanes=list(_lanes(document, met, now)),
        forecasts=list(_forecast(document, readings, now)),
        notes=document["reasons"][:_MOST_NOTES],
        begin_seconds=readings[0].seconds if readings else 0.0,
        now_seconds=now,
    )


def _readings(points: Sequence[Document]) -> Iterator[MemoryPoint]:
    for place, point in enumerate(points):
        # What is free is kept less often than what is used: a single sum of both is off by the growth in between.
        near = points[max(0, place - _NEAR) : place + _NEAR + 1]
        full = [
            one["used_bytes"] + one["free_bytes"] for one in near if None not in (one["used_bytes"], one["free_bytes"])
        ]
        yield MemoryPoint(
            point["time_seconds"], point["used_bytes"], point["baseline_bytes"], point["free_bytes"],
            point["allocated_bytes"], max(median(full), point["used_bytes"] or 0) if full else None,
        )  # fmt: skip


def _who(document: Document) -> str:
    told = [f"pid {document['pid']}", *(str(document[key]) for key in ("user", "unit", "app") if document.get(key))]
    return f"{document['process'] or 'process'} ({', '.join(told)}) on GPU {document['gpu']}"


def _met(document: Document) -> Iterator[tuple[float, str, Document]]:
    """Yield when each standard was met, its name and the window; of two with the same window the stricter one."""
    seen: set[tuple[float, float]] = set()
    for standard in document["standards"]:
        if standard["alarm"] and standard["windows"]:
            window = standard["windows"][0]
            key = (standard["alarm_seconds"], window["seconds"])
            if key not in seen:
                seen.add(key)
                name = "suspicion" if standard["sensitivity"] == "suspected" else standard["sensitivity"]
                yield standard["alarm_seconds"], name, window


def _lanes(document: Document, met: list[tuple[float, str, Document]], now: float) -> Iterator[Lane]:
    since = document["growth_since_seconds"]
    if since is not None and document["verdict"] in {Verdict.GROWING.value, Verdict.LEAKING.value}:
        yield Lane("verdict", [verdict_span(since, now, Verdict(document["verdict"]))])
    for place, (seconds, name, window) in enumerate(met):
        rose = f"+{format_bytes(max(0, window['growth_bytes']))} in {format_duration(window['seconds'])}"
        span = window_span(seconds - window["seconds"], seconds, f"{name}: {rose}")
        yield Lane("" if place else "windows", [span])


def _forecast(document: Document, readings: list[MemoryPoint], now: float) -> Iterator[Forecast]:
    """Yield how it goes on; nothing of what has stopped, and of what is so far away that it is told as a range."""
    pace, left = document["growth_bytes_per_second"], document["exhaustion_seconds"]
    held = next((one.baseline_bytes for one in reversed(readings) if one.baseline_bytes is not None), None)
    if pace and pace > 0 and left and left >= 1 and held is not None and left < 8 * FORECAST_RANGE_SECONDS:
        begin = readings[-1].seconds
        yield Forecast(begin, held, pace, left + now - begin)
