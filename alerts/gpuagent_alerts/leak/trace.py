"""What a detector was shown, block by block, for a replay: exact while it is young, and of bounded size for ever.

A run is a stretch of blocks that were all alike. When there are too many runs, each two of the older half become one,
with the lowest readings of both: so the last hours stay exact, and what lies further back is as coarse as a longer
window of the detector takes it anyway.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuagent_alerts.leak.blocks import EMPTY, PAGE_BYTES, BlockStore, to_pages

if TYPE_CHECKING:
    from gpuagent_alerts.leak.signals import Lows

MOST_RUNS: Final = 2048
"""8.5 hours in which every block is another; a trace then takes 64 KiB."""
LEAST_RUNS: Final = 32
MOST_RUNS_TOGETHER: Final = 131_072
"""The most runs of all traces that share a budget: 4 MiB."""
_CELLS: Final = 8


class Run(NamedTuple):
    """Blocks that were all alike, both ends included. Memory in pages; EMPTY where nothing was read."""

    first: int
    last: int
    used: int
    """The lowest of each block."""
    allocated: int
    outside: int
    held: int
    """The mean of what was allocated."""
    free: int
    slack: int
    """What the allocator held beyond its tensors."""


class TraceBudget:
    """How many runs each trace may have: they share what there is."""

    def __init__(self, together: int = MOST_RUNS_TOGETHER) -> None:
        self._together = together
        self.traces = 0
        """As many share it."""

    @property
    def share(self) -> int:
        """The most runs of one trace now."""
        return max(LEAST_RUNS, min(MOST_RUNS, self._together // max(1, self.traces)))


class Trace:
    """The blocks of one process on one GPU. Blocks are those of the detector: 15 s each, numbered on its clock."""

    __slots__ = ("_budget", "_cells")

    def __init__(self, budget: TraceBudget | None = None) -> None:
        self._budget = budget
        self._cells = array("I")

    def __len__(self) -> int:
        return len(self._cells) // _CELLS

    def add(self, block: int, lows: Lows, free_pages: float | None, slack_bytes: float) -> None:
        """Note a block that has ended; one without a reading leaves a gap."""
        if lows.used == EMPTY and lows.allocated == EMPTY:
            return
        free = EMPTY if free_pages is None else min(int(free_pages), EMPTY - 1)
        values = (lows.used, lows.allocated, lows.outside, lows.held, free, to_pages(slack_bytes))
        cells = self._cells
        if cells and cells[-7] + 1 == block and tuple(cells[-6:]) == values:
            cells[-7] = block
            return
        if not 0 <= block < EMPTY or (cells and block <= cells[-7]):
            return
        cells.extend((block, block, *values))
        if len(self) > (MOST_RUNS if self._budget is None else self._budget.share):
            self._merge_older_half()

    def copy(self) -> Trace:
        """Return what is there now, for another thread."""
        other = Trace()
        other._cells = self._cells[:]
        return other

    def seed(self, store: BlockStore, next_block: int) -> None:
        """Begin with the blocks of a detector that was restored: as coarse as it keeps them, and what was free is lost.

        `next_block` is the number of the block behind the store's newest.
        """
        if self._cells or not store.base_count:
            return
        origin = next_block - store.base_count
        found: list[tuple[int, int, int]] = []  # the newest first
        before = next_block
        for level in range(store.levels):
            end = origin + (store.base_count >> level << level)
            for value in reversed(store.ring(level)):
                begin = end - (1 << level)
                if end <= before:
                    found.append((begin, end - 1, value))
                    before = begin
                end = begin
        for first, last, value in reversed(found):
            if value != EMPTY and first >= 0:
                self._cells.extend((first, last, value, EMPTY, EMPTY, EMPTY, EMPTY, 0))

    def runs(self) -> list[Run]:
        """All of them, oldest first."""
        cells = self._cells
        return [Run(*cells[begin : begin + _CELLS]) for begin in range(0, len(cells), _CELLS)]

    def _merge_older_half(self) -> None:
        runs = self.runs()
        half = len(runs) // 2
        merged: list[Run] = []
        place = 0
        while place < half:
            run = runs[place]
            place += 1
            if place < half and _may_merge(run, runs[place]):
                run = _merge(run, runs[place])
                place += 1
            merged.append(run)
        if len(merged) == half:  # gaps everywhere: the oldest go
            merged = merged[half // 2 :]
        cells = array("I")
        for run in (*merged, *runs[half:]):
            cells.extend(run)
        self._cells = cells


def _may_merge(one: Run, other: Run) -> bool:
    """Return whether they may become one: a long gap between them stays a gap."""
    return other.first - one.last - 1 <= (other.last - one.first + 1) // 4


def _merge(one: Run, other: Run) -> Run:
    held = other.held if one.held == EMPTY else one.held if other.held == EMPTY else (one.held + other.held) // 2
    return Run(
        one.first,
        other.last,
        min(one.used, other.used),
        min(one.allocated, other.allocated),
        min(one.outside, other.outside),
        held,
        other.free,
        other.slack,
    )


def to_bytes(pages: int) -> int | None:
    """Return an amount of a run in bytes; None where nothing was read."""
    return None if pages == EMPTY else pages * PAGE_BYTES
