"""The memory of one process over time: what it holds, its baseline, what is free, the verdict, alarms and forecast.

It is the picture of `gpuagent replay --plot`, of `gpuagent leaks explain --plot`, and of messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from gpuagent.core.growth import Verdict
from gpuagent.core.palette import ON_LIGHT
from gpuagent.core.plot.drawing import Area, Drawing, Label, Line, box
from gpuagent.core.units import format_bytes, format_duration

_WIDTH: Final = 960.0
_LEFT: Final = 74.0
_RIGHT: Final = 18.0
_HEAD: Final = 100.0
_PLOT: Final = 210.0
_STRIP: Final = 34.0
_LANE: Final = 20.0
_AXIS: Final = 26.0
_NOTE: Final = 17.0
_GAP: Final = 14.0
_WORD: Final = 6.2
"""Pixels of a letter of size 11, roughly: what decides whether a text finds room."""

_TEXT, _QUIET, _GRID, _GREY = "#1b1f24", "#59636e", "#e4e9ee", "#c3cbd3"
_USED, _BASELINE, _TENSORS, _DANGER, _AMBER = ON_LIGHT[0], "#123a66", ON_LIGHT[2], "#b3261e", "#8a5a00"
_FREE: Final = "#d9eddf"
_VERDICTS: Final = {
    Verdict.LEARNING: "#e4e9ee", Verdict.STEADY: "#cfe6d6", Verdict.CACHED: "#cfe6d6",
    Verdict.LEVELLED_OFF: "#cfe6d6", Verdict.GROWING: "#f3dca0", Verdict.LEAKING: "#f0b4ae",
}  # fmt: skip
_WHOLE_SHARE: Final = 0.12
"""The capacity is in the picture where what happened takes this share of the way to it: otherwise it is too far off."""
_LEAST_OTHERS: Final = 0.002
"""Share of the GPU from which on what others hold is told: less cannot be seen."""
_UNIX: Final = 1e9
"""Times from here on are those of a clock on the wall; smaller ones are of a trace that begins at about 0."""
_STEPS: Final = (
    10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 345_600, 604_800,
)  # fmt: skip
_MOST_TICKS: Final = 9


class MemoryPoint(NamedTuple):
    """What was read at a time, in bytes; None where nobody tells."""

    seconds: float
    used_bytes: float | None
    baseline_bytes: float | None = None
    """What was held and never given back since."""
    free_bytes: float | None = None
    allocated_bytes: float | None = None
    """What the allocator has handed out to tensors."""
    full_bytes: float | None = None
    """What the process would hold with all that is free; what is above it, others and the driver hold."""


class Alarm(NamedTuple):
    """When a leak was told, and in which words."""

    seconds: float
    words: str


class Span(NamedTuple):
    """A stretch of time below the plot, with what is said of it."""

    begin_seconds: float
    end_seconds: float
    words: str
    color: str


class Lane(NamedTuple):
    """A row below the plot."""

    name: str
    spans: Sequence[Span]


class Forecast(NamedTuple):
    """How the memory goes on from a time."""

    seconds: float
    held_bytes: float
    bytes_per_second: float
    full_in_seconds: float
    """Counted from `seconds`."""


@dataclass(frozen=True, slots=True)
class MemoryPlot:
    """What is drawn of one process."""

    title: str
    verdict: str
    """In words, below the title."""
    readings: Sequence[MemoryPoint]
    total_bytes: float = 0.0
    """Memory of the GPU; 0 if unknown."""
    is_danger: bool = False
    """Whether the verdict is drawn in red."""
    alarms: Sequence[Alarm] = ()
    lanes: Sequence[Lane] = ()
    forecasts: Sequence[Forecast] = ()
    notes: Sequence[str] = ()
    """Sentences below the picture."""
    begin_seconds: float = 0.0
    """The time that relative times are counted from."""
    now_seconds: float | None = None
    """Marked where the picture goes on behind it."""


def verdict_span(begin_seconds: float, end_seconds: float, verdict: Verdict) -> Span:
    """Return the stretch in which a verdict held."""
    return Span(begin_seconds, end_seconds, str(verdict), _VERDICTS[verdict])


def window_span(begin_seconds: float, end_seconds: float, words: str) -> Span:
    """Return a window on which an alarm was raised."""
    return Span(begin_seconds, end_seconds, words, "#cfe0f3")


class _Frame(NamedTuple):
    """Where the plot lies, and what its edges stand for."""

    top: float
    bottom: float
    begin: float
    end: float
    low: float
    high: float

    def x(self, seconds: float) -> float:
        share = (seconds - self.begin) / (self.end - self.begin)
        return _LEFT + (_WIDTH - _RIGHT - _LEFT) * min(1.0, max(0.0, share))

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.bottom - (self.bottom - self.top) * min(1.0, max(0.0, share))


def draw(plots: Sequence[MemoryPlot]) -> Drawing:
    """Return the pictures of these processes, one below the other."""
    drawing = Drawing(_WIDTH, 0.0, "; ".join(f"{one.title}: {one.verdict}" for one in plots))
    for plot in plots:
        drawing.height = _draw_one(plot, drawing, drawing.height) + _GAP
    return drawing


def _draw_one(plot: MemoryPlot, drawing: Drawing, top: float) -> float:
    """Add a picture below `top`; return where it ends."""
    add = drawing.items.append
    room = int((_WIDTH - 2 * _GAP) / 8)
    add(Label(_GAP, top + 26, _cut(plot.title, room), _TEXT, 16, is_bold=True))
    add(Label(_GAP, top + 47, _cut(plot.verdict, room + 20), _DANGER if plot.is_danger else _QUIET, 13))
    known = [one for one in plot.readings if one.used_bytes is not None]
    if len(known) < 2:
        add(Label(_GAP, top + 70, "Too few readings for a picture.", _QUIET))
        return top + 80
    frame, is_whole = _frame_of(plot, known, top + _HEAD)
    drawing.items += _legend(plot, known, top + 68, is_whole=is_whole)
    drawing.items += _areas(plot, known, frame, is_whole=is_whole)
    drawing.items += _grid(frame)
    drawing.items += _curves(plot, known, frame, is_whole=is_whole)
    drawing.items += _alarms(plot, frame)
    y = frame.bottom + 6
    if not is_whole:
        drawing.items += _free_strip(known, frame, y, plot.total_bytes)
        y += _STRIP + 6
    for lane in plot.lanes:
        drawing.items += _lane(lane, frame, y)
        y += _LANE
    drawing.items += _time_axis(plot, frame, y)
    y += _AXIS
    for note in plot.notes:
        add(Label(_LEFT, y + 12, _cut(note[:1].upper() + note[1:], int((_WIDTH - _LEFT - _RIGHT) / _WORD)), _QUIET, 12))
        y += _NOTE
    return y


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _frame_of(plot: MemoryPlot, known: Sequence[MemoryPoint], top: float) -> tuple[_Frame, bool]:
    """Return the frame, and whether the line at which the GPU is full is in it."""
    begin, now = known[0].seconds, known[-1].seconds
    if plot.now_seconds is not None:
        now = max(now, plot.now_seconds)
    end = max(now, begin + 1)
    held = [value for one in known for value in (one.used_bytes, one.baseline_bytes) if value is not None]
    low, high = min(held), max(held)
    for forecast in plot.forecasts:
        ahead = min(forecast.full_in_seconds * 1.04, max(0.0, (now - begin) * 0.6 + now - forecast.seconds))
        end = max(end, forecast.seconds + ahead)
        high = max(high, forecast.held_bytes + forecast.bytes_per_second * min(ahead, forecast.full_in_seconds))
    total = _total(plot, known)
    is_whole = total is not None and high - low >= _WHOLE_SHARE * (total - low)
    if total is not None and is_whole:
        high = max(high, total)
    span = max(high - low, 0.004 * plot.total_bytes, 1024.0)
    bottom = low - 0.1 * span
    return _Frame(top, top + _PLOT, begin, end, 0.0 if bottom < 0.35 * high else bottom, high + 0.06 * span), is_whole


def _total(plot: MemoryPlot, known: Sequence[MemoryPoint]) -> float | None:
    """Return the memory of the GPU: of a trace that does not tell it, the most that there ever was for the process."""
    limits = [one.full_bytes for one in known if one.full_bytes is not None]
    return max(plot.total_bytes, *limits) if limits else None


def _legend(
    plot: MemoryPlot, known: Sequence[MemoryPoint], y: float, *, is_whole: bool
) -> Iterator[Line | Area | Label]:
    """Yield what each mark means, with the value at the end."""
    last = known[-1]
    entries: list[tuple[str, str, str]] = [("area", _USED, f"in use {format_bytes(last.used_bytes or 0)}")]
    if last.baseline_bytes is not None:
        entries.append(("line", _BASELINE, f"baseline, never given back {format_bytes(last.baseline_bytes)}"))
    if any(one.allocated_bytes is not None for one in known):
        entries.append(("line", _TENSORS, "tensors"))
    if last.free_bytes is not None:
        entries.append(("free", _FREE, f"free {format_bytes(last.free_bytes)}"))
    total, limit = _total(plot, known), next((one.full_bytes for one in reversed(known) if one.full_bytes), None)
    if is_whole and total is not None and limit is not None and total - limit >= _LEAST_OTHERS * total:
        entries.append(("others", _GREY, "others and driver"))
    if plot.forecasts:
        entries.append(("dashed", _DANGER, "forecast"))
    x = _LEFT
    for kind, color, words in entries:
        if kind == "line":
            yield Line([(x, y - 4), (x + 16, y - 4)], color, 2)
        elif kind == "dashed":
            yield Line([(x, y - 4), (x + 17, y - 4)], color, 2, (5, 3))
        else:
            yield box(x + 2, y - 10, 12, 11, color, 0.45 if kind == "area" else 1.0)
        yield Label(x + 21, y, words, _QUIET, 12)
        x += 21 + _WORD * len(words) + 20


def _grid(frame: _Frame) -> Iterator[Line | Label]:
    """Yield lines at round sizes, with what they stand for."""
    for value in _round_sizes(frame.low, frame.high):
        y = frame.y(value)
        yield Line([(_LEFT, y), (_WIDTH - _RIGHT, y)], _GRID)
        yield Label(_LEFT - 8, y + 4, format_bytes(value).replace(".0 ", " "), _QUIET, 11, "end")


def _round_sizes(low: float, high: float) -> list[float]:
    """Return some five round sizes, of the unit in which they read well.

    >>> [format_bytes(each) for each in _round_sizes(0, 80 * 2**30)]
    ['0 B', '20.0 GiB', '40.0 GiB', '60.0 GiB', '80.0 GiB']
    """
    unit = 1024.0 ** max(0, math.floor(math.log(max(high - low, 1.0) / 2, 1024)))
    wanted = (high - low) / unit / 5
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next((power * part for part in (1, 2, 5, 10) if power * part >= wanted), power * 10) * unit
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step) + 1)]


def _areas(plot: MemoryPlot, known: Sequence[MemoryPoint], frame: _Frame, *, is_whole: bool) -> Iterator[Area]:
    """Yield what the process holds from below, what others hold from above, and between them what is free.

    So the GPU is full where the two meet, however the share of the others changes.
    """
    used = [(frame.x(one.seconds), frame.y(one.used_bytes or 0.0)) for one in known]
    held = [*used, (used[-1][0], frame.bottom), (used[0][0], frame.bottom)]
    total = _total(plot, known)
    if is_whole and total is not None:
        limit = [(frame.x(one.seconds), frame.y(one.full_bytes)) for one in known if one.full_bytes is not None]
        (first, _), (last, end), top = limit[0], limit[-1], frame.y(total)
        yield Area([*limit, (last, frame.bottom), (first, frame.bottom)], _FREE, 0.6)
        yield Area(held, "#ffffff")
        yield Area([*limit, (last, top), (first, top)], _GREY, 0.7)
        if plot.forecasts:  # the forecast supposes that the others keep what they hold
            right = frame.x(frame.end)
            yield Area([(last, end), (right, end), (right, top), (last, top)], _GREY, 0.3)
    yield Area(held, _USED, 0.28)


def _curves(plot: MemoryPlot, known: Sequence[MemoryPoint], frame: _Frame, *, is_whole: bool) -> Iterator[Line | Label]:
    """Yield the lines: what is full, in use, in tensors, the baseline, and how that goes on."""
    total = _total(plot, known)
    if is_whole and total is not None:
        y = frame.y(total)
        yield Line([(_LEFT, y), (_WIDTH - _RIGHT, y)], _DANGER, 1.5)
        yield Label(_LEFT + 6, y + 13, f"GPU {format_bytes(total)}", _DANGER, 11)
    yield Line([(frame.x(one.seconds), frame.y(one.used_bytes or 0.0)) for one in known], _USED, 1.4)
    for values, color in (
        ([(one.seconds, one.allocated_bytes) for one in known], _TENSORS),
        ([(one.seconds, one.baseline_bytes) for one in known], _BASELINE),
    ):
        points = [(frame.x(seconds), frame.y(value)) for seconds, value in values if value is not None]
        if len(points) > 1:
            yield Line(points, color, 2.2 if color == _BASELINE else 1.4)
    for forecast in plot.forecasts:
        lasts = min(forecast.full_in_seconds, frame.end - forecast.seconds)
        if is_whole and (full := next(one.full_bytes for one in reversed(known) if one.full_bytes is not None)):
            lasts = min(lasts, max(0.0, full - forecast.held_bytes) / forecast.bytes_per_second)
        end = forecast.seconds + lasts
        high = forecast.held_bytes + forecast.bytes_per_second * lasts
        begins = (frame.x(forecast.seconds), frame.y(forecast.held_bytes))
        yield Line([begins, (frame.x(end), frame.y(high))], _DANGER, 2, (6, 4))
    if plot.now_seconds is not None and frame.end > plot.now_seconds + 1:
        x = frame.x(plot.now_seconds)
        yield Line([(x, frame.top), (x, frame.bottom)], _QUIET, 1, (2, 3))
        if all(abs(frame.x(alarm.seconds) - x) > _WORD * (len(alarm.words) + 4) for alarm in plot.alarms):
            yield Label(x, frame.top - 5, "now", _QUIET, 11, "middle")


def _alarms(plot: MemoryPlot, frame: _Frame) -> Iterator[Line | Label]:
    """Yield a line where each leak was told; its words stand above where they find room."""
    taken = -math.inf
    for alarm in plot.alarms:
        x = frame.x(alarm.seconds)
        yield Line([(x, frame.top - 14), (x, frame.bottom)], _DANGER, 1.6)
        length = _WORD * len(alarm.words)
        begin = x + 4 if x + 4 + length <= _WIDTH - _RIGHT else x - 4 - length
        if begin > taken:
            is_right = begin > x
            yield Label(
                x + 4 if is_right else x - 4, frame.top - 5, alarm.words, _DANGER, 11, "start" if is_right else "end"
            )
            taken = begin + length + 8


def _free_strip(known: Sequence[MemoryPoint], frame: _Frame, top: float, total: float) -> Iterator[Line | Area | Label]:
    """Yield what was free meanwhile, where it is too much to be in the picture."""
    free = [(one.seconds, one.free_bytes) for one in known if one.free_bytes is not None]
    if len(free) < 2:
        return
    highest = max(total, *(value for _, value in free)) or 1.0
    points = [(frame.x(seconds), top + _STRIP * (1 - value / highest)) for seconds, value in free]
    yield Area([*points, (points[-1][0], top + _STRIP), (points[0][0], top + _STRIP)], _FREE)
    yield Label(_LEFT - 8, top + _STRIP / 2 + 4, "free", _QUIET, 11, "end")


def _lane(lane: Lane, frame: _Frame, top: float) -> Iterator[Area | Label]:
    """Yield stretches of time with their words in them, or beside them where they find no room."""
    spans = lane.spans
    yield Label(_LEFT - 8, top + 11, lane.name, _QUIET, 11, "end")
    edges = [frame.x(span.begin_seconds) for span in spans[1:]] + [math.inf]
    for span, following in zip(spans, edges, strict=True):
        left, right = frame.x(span.begin_seconds), max(frame.x(span.end_seconds), frame.x(span.begin_seconds) + 2)
        yield box(left, top, right - left, _LANE - 5, span.color)
        length = _WORD * len(span.words)
        if right - left >= length + 8:
            yield Label(left + 5, top + 11, span.words, _TEXT, 11)
        elif right + 4 + length <= min(following, _WIDTH - _RIGHT):
            yield Label(right + 4, top + 11, span.words, _TEXT, 11)
        elif following == math.inf and len(spans) == 1:
            yield Label(left - 4, top + 11, span.words, _TEXT, 11, "end")


def _time_axis(plot: MemoryPlot, frame: _Frame, top: float) -> Iterator[Line | Label]:
    """Yield the times as one reads them: of the day where the trace has them, else since its begin."""
    is_wall = frame.begin >= _UNIX
    origin = 0.0 if is_wall else plot.begin_seconds
    length = frame.end - frame.begin
    step = next(
        (each for each in _STEPS if length / each <= _MOST_TICKS), math.ceil(length / _MOST_TICKS / 86_400) * 86_400
    )
    tick = origin + math.ceil((frame.begin - origin) / step) * step
    before = ""
    while tick <= frame.end:
        x = frame.x(tick)
        yield Line([(x, frame.bottom), (x, frame.bottom + 4)], _GREY)
        if is_wall:
            words, before = _clock_words(tick, step, before)
        else:
            words = f"+{format_duration(tick - origin)}" if tick > origin else "0"
        is_last = x + _WORD * len(words) / 2 > _WIDTH - 4
        yield Label(_WIDTH - 4 if is_last else x, top + 12, words, _QUIET, 11, "end" if is_last else "middle")
        tick += step
    if is_wall:
        yield Label(_GAP, top + 12, "UTC", _QUIET, 11)


def _clock_words(seconds: float, step: float, day_before: str) -> tuple[str, str]:
    """Return the time of a tick, with its day where that is another than before, and the day."""
    time = datetime.fromtimestamp(seconds, UTC)
    day = f"{time:%b} {time.day}"
    if step >= 86_400:
        return day, day
    clock = f"{time:%H:%M:%S}" if step < 60 else f"{time:%H:%M}"
    return (clock if day == day_before else f"{day}, {clock}"), day
