"""How much a process worked, as its own allocator shows it: what it holds for a moment and gives back.

A request takes memory while it runs. A leak grows with what was done, a cache with what was new in it: over a day whose
load changes, both look alike until their growth is compared with the work.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final

from gpuagent_alerts.leak.blocks import EMPTY, RING

LEVEL: Final = 8
"""Of the store's blocks: 64 min each, windows of up to 29 h. In longer ones a day's load has come round."""
FLOOR_BLOCKS: Final = 32
"""Work is what lies above the lowest reading of 8 min: longer than a request, and too short for a leak to show."""
_BLOCKS: Final = 1 << LEVEL
UNKNOWN: Final = math.nan
LEAST_PAGES: Final = 256
"""Below 1 MiB on average nothing worked that can be seen."""
_CENTRES: Final = tuple(k - 3.5 for k in range(8))
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
    moved = [unit * centre for unit, centre in zip(units, _CENTRES, strict=True)]
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


class Work:
    """Mean pages in passing, per block of `LEVEL`; in step with the store of the same signal."""

    __slots__ = ("_count", "_low", "_means", "_ring", "_sum", "_times")

    def __init__(self) -> None:
        self._ring = array("f", [UNKNOWN]) * RING
        self._low = EMPTY
        """Of the current 8 min: the lowest reading, the sum of the blocks' means, and their number."""
        self._means = self._times = 0
        self._sum = 0
        """Of the current block of `LEVEL`: what lay above the lows, and in how many blocks."""
        self._count = 0

    def push(self, low: int, mean: int, base_count: int) -> None:
        """The store's newest block: its lowest reading and its mean, or EMPTY, and the store's count with it."""
        if mean != EMPTY:
            self._low = min(self._low, low)
            self._means += mean
            self._times += 1
        if base_count % FLOOR_BLOCKS == 0:
            self._end_floor()
            if base_count % _BLOCKS == 0:
                self._end_block(base_count)

    def skip(self, before: int, base_count: int) -> None:
        """The store has gone from the one count to the other without a reading."""
        if before // FLOOR_BLOCKS != base_count // FLOOR_BLOCKS:
            self._end_floor()
        last = base_count // _BLOCKS
        if last - before // _BLOCKS > RING:
            self._sum = self._count = 0  # of a block that is out already
        for number in range(max(before // _BLOCKS + 1, last - RING + 1), last + 1):
            self._end_block(number * _BLOCKS)

    def newest(self, blocks: int, base_count: int) -> array[float]:
        """The newest so many blocks, oldest first; `UNKNOWN` where nothing was told."""
        head = (base_count >> LEVEL) % RING
        return (self._ring[head:] + self._ring[:head])[-blocks:]

    def state(self) -> tuple[array[float], tuple[int, ...]]:
        """Everything, for `restore`."""
        return self._ring, (self._low, self._means, self._times, self._sum, self._count)

    def restore(self, ring: array[float], numbers: tuple[int, ...]) -> None:
        """What `state` told. Raises ValueError for anything else."""
        if len(ring) != RING:
            raise ValueError("not the work of such a process")
        self._ring = ring
        self._low, self._means, self._times, self._sum, self._count = numbers

    def _end_floor(self) -> None:
        self._sum += self._means - self._times * self._low if self._times else 0
        self._count += self._times
        self._low, self._means, self._times = EMPTY, 0, 0

    def _end_block(self, base_count: int) -> None:
        self._ring[((base_count >> LEVEL) - 1) % RING] = self._sum / self._count if self._count else UNKNOWN
        self._sum = self._count = 0
