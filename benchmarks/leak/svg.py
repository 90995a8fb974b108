"""A trace as a drawing: SVG written by hand, so that the same trace is the same file, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.leak.trace import Trace
from benchmarks.leak.workload import GIB

_WIDTH, _LEFT, _RIGHT, _TOP, _PLOT = 900, 56, 14, 46, 250
_LANE = 25
_COLUMNS = 420
_USED, _ALLOCATED, _GREY, _RED = "#2b6cb0", "#dd8a1d", "#718096", "#c53030"


class Lane(NamedTuple):
    """One method's alarms, below the plot."""

    name: str
    times: Sequence[float]


def draw(trace: Trace, title: str, alarms: Sequence[float], lanes: Sequence[Lane]) -> str:
    """The memory of the process, the detector's `alarms` as lines, and the other methods' in `lanes`."""
    end = trace.end_seconds
    top = trace.total_bytes / GIB
    right, bottom = _WIDTH - _RIGHT, _TOP + _PLOT
    height = bottom + 36 + _LANE * len(lanes)

    def x(seconds: float) -> float:
        return _LEFT + (right - _LEFT) * seconds / end

    def y(gib: float) -> float:
        return bottom - _PLOT * gib / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        _text(_LEFT, 18, title, weight="bold"),
        _text(_LEFT, 36, "NVML", _USED),
        *([_text(_LEFT + 50, 36, "allocated by torch", _ALLOCATED)] if trace.client else []),
        _text(_LEFT + 180, 36, "the detector speaks", _RED),
        *([_text(_LEFT + 320, 36, "the leak begins", _GREY)] if trace.leak_seconds is not None else []),
    ]
    for gib in _ticks(top):
        parts += [
            _line(_LEFT, y(gib), right, y(gib), "#e2e8f0"),
            _text(_LEFT - 6, y(gib) + 4, f"{gib:g}", _GREY, "end"),
        ]
    parts.append(_text(_LEFT - 6, _TOP - 6, "GiB", _GREY, "end"))
    hours = end / 3600
    for hour in _ticks(hours):
        parts += [
            _line(x(hour * 3600), bottom, x(hour * 3600), bottom + 4, _GREY),
            _text(x(hour * 3600), bottom + 18, f"{hour:g} h", _GREY, "middle"),
        ]
    if trace.leak_seconds is not None:
        parts.append(_line(x(trace.leak_seconds), _TOP, x(trace.leak_seconds), bottom, _GREY, "2 4"))
    series = [(trace.samples.used, _USED), *([(trace.samples.allocated, _ALLOCATED)] if trace.client else [])]
    for values, color in series:
        points = " ".join(f"{x(at):.1f},{y(size / GIB):.1f}" for at, size in _thin(trace.samples.times, values, end))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.2"/>')
    parts += [_line(x(at), _TOP, x(at), bottom, _RED, width=2) for at in alarms]
    for number, lane in enumerate(lanes):
        middle = bottom + 48 + _LANE * number
        parts += [_line(_LEFT, middle, right, middle, "#e2e8f0"), _text(_LEFT, middle - 8, lane.name, _GREY, size=10)]
        parts += [f'<circle cx="{x(at):.1f}" cy="{middle}" r="3" fill="{_RED}"/>' for at in lane.times]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _thin(times: Sequence[float], values: Sequence[float], end: float) -> Iterable[tuple[float, float]]:
    """At most four points for each column of the drawing: the first, the lowest, the highest and the last."""
    column: list[tuple[float, float]] = []
    number = 0
    for at, value in zip(times, values, strict=True):
        if math.isnan(value):
            continue
        if int(at / end * _COLUMNS) != number:
            yield from _corners(column)
            column, number = [], int(at / end * _COLUMNS)
        column.append((at, value))
    yield from _corners(column)


def _corners(column: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(column) <= 4:
        return column
    low, high = (choose(column, key=lambda point: point[1]) for choose in (min, max))
    return sorted({column[0], low, high, column[-1]})


def _ticks(top: float) -> list[float]:
    """Some five round numbers from 0 on."""
    step = 10.0 ** math.floor(math.log10(top))
    step = next(step * part for part in (0.1, 0.2, 0.5, 1.0, 2.0) if top / (step * part) <= 7)
    return [round(step * number, 6) for number in range(int(top / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, color: str, dashes: str = "", width: int = 1) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}"{dashed}/>'


def _text(
    x: float,
    y: float,
    text: str,
    color: str = "#1a202c",
    anchor: str = "start",
    size: int = 12,
    weight: str = "normal",
) -> str:
    style = f'fill="{color}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
