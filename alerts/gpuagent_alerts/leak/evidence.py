"""Why the detector says what it says of a process: the document behind `gpuagent leaks explain`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpuagent.core.growth import Growth, GrowthState, Verdict
from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY
from gpuagent_alerts.leak.examine import SUSPECTED_NAME, CriterionFinding, Examined, WindowFinding, findings_of
from gpuagent_alerts.leak.histories import History
from gpuagent_alerts.leak.overrides import Match, Override
from gpuagent_alerts.leak.signals import OWN_NAMES
from gpuagent_alerts.leak.trace import Run, Trace, to_bytes
from gpuagent_alerts.leak.verdict import LEARNING_BLOCKS

Document = dict[str, Any]
SCHEMA: Final = 1
MOST_POINTS: Final = 240
_MATCH_KEYS: Final = ("app", "unit", "user", "process_name", "container")


def evidence_document(history: History, overrides: Sequence[Override], node: str, to_unix_seconds: float) -> Document:
    """Return what is known of a process's memory on one GPU, and why there is a verdict, or none."""
    examined = history.detector.examine()
    findings = findings_of(examined)
    growth = history.growth or Growth(Verdict.LEARNING)
    override = None if history.override is None or history.override >= len(overrides) else overrides[history.override]
    slope = growth.slope
    return {
        "schema": SCHEMA,
        "judged_by": {
            "sensitivity": examined.sensitivity,
            "node_sensitivity": node,
            "override": history.override if override is not None else None,
            "match": {} if override is None else match_document(override.match),
        },
        "verdict": growth.verdict,
        "evidence": growth.grade,
        "growth_state": growth.state,
        "growth_bytes_per_second": None if slope is None else slope.value,
        "growth_since_seconds": growth.since_seconds,
        "exhaustion_seconds": growth.forecast_seconds,
        "reasons": list(growth.reasons),
        "memory_total_bytes": examined.total_bytes,
        "memory_free_bytes": None if examined.free_bytes is None else int(examined.free_bytes),
        "watched_seconds": _watched(history.trace),
        "points": _points(history.trace, examined.phase + to_unix_seconds),
        "standards": [_criterion_document(each, to_unix_seconds) for each in findings],
        "why": list(_why(examined, findings, growth, history.trace)),
    }


def match_document(match: Match) -> Document:
    """Return what is given of a match."""
    return {key: value for key in _MATCH_KEYS if (value := getattr(match, key)) is not None}


def _watched(trace: Trace) -> float:
    runs = trace.runs()
    return float((runs[-1].last - runs[0].first + 1) * BLOCK_SECONDS) if runs else 0.0


def _points(trace: Trace, to_unix_seconds: float) -> list[Document]:
    """Return the lowest readings of stretches of equal length, with the baseline, oldest first."""
    runs = trace.runs()
    if not runs:
        return []
    first, last = runs[0].first, runs[-1].last
    step = max(1, math.ceil((last - first + 1) / MOST_POINTS))
    lows: dict[int, Run] = {}
    for run in runs:
        for place in range((run.first - first) // step, (run.last - first) // step + 1):
            lows[place] = _lower(lows.get(place), run)
    points: list[Document] = []
    baseline = EMPTY
    for place in sorted(lows, reverse=True):
        low = lows[place]
        baseline = min(baseline, low.used)
        points.append({
            "time_seconds": float((first + place * step) * BLOCK_SECONDS + to_unix_seconds),
            "used_bytes": to_bytes(low.used),
            "baseline_bytes": to_bytes(baseline),
            "free_bytes": to_bytes(low.free),
            "allocated_bytes": to_bytes(low.allocated),
        })  # fmt: skip
    points.reverse()
    return points


def _lower(one: Run | None, run: Run) -> Run:
    if one is None:
        return run
    return run._replace(used=min(one.used, run.used), allocated=min(one.allocated, run.allocated))


def _criterion_document(finding: CriterionFinding, to_unix_seconds: float) -> Document:
    raised = finding.raised_seconds
    nearest = finding.nearest
    return {
        "sensitivity": finding.sensitivity,
        "signal": finding.signal,
        "alarm": raised is not None,
        "alarm_seconds": None if raised is None else raised + to_unix_seconds,
        "nearest": "" if nearest is None else nearest.words,
        "windows": [
            {
                "seconds": window.seconds,
                "growth_bytes": window.growth_bytes,
                "needed_bytes": window.needed_bytes,
                "counts": window.counts,
                "finding": window.words,
            }
            for window in finding.windows
        ],
    }


def _why(examined: Examined, findings: Sequence[CriterionFinding], growth: Growth, trace: Trace) -> Iterator[str]:
    """Give sentences: what the verdict rests on, or what there would have to be for another."""
    if examined.keeps_from_seconds is None or not len(trace):
        yield "Nothing is kept of the first 2 min after the first reading: what is seen first may be loading."
        return
    if examined.free_bytes is None:
        yield "Nobody tells how much memory is free, and growth is judged in proportion to that."
        return
    dial = examined.sensitivity
    if dial == "off":
        yield "Its sensitivity is off: nothing of it is called a leak."
    yield from (
        _met(each, window, examined.last_seconds)
        for each in findings
        if each.raised_seconds is not None and (window := each.nearest) is not None
    )
    if growth.verdict is Verdict.LEAKING:
        if growth.state is GrowthState.FULL:
            yield "It has stopped because the GPU is full, which proves nothing."
        return
    if growth.verdict is Verdict.LEARNING:
        need = LEARNING_BLOCKS * BLOCK_SECONDS
        seen = format_duration(min(_watched(trace), need))
        yield f"No verdict yet: the shortest window is {format_duration(need)} of readings, and there are {seen}."
    yield from (_not_met(each, dial) for each in findings if each.raised_seconds is None)


def _met(finding: CriterionFinding, window: WindowFinding, now_seconds: float) -> str:
    ago = format_duration(max(0.0, now_seconds - (finding.raised_seconds or now_seconds)))
    rose = f"risen by {format_bytes(window.growth_bytes)} in {format_duration(window.seconds)}"
    return f"{_name(finding)}: met for {ago}; the baseline of its {finding.signal} had {rose} by then."


def _not_met(finding: CriterionFinding, dial: str) -> str:
    nearest = finding.nearest
    found = "nothing has risen." if nearest is None else f"in the nearest window it {nearest.words}."
    marker = " (the sensitivity that holds)" if finding.sensitivity == dial else ""
    return f"{_name(finding)}{marker}: not met; {found}"


def _name(finding: CriterionFinding) -> str:
    name = "suspicion" if finding.sensitivity == SUSPECTED_NAME else finding.sensitivity
    return f"{name}, {finding.signal}" if finding.signal in OWN_NAMES else name
