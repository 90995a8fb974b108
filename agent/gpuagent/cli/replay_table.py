"""A replayed process for people: a curve on one line, the verdict, and when it would have said what."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.cli.cells import Paint, cut, fit, wrap
from gpuagent.core.growth import Range, Verdict
from gpuagent.core.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from gpuagent_alerts.leak.replay.run import Point, Replayed, ReplayedAlarm

CURVE_CELLS = 40
MOST_FAST = 3
_FAST = "  would fill the GPU within minutes: growth, not yet a leak"
_INDENT = "  "
_STYLES = {Verdict.LEAKING: "critical", Verdict.GROWING: "warning", Verdict.LEARNING: "dim"}


def lines_of(file: Path, one: Replayed, width: int, paint: Paint) -> list[str]:
    """The block of one process, without a line longer than `width` cells."""
    lasted = format_duration(max(0.0, one.last_seconds - one.first_seconds))
    verdict = paint(str(one.growth.verdict), _STYLES.get(one.growth.verdict, "ok"))
    head = f"{file.name}  {one.process}" if one.process else file.name
    lines = [cut(head, width - 14) + f"  {verdict}"]
    points = one.sketch.points()
    lines.append(f"{_INDENT}{curve(points, CURVE_CELLS, paint)}  " + cut(f"{_span(points)} in {lasted}", width - 44))
    events = [(alarm.alarm_seconds, _alarm(alarm, one.first_seconds, width)) for alarm in one.alarms]
    events += [(seconds, [_at(seconds, one.first_seconds) + _FAST]) for seconds in one.fast_seconds[:MOST_FAST]]
    for _, told in sorted(events, key=itemgetter(0)):
        lines += [cut(_INDENT + line, width) for line in told]
    if len(one.fast_seconds) > MOST_FAST:
        lines.append(f"{_INDENT}and so {len(one.fast_seconds)} times in all")
    if not one.alarms:
        lines += [_INDENT + line for reason in one.growth.reasons for line in wrap(reason, width - 2)]
    return lines


def curve(points: list[Point], cells: int, paint: Paint) -> str:
    """The used memory in so many cells, from nothing to its highest."""
    values: list[float | None] = []
    for cell in range(cells):
        part = points[
            cell * len(points) // cells : max(cell * len(points) // cells + 1, (cell + 1) * len(points) // cells)
        ]
        values.append(max((point.used_bytes for point in part if point.used_bytes is not None), default=None))
    return paint.sparkline(values, max((value for value in values if value is not None), default=0.0), cells)


def _span(points: list[Point]) -> str:
    used = [point.used_bytes for point in points if point.used_bytes is not None]
    return f"{format_bytes(used[0])}, at most {format_bytes(max(used))}," if used else "no reading"


def _alarm(alarm: ReplayedAlarm, first_seconds: float, width: int) -> list[str]:
    since = _at(alarm.onset_seconds, first_seconds).rstrip()
    lines = [f"{_at(alarm.alarm_seconds, first_seconds)}  leak since {since} ({alarm.evidence})"]
    told = [f"+{format_rate(alarm.slope.value)}" if alarm.slope else "no slope yet"]
    if alarm.exhaustion is not None:
        told[0] += f", the GPU is full in {_range(alarm.exhaustion)}"
    for text in (*told, *alarm.reasons):
        lines += [" " * 11 + line for line in wrap(text, width - 13)]
    if alarm.cleared_seconds is not None:
        lines.append(f"{_at(alarm.cleared_seconds, first_seconds)}  over")
    return lines


def _range(figure: Range) -> str:
    return f"{format_duration(figure.low)} to {format_duration(figure.high)}"


def _at(seconds: float, first_seconds: float) -> str:
    """Time since the first reading: `+2:14:30`."""
    whole = int(max(0.0, seconds - first_seconds))
    return fit(f"+{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}", 9)
