"""What one window of blocks shows: how much its floor rose, how evenly, whether it slows down, and for what work.

The floor at a block is the lowest value from there to the end: memory that was held then and never given back since. It
never falls, and peaks and saw-teeth are not in it.

How much a process worked, its own allocator shows: what it holds for a moment and gives back. A request takes memory
while it runs. A leak grows with what was done, a cache with what was new in it: over a day whose load changes, both
look alike until their growth is compared with the work.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, RING, BlockStore
from gpuagent_alerts.leak.work_clock import FIRST_LEVEL, WorkClock, by_work

WORK_LEVEL: Final = 8
"""The level of the store's blocks: 64 min each, windows of up to 29 h. In longer ones a day's load has come round."""
FLOOR_BLOCKS: Final = 32
"""Work is what lies above the lowest reading of 8 min: longer than a request, and too short for a leak to show."""
_WORK_BLOCKS: Final = 1 << WORK_LEVEL
UNKNOWN: Final = math.nan
LEAST_PAGES: Final = 256
"""Below 1 MiB on average nothing worked that can be seen."""
_CENTERS: Final = tuple(k - 3.5 for k in range(8))
_BY_THE_CLOCK: Final = (0.125,) * 8


def bend_by_work(eighths: Sequence[float], work: Sequence[float]) -> float | None:
    """Relative change of the growth for the same work from the middle of a window to its end; 0 where it is constant.

    `eighths` are the parts of the growth, `work` what was done in each eighth. None where no work was seen, and where
    the growth is nearer to rate x (1 + change) by the clock than by the work.
    """
    total = math.fsum(work)
    if not total >= 8 * LEAST_PAGES:  # nor where one is not known
        return None
    bend, rest = _fit(eighths, [part / total for part in work])
    return bend if rest < _fit(eighths, _BY_THE_CLOCK)[1] else None


def _fit(eighths: Sequence[float], units: Sequence[float]) -> tuple[float, float]:
    """Least squares of each eighth by unit x rate x (1 + change (k - 3.5)): the change over 4 eighths, and the rest."""
    moved = [unit * center for unit, center in zip(units, _CENTERS, strict=True)]
    even, mixed, late = (_product(a, b) for a, b in ((units, units), (units, moved), (moved, moved)))
    now, then = _product(units, eighths), _product(moved, eighths)
    distinct = even * late - mixed * mixed
    if distinct <= 0:  # all in one eighth
        return 0.0, math.inf
    rate, change = (late * now - mixed * then) / distinct, (even * then - mixed * now) / distinct
    fitted = (rate * unit + change * one for unit, one in zip(units, moved, strict=True))
    rest = sum((part - fit) ** 2 for part, fit in zip(eighths, fitted, strict=True))
    return (4 * change / rate, rest) if rate > 0 else (0.0, math.inf)


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


class WorkSignal:
    """Mean pages in passing, per block of `WORK_LEVEL`; in step with the store of the same signal."""

    __slots__ = ("_count", "_low", "_means", "_ring", "_sum", "_times", "clock", "floor")

    def __init__(self) -> None:
        self.clock = WorkClock()
        """The same in blocks of other lengths."""
        self._ring = array("f", [UNKNOWN]) * RING
        self.floor = EMPTY
        """The lowest of the 8 min before."""
        self._low = EMPTY
        """The current 8 min: the lowest reading, the sum of the blocks' means, and their number."""
        self._means = self._times = 0
        self._sum = 0
        """The current block of `WORK_LEVEL`: what lay above the lows, and in how many blocks."""
        self._count = 0

    def push(self, low: int, mean: int, base_count: int) -> None:
        """Add the store's newest block: its lowest reading and its mean, or EMPTY, and the store's count with it."""
        if mean != EMPTY:
            self._low = min(self._low, low)
            self._means += mean
            self._times += 1
        if base_count % FLOOR_BLOCKS == 0:
            passing, low = self._passing(), self._low
            self._end_floor()
            self.floor = low
            self.clock.push(passing, base_count)
            if base_count % _WORK_BLOCKS == 0:
                self._end_block(base_count)

    def _passing(self) -> float:
        """Return what lay above the lowest of the current 8 min, on average, less what it grew by meanwhile."""
        if not self._times:
            return UNKNOWN
        grew = max(0, self._low - self.floor) if self.floor != EMPTY else 0
        return max(0.0, self._means / self._times - self._low - grew / 2)

    def skip(self, before: int, base_count: int) -> None:
        """Skip from one count of the store to another without a reading."""
        if before // FLOOR_BLOCKS != base_count // FLOOR_BLOCKS:
            self._end_floor()
        self.clock.skip(before, base_count)
        last = base_count // _WORK_BLOCKS
        if last - before // _WORK_BLOCKS > RING:
            self._sum = self._count = 0  # of a block that is out already
        for number in range(max(before // _WORK_BLOCKS + 1, last - RING + 1), last + 1):
            self._end_block(number * _WORK_BLOCKS)

    def newest(self, blocks: int, base_count: int) -> array[float]:
        """Return the newest so many blocks, oldest first; `UNKNOWN` where nothing was told."""
        head = (base_count >> WORK_LEVEL) % RING
        return (self._ring[head:] + self._ring[:head])[-blocks:]

    def state(self) -> tuple[array[float], tuple[int, ...]]:
        """Everything, for `restore`."""
        return self._ring, (self._low, self._means, self._times, self._sum, self._count)

    def restore(self, ring: array[float], numbers: tuple[int, ...]) -> None:
        """Restore what `state` returned. Raise ValueError for anything else."""
        if len(ring) != RING:
            raise ValueError("not the work of such a process")
        self._ring = ring
        self._low, self._means, self._times, self._sum, self._count = numbers

    def _end_floor(self) -> None:
        self._sum += self._means - self._times * self._low if self._times else 0
        self._count += self._times
        self._low, self._means, self._times = EMPTY, 0, 0

    def _end_block(self, base_count: int) -> None:
        self._ring[((base_count >> WORK_LEVEL) - 1) % RING] = self._sum / self._count if self._count else UNKNOWN
        self._sum = self._count = 0


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
    """The change of the growth for the same work, where that is known and the growth follows it."""
    by_work: bool = False
    """The parts are of equal work, and not of equal time."""


def window_seconds(level: int, blocks: int) -> float:
    """Time between the first and the last of so many blocks of a level."""
    return float((blocks - 1) * BLOCK_SECONDS << level)


def _mean(numbers: Sequence[float]) -> float:
    """Return the mean of the values that are known."""
    known = [number for number in numbers if not math.isnan(number)]
    return math.fsum(known) / len(known) if known else math.nan


def floor_of(blocks: Sequence[int]) -> list[int]:
    """Return the floor at each block.

    >>> floor_of([5, 3, 9, EMPTY, 4, 8])
    [3, 3, 4, 4, 4, 8]
    """
    path = list(accumulate(reversed(blocks), min))
    path.reverse()
    return path


class Windows:
    """The windows that end with a level's newest block, each measured once, however many criteria ask for it."""

    __slots__ = ("_measured", "_store", "_work", "level", "ring")

    def __init__(self, store: BlockStore, level: int, work: WorkSignal | None = None) -> None:
        self._store = store
        self._work = work
        self._measured: dict[int, Window] = {}
        self.level = level
        self.ring = store.ring(level)

    def of(self, blocks: int) -> Window:
        """Return the window of so many blocks, of which the newest has a reading and lies above another."""
        window = self._measured.get(blocks)
        if window is None:
            window = measure(self.ring, self._store.highs_of(self.level), self.level, blocks)
            if self._work is not None:
                window = self._compare_with_work(window, self._work)
            self._measured[blocks] = window
        return window

    def _compare_with_work(self, window: Window, signal: WorkSignal) -> Window:
        """Return the window with its parts of equal work, where the growth is more even over these."""
        blocks, count = window.blocks, self._store.base_count
        if self.level == WORK_LEVEL:
            work = signal.newest(blocks, count)
            parts = [_mean(work[begin:end]) for begin, end in pairwise(_BOUNDS[blocks])]
            window = window._replace(bend_by_work=bend_by_work(window.eighths, parts))
        if self.level < FIRST_LEVEL:
            return window
        path = floor_of(self.ring[-blocks:])
        eighths = by_work(path, signal.clock.newest(self.level, blocks, count), LEAST_PAGES)
        if eighths is None or _unevenness(eighths) >= _unevenness(window.eighths):
            return window
        bend, error = _bend(eighths)
        quarter = eighths[6] + eighths[7]
        return window._replace(eighths=eighths, bend=bend, bend_error=error, last_quarter=quarter, by_work=True)


def _unevenness(eighths: Sequence[float]) -> float:
    return sum((part - 0.125) ** 2 for part in eighths)


def _bend(eighths: Sequence[float]) -> tuple[float, float]:
    """Return the relative change of the rate from the middle to the end, and its standard error."""
    slope = sum((k - 3.5) * part for k, part in enumerate(eighths)) / 42
    rest = sum((part - 0.125 - slope * (k - 3.5)) ** 2 for k, part in enumerate(eighths))
    return 32 * slope, _BEND_ERROR * math.sqrt(rest / 6)


def measure(ring: array[int], highs: array[int], level: int, blocks: int) -> Window:
    """Return the last so many blocks of a level, the last of which has a reading and lies above another."""
    values = ring[-blocks:]
    path = floor_of(values)
    first, last = path[0], path[-1]
    growth = last - first
    bounds = _BOUNDS[blocks]
    even = (blocks - 1) / 8
    eighths = tuple((path[end] - path[begin]) / growth * even / (end - begin) for begin, end in pairwise(bounds))
    quarter = 3 * (blocks - 1) // 4
    bend, bend_error = _bend(eighths)
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
        bend=bend,
        bend_error=bend_error,
        older_high=max(older, *highs),
        onset_seconds=float((blocks - rise + 1) * BLOCK_SECONDS << level),
    )
