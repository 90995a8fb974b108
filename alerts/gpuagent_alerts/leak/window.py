"""What one window of blocks shows of its floor: how much it rose, how evenly, and whether it slows down.

The floor at a block is the lowest value from there to the end: memory that was held then and never given back since. It
never falls, and peaks and saw-teeth are not in it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, BlockStore
from gpuagent_alerts.leak.work import LEVEL as WORK_LEVEL
from gpuagent_alerts.leak.work import Work, bend_by_work

LENGTHS: Final = (16, 20, 24, 28)
"""Blocks per window: they fill the factor of 2 between two levels. Shorter ones cost false alarms."""
_BOUNDS: Final = {n: tuple(round((n - 1) * k / 8) for k in range(9)) for n in LENGTHS}
_BEND_ERROR: Final = 8 * math.sqrt(3 / 8)
"""Standard error of `bend` per standard deviation of the eighths, near enough to the exact 32 / sqrt(42)."""


class Window(NamedTuple):
    """The floor over the last `blocks` blocks of a level. Memory in pages."""

    blocks: int
    seconds: float
    present: int
    """Blocks with a reading."""
    growth: int
    last: int
    """The floor at the end, which is the last reading."""
    increments: float
    """Effective number of steps: n - 1 for a line, 1 for one jump."""
    eighths: tuple[float, ...]
    """Part of the growth in each eighth; 1/8 each for a line."""
    last_quarter: float
    """Part of the growth in the last quarter; 1/4 for a line."""
    bend: float
    """Relative change of the rate from the middle to the end: 0 for a line."""
    bend_error: float
    older_high: int
    """The highest block before the window that is still known; 0 if there is none."""
    onset_seconds: float
    """How long before the window's end the floor began to rise."""
    bend_by_work: float | None = None
    """The same change of the growth for the same work, where that is known and the growth follows it."""


def window_seconds(level: int, blocks: int) -> float:
    """Time between the first and the last of so many blocks of a level."""
    return float((blocks - 1) * BLOCK_SECONDS << level)


def _mean(numbers: Sequence[float]) -> float:
    """Of those that are known."""
    known = [number for number in numbers if not math.isnan(number)]
    return math.fsum(known) / len(known) if known else math.nan


def floor_of(blocks: Sequence[int]) -> list[int]:
    """The floor at each block.

    >>> floor_of([5, 3, 9, EMPTY, 4, 8])
    [3, 3, 4, 4, 4, 8]
    """
    path = list(accumulate(reversed(blocks), min))
    path.reverse()
    return path


class Windows:
    """The windows that end with a level's newest block, each measured once, however many standards ask for it."""

    __slots__ = ("_measured", "_store", "_work", "level", "ring")

    def __init__(self, store: BlockStore, level: int, work: Work | None = None) -> None:
        self._store = store
        self._work = work if level == WORK_LEVEL else None
        self._measured: dict[int, Window] = {}
        self.level = level
        self.ring = store.ring(level)

    def of(self, blocks: int) -> Window:
        """Of so many blocks, of which the newest has a reading and lies above another."""
        window = self._measured.get(blocks)
        if window is None:
            window = measure(self.ring, self._store.highs_of(self.level), self.level, blocks)
            if self._work is not None:
                work = self._work.newest(blocks, self._store.base_count)
                parts = [_mean(work[begin:end]) for begin, end in pairwise(_BOUNDS[blocks])]
                window = window._replace(bend_by_work=bend_by_work(window.eighths, parts))
            self._measured[blocks] = window
        return window


def measure(ring: array[int], highs: array[int], level: int, blocks: int) -> Window:
    """The last so many blocks of a level, the last of which has a reading and lies above another."""
    values = ring[-blocks:]
    path = floor_of(values)
    first, last = path[0], path[-1]
    growth = last - first
    bounds = _BOUNDS[blocks]
    even = (blocks - 1) / 8
    eighths = tuple((path[end] - path[begin]) / growth * even / (end - begin) for begin, end in pairwise(bounds))
    quarter = 3 * (blocks - 1) // 4
    slope = sum((k - 3.5) * part for k, part in enumerate(eighths)) / 42
    rest = sum((part - 0.125 - slope * (k - 3.5)) ** 2 for k, part in enumerate(eighths))
    older = max((value for value in ring[:-blocks] if value != EMPTY), default=0)
    rise = next(place for place, value in enumerate(path) if value > first)
    return Window(
        blocks=blocks,
        seconds=window_seconds(level, blocks),
        present=blocks - values.count(EMPTY),
        growth=growth,
        last=last,
        increments=growth**2 / sum((b - a) ** 2 for a, b in pairwise(path)),
        eighths=eighths,
        last_quarter=(last - path[quarter]) / growth * ((blocks - 1) / 4) / (blocks - 1 - quarter),
        bend=32 * slope,
        bend_error=_BEND_ERROR * math.sqrt(rest / 6),
        older_high=max(older, *highs),
        onset_seconds=float((blocks - rise + 1) * BLOCK_SECONDS << level),
    )
