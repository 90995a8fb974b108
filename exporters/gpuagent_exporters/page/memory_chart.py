"""The memory of a GPU over time, stacked by process up to the line of its capacity, as SVG.

The page's policy forbids inline styles, so colors are classes and places are attributes. The plot is stretched to the
room that there is; texts are in a layer of their own, by percent, which is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from gpuagent.core.growth import MemoryKey
from gpuagent_exporters.charts import Chart
from gpuagent_exporters.history import GpuLines, ProcessLine
from gpuagent_exporters.page.html import UNKNOWN, attribute, duration, is_number, size, text

_WIDTH: Final = 1000
_HEIGHT: Final = 2000
_HEADROOM: Final = 1.06
"""Room above the line of the capacity, so that it is seen when the memory is full."""
_LEAST_SECONDS: Final = 60.0
_MOST_AHEAD: Final = 1.0
"""The forecast has at most as much room as the past: what is full later leaves the chart."""
_LITTLE_AHEAD: Final = 0.35
_NOW_HAS_ROOM: Final = 0.75
_NOW_HAS_ROOM_ON_PHONES: Final = 0.5
_MOST_IN_LEGEND: Final = 2
_HATCH_STEP: Final = 10
_HATCH_LEAN: Final = 40
_AWAY_HAS_ROOM: Final = 70.0

Values = Sequence[float | None]


class Layer(NamedTuple):
    """What lies on the layers below it."""

    name: str
    color: str
    """Class of the page's style."""
    values: Values
    """In bytes, oldest first."""


@dataclass(frozen=True, slots=True)
class MemoryPlot:
    """One GPU's chart."""

    layers: Sequence[Layer]
    used: Values
    busy: Values
    total: float
    past_seconds: float
    """From the first point to now."""
    grows: bool = False
    """Draw the baseline."""
    full_in_seconds: float | None = None
    """The forecast; None where the memory will not be full."""
    left_out: int = 0
    is_away: bool = False
    """The GPU is not read any more: its last hour is drawn, and what nobody knows is hatched."""


def plot_of(
    chart: Chart,
    uuid: str,
    total: object,
    *,
    growing: frozenset[MemoryKey] = frozenset(),
    rest: str = "held by no process",
    grows: bool = False,
    full_in_seconds: object = None,
    is_away: bool = False,
) -> MemoryPlot | None:
    """Return what to draw of a GPU; None where nothing is known of it. `rest` says what no process holds."""
    lines = chart.gpus.get(uuid)
    if lines is None:
        return None
    total = total or lines.total
    if not is_number(total) or not total or sum(value is not None for value in lines.used) < 2:
        return None
    begin = next(place for place, value in enumerate(lines.used) if value is not None)
    lines = _from(lines, begin)
    return MemoryPlot(
        layers=tuple(_layers(lines, chart, uuid, growing, rest)),
        used=lines.used,
        busy=lines.busy,
        total=float(total),
        past_seconds=max(_LEAST_SECONDS, (len(lines.used) - 1) * chart.step_seconds),
        grows=grows,
        full_in_seconds=full_in_seconds if is_number(full_in_seconds) else None,
        left_out=lines.left_out,
        is_away=is_away,
    )


def _from(lines: GpuLines, begin: int) -> GpuLines:
    processes = [one._replace(values=one.values[begin:]) for one in lines.processes]
    return lines._replace(
        used=lines.used[begin:], held=lines.held[begin:], busy=lines.busy[begin:], processes=processes
    )


def _layers(lines: GpuLines, chart: Chart, uuid: str, growing: frozenset[MemoryKey], rest: str) -> Iterator[Layer]:
    """Yield the lowest first: what nobody holds, other processes, the largest one, and on top what grows."""
    shown = sorted(lines.processes, key=lambda one: (one.memory in growing, -_latest(one.values)))
    drawn = (
        [_sum(point) for point in zip(*(one.values for one in shown), strict=True)]
        if shown
        else [0.0] * len(lines.used)
    )
    held = [
        None if used is None else max(seen if all_held is None else all_held, seen)
        for used, all_held, seen in zip(lines.used, lines.held, drawn, strict=True)
    ]
    beside = [
        None if used is None or of_all is None else max(0.0, used - of_all)
        for used, of_all in zip(lines.used, held, strict=True)
    ]
    yield Layer(rest, "rest", beside)
    if lines.left_out:
        others = [
            None if of_all is None else max(0.0, of_all - (seen or 0.0))
            for of_all, seen in zip(held, drawn, strict=True)
        ]
        word = "process" if lines.left_out == 1 else "processes"
        yield Layer(f"{lines.left_out} other {word}", "others", others)
    for one in shown:
        yield Layer(label_of(one), f"c{chart.colors.get((uuid, one.memory.pid), 0)}", one.values)


def label_of(line: ProcessLine) -> str:
    """Return a process's name with its pid."""
    return f"{line.name or 'process'} ({line.memory.pid})"


def _latest(values: Values) -> float:
    return next((value for value in reversed(values) if value is not None), 0.0)


def _sum(values: Sequence[float | None]) -> float:
    return sum(value for value in values if value is not None)


class _Scale(NamedTuple):
    points: int
    now: float
    """Where the past ends, from 0 to `_WIDTH`."""
    total: float

    def x(self, place: float) -> int:
        return round(place / max(1, self.points - 1) * self.now)

    def y(self, value: float) -> int:
        return round(_HEIGHT * (1 - min(value / (self.total * _HEADROOM), 1.0)))


def memory_chart(plot: MemoryPlot, place: str) -> str:
    """Render the chart with its axis and legend. `place` names the GPU, for who cannot see it."""
    ahead = _ahead(plot)
    scale = _Scale(len(plot.used), _WIDTH * plot.past_seconds / (plot.past_seconds + ahead), plot.total)
    areas = "".join(_areas(plot, scale))
    marks = "".join(_marks(plot, scale, ahead))
    drawn = (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{attribute(_summary(plot, place))}" tabindex="0" data-total="{plot.total * _HEADROOM:.0f}" '
        f'data-now="{scale.now:.0f}" data-past="{plot.past_seconds:.0f}">{areas}{marks}</svg>'
    )
    labels = f'<svg class="labels" aria-hidden="true">{"".join(_labels(plot, scale))}</svg>'
    return f'<div class="stack">{drawn}{labels}</div>{_busy(plot, scale)}{_axis(plot, scale, ahead)}{_legend(plot)}'


def _ahead(plot: MemoryPlot) -> float:
    """Return how many seconds of the future there is room for."""
    left = plot.full_in_seconds
    if left is None or left < 1:
        return 0.0
    if left <= plot.past_seconds * _MOST_AHEAD:
        return max(left * 1.06, plot.past_seconds * 0.1)
    return plot.past_seconds * _LITTLE_AHEAD


def _areas(plot: MemoryPlot, scale: _Scale) -> Iterator[str]:
    """Yield an area for each layer, down to zero: the topmost first, so that those below lie on it."""
    tops: list[list[float | None]] = []
    sums: list[float | None] = [None if value is None else 0.0 for value in plot.used]
    for layer in plot.layers:
        sums = [
            None if total is None else total + (value or 0.0) for total, value in zip(sums, layer.values, strict=True)
        ]
        tops.append(sums)
    for layer, top in zip(reversed(plot.layers), reversed(tops), strict=True):
        path = "".join(_area(run, scale) for run in _runs(top))
        if path:
            yield (
                f'<path class="area {layer.color}" d="{path}" data-name="{attribute(layer.name)}">'
                f"<title>{attribute(layer.name)}</title></path>"
            )


def _runs(values: Values) -> Iterator[list[tuple[int, float]]]:
    """Yield stretches without a gap, as places and values."""
    run: list[tuple[int, float]] = []
    for place, value in enumerate(values):
        if value is not None:
            run.append((place, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _line(run: Sequence[tuple[int, float]], scale: _Scale) -> list[tuple[int, int]]:
    """Return the points of a line; of those at the same height only the ends."""
    points = [(scale.x(place), scale.y(value)) for place, value in run]
    inner = [
        point
        for before, point, after in zip(points, points[1:], points[2:], strict=False)
        if not before[1] == point[1] == after[1]
    ]
    return [points[0], *inner, *points[-1:]] if len(points) > 1 else [points[0], (points[0][0] + 3, points[0][1])]


def _area(run: Sequence[tuple[int, float]], scale: _Scale) -> str:
    points = _line(run, scale)
    line = "L".join(f"{x} {y}" for x, y in points)
    return f"M{points[0][0]} {_HEIGHT}L{line}V{_HEIGHT}Z"


def _marks(plot: MemoryPlot, scale: _Scale, ahead: float) -> Iterator[str]:
    capacity = scale.y(plot.total)
    yield f'<path class="capacity" d="M0 {capacity}H{_WIDTH}"/>'
    if plot.is_away:
        begin = _end_of_reading(plot, scale)
        lines = "".join(f"M{x} {_HEIGHT}L{x + _HATCH_LEAN} 0" for x in range(begin, round(scale.now), _HATCH_STEP))
        yield f'<path class="away" d="{lines}"/><path class="today" d="M{begin} {_HEIGHT}V0"/>'
    if plot.grows:
        for run in _runs(_baseline(plot.used)):
            points = _line(run, scale)
            yield f'<path class="baseline" d="M{"L".join(f"{x} {y}" for x, y in points)}"/>'
    if not ahead or plot.full_in_seconds is None:
        return
    share = min(1.0, ahead / plot.full_in_seconds)
    used = _latest(plot.used)
    end_x = scale.now + (_WIDTH - scale.now) * min(1.0, plot.full_in_seconds / ahead)
    end_y = scale.y(used + (plot.total - used) * share)
    yield f'<path class="today" d="M{scale.now:.0f} {_HEIGHT}V0"/>'
    yield f'<path class="forecast" d="M{scale.now:.0f} {scale.y(used)}L{end_x:.0f} {end_y}"/>'
    if plot.full_in_seconds <= ahead:
        yield f'<path class="full" d="M{end_x:.0f} {_HEIGHT}V{capacity}"/>'


def _end_of_reading(plot: MemoryPlot, scale: _Scale) -> int:
    """Return where the last reading is."""
    last = max(place for place, value in enumerate(plot.used) if value is not None)
    return min(scale.x(last), _WIDTH - _HATCH_STEP)


def _baseline(values: Values) -> list[float | None]:
    """Return the lowest from each point on: what was held then and never given back since."""
    floor = list(accumulate((value if value is not None else float("inf") for value in reversed(values)), min))
    floor.reverse()
    return [None if value is None else low for value, low in zip(values, floor, strict=True)]


def _labels(plot: MemoryPlot, scale: _Scale) -> Iterator[str]:
    # Above the plot and not in it: there a full GPU would have its areas below them.
    yield f'<text x="6" y="0" dy="-.3em">{size(plot.total)}</text>'
    left = plot.full_in_seconds
    if left is not None and left < 1:
        yield '<text class="danger" x="99%" y="0" dy="-.3em" text-anchor="end">full now</text>'
    if plot.is_away:
        begin = 100 * _end_of_reading(plot, scale) / _WIDTH
        place = 'dx="-4" text-anchor="end"' if begin > _AWAY_HAS_ROOM else 'dx="4"'
        yield f'<text x="{begin:.1f}%" y="50%" {place}>not read since</text>'


def _axis(plot: MemoryPlot, scale: _Scale, ahead: float) -> str:
    left = plot.full_in_seconds
    full = ""
    if ahead and left is not None:
        full = f"full in {duration(left)}" + ("" if left <= ahead else " \N{RIGHTWARDS ARROW}")
    return time_axis(plot.past_seconds, scale.now / _WIDTH, full)


def time_axis(past_seconds: float, now: float, full: str = "") -> str:
    """Render the axis below a plot. `now` is where that is, from 0 to 1; `full` says when the memory is full."""
    parts = [f'<text x="0">{duration(round(past_seconds / 60) * 60 or past_seconds)} ago</text>']
    if not full:
        parts.append('<text x="100%" text-anchor="end">now</text>')
    else:
        if now < _NOW_HAS_ROOM:
            kind = "" if now < _NOW_HAS_ROOM_ON_PHONES else ' class="wide"'
            parts.append(f'<text{kind} x="{100 * now:.1f}%" text-anchor="middle">now</text>')
        parts.append(f'<text class="danger" x="100%" text-anchor="end">{full}</text>')
    return f'<svg class="axis" aria-hidden="true"><g transform="translate(0 12)">{"".join(parts)}</g></svg>'


def _busy(plot: MemoryPlot, scale: _Scale) -> str:
    """Render how busy the GPU was, as a strip below."""
    height = 100
    path = ""
    for run in _runs(plot.busy):
        points = [(scale.x(place), round(height * (1 - value))) for place, value in run]
        if len(points) > 1:
            line = "L".join(f"{x} {y}" for x, y in points)
            path += f"M{points[0][0]} {height}L{line}V{height}Z"
    view = f'viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none"'
    if not path:
        return ""
    label = '<svg class="labels"><text x="6" y="13">busy</text></svg>'
    return f'<div class="busy" aria-hidden="true"><svg {view}><path d="{path}"/></svg>{label}</div>'


def _legend(plot: MemoryPlot) -> str:
    """List the layers with what they hold now: the largest process first, then what is none of those.

    On a small card the smaller ones are only counted.
    """
    now = [(layer, _now(layer.values, plot)) for layer in plot.layers]
    drawn = sorted((one for one in now if _is_process(one[0])), key=lambda one: -(one[1] or 0.0))
    beside = [one for one in now if not _is_process(one[0]) and one[1]]
    items = [_entry(layer, value, is_more=place >= _MOST_IN_LEGEND) for place, (layer, value) in enumerate(drawn)]
    if len(drawn) > _MOST_IN_LEGEND:
        rest = sum(value or 0.0 for _, value in drawn[_MOST_IN_LEGEND:])
        items.append(f'<li class="fewer">{len(drawn) - _MOST_IN_LEGEND} more <b>{size(rest)}</b></li>')
    items += [_entry(layer, value) for layer, value in reversed(beside)]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _now(values: Values, plot: MemoryPlot) -> float | None:
    """Return the value of now; of a GPU that is not read any more the last one."""
    if plot.is_away:
        last = max((place for place, value in enumerate(plot.used) if value is not None), default=-1)
        return values[last] if values else None
    return values[-1] if values else None


def _is_process(layer: Layer) -> bool:
    return layer.color.startswith("c")


def _entry(layer: Layer, value: float | None, *, is_more: bool = False) -> str:
    kind = f"{layer.color} more" if is_more else layer.color
    held = UNKNOWN if value is None else size(value)
    return f'<li class="{kind}" data-name="{attribute(layer.name)}">{text(layer.name)} <b>{held}</b></li>'


def _summary(plot: MemoryPlot, place: str) -> str:
    known = [value for value in plot.used if value is not None]
    lasted, now = duration(round(plot.past_seconds / 60) * 60), f"{size(_now(plot.used, plot))} of {size(plot.total)}"
    when = "when it was last read" if plot.is_away else "now"
    parts = [f"Memory of {place} in the last {lasted}: {when} {now}, highest {size(max(known))}."]
    held = [(layer.name, value) for layer in plot.layers if (value := _now(layer.values, plot))]
    held.sort(key=lambda one: -(one[1] or 0.0))
    parts += [f"{name} {size(value)}" + (";" if held[-1][0] != name else ".") for name, value in held]
    if plot.full_in_seconds is not None:
        parts.append("Full now." if plot.full_in_seconds < 1 else f"Full in {duration(plot.full_in_seconds)}.")
    return " ".join(parts)
