"""The clock of work: what a process worked in each block of each level, and a window's parts of equal work.

By the hands of a clock, growth that follows requests is uneven wherever the load is: under office hours hardly any
window of a day rises in most of its parts. Cut into eight parts of equal work, the growth of a leak is even again.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from gpuagent_alerts.leak.blocks import LEVELS, RING

FIRST_LEVEL: Final = 5
"""Blocks of 8 min: that long is looked at to tell work from what is held. Windows are of 2 h and more."""
WORK_LEVELS: Final = LEVELS - FIRST_LEVEL
GROWTH_SHARE: Final = 0.25
"""Work that is less than this part of the growth may be nothing but the growth itself."""
_UNKNOWN: Final = math.nan


class WorkClock:
    """Mean pages in passing, per block of each level from `FIRST_LEVEL` on; NaN where nothing was told."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells = array("f", [_UNKNOWN]) * (RING * WORK_LEVELS)

    def push(self, mean: float, base_count: int) -> None:
        """Add a block of the first level, which ends at this count of the store."""
        index = (base_count >> FIRST_LEVEL) - 1
        self._cells[index % RING] = mean
        level = FIRST_LEVEL + 1
        while index % 2 and level < LEVELS:
            index //= 2
            self._put_mean(level, index)
            level += 1

    def skip(self, before: int, base_count: int) -> None:
        """Skip from one count of the store to another without a reading."""
        for level in range(FIRST_LEVEL, LEVELS):
            begin, end = before >> level, base_count >> level
            for index in range(max(begin, end - RING), end):
                self._cells[(level - FIRST_LEVEL) * RING + index % RING] = _UNKNOWN
            if level > FIRST_LEVEL and begin < end <= begin + RING:
                self._put_mean(level, begin)  # its first half may have been told

    def newest(self, level: int, blocks: int, base_count: int) -> array[float]:
        """Return the newest so many blocks of a level, oldest first."""
        begin = (level - FIRST_LEVEL) * RING
        head = begin + (base_count >> level) % RING
        return (self._cells[head : begin + RING] + self._cells[begin:head])[-blocks:]

    def state(self) -> Sequence[array[float]]:
        """Return the ring of each level, for `restore`."""
        return [self._cells[begin : begin + RING] for begin in range(0, len(self._cells), RING)]

    def restore(self, rings: Sequence[array[float]]) -> None:
        """Restore what `state` returned. Raise ValueError for anything else."""
        if [len(ring) for ring in rings] != [RING] * WORK_LEVELS:
            raise ValueError("not the work of such a process")
        self._cells = array("f", [number for ring in rings for number in ring])

    def _put_mean(self, level: int, index: int) -> None:
        below = (level - 1 - FIRST_LEVEL) * RING
        halves = self._cells[below + 2 * index % RING], self._cells[below + (2 * index + 1) % RING]
        known = [half for half in halves if not math.isnan(half)]
        mean = math.fsum(known) / len(known) if known else _UNKNOWN
        self._cells[(level - FIRST_LEVEL) * RING + index % RING] = mean


def by_work(path: Sequence[int], work: Sequence[float], least: float) -> tuple[float, ...] | None:
    """Return the parts of a floor's growth in eight stretches of equal work.

    `path` is the floor at each block, `work` the mean of each. None where the work of a block is not known, or no work
    of at least `least` on average was seen.

    >>> by_work([0, 8, 8, 8, 16], [4, 4, 0, 4, 4], 1)
    (0.1875, 0.1875, 0.125, 0.0, 0.0, 0.125, 0.1875, 0.1875)
    """
    growth = path[-1] - path[0]
    done = [0.0, *accumulate((one + other) / 2 for one, other in pairwise(work))]
    total = done[-1]
    least_work = max(least * (len(path) - 1), GROWTH_SHARE * growth)
    if not total >= least_work or growth <= 0:  # nor where one is not known
        return None
    heights, place = [float(path[0])], 0
    for part in range(1, 8):
        aim = total * part / 8
        while done[place + 1] < aim:
            place += 1
        share = (aim - done[place]) / (done[place + 1] - done[place])
        heights.append(path[place] + share * (path[place + 1] - path[place]))
    heights.append(float(path[-1]))
    return tuple((high - low) / growth for low, high in pairwise(heights))
