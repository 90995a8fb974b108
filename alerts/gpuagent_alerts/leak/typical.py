"""The typical memory of a process: a trailing median, in which single dips do not show.

A server that swaps models holds next to nothing for a moment between two of them. The lowest reading of a window is
then that moment, and what leaks underneath shows in no floor. The median of two hours knows neither dips nor peaks. It
is judged by the strictest standard alone, for it follows the load, which the floor does not.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from gpuagent_alerts.leak.blocks import EMPTY, BlockStore

LEVEL: Final = 4
"""Medians are of 4 min: 16 blocks of 15 s, of which readings every minute leave 4."""
MEDIANS: Final = 30
"""As many are looked at: 2 h."""
_STRETCH: Final = 1 << LEVEL
_LEAST_BLOCKS: Final = 2
_LEAST_MEDIANS: Final = 10
DIP_OF_TOTAL: Final = 0.05
"""A dip is as deep as this share of the GPU's memory, and over within minutes. Without one, the floor says as much."""


class TypicalMemory:
    """Medians of the blocks of another store, in step with it."""

    __slots__ = ("lows", "medians")

    def __init__(self) -> None:
        self.medians = array("I")
        """The newest `MEDIANS` stretches of 4 min; EMPTY where too little was read."""
        self.lows = array("I")
        """The lowest reading of each."""

    def push(self, store: BlockStore) -> int | None:
        """Return the typical memory after the store's newest block, once every 4 min; EMPTY where it is not known."""
        if store.base_count % _STRETCH:
            return None
        blocks = [value for value in store.ring(0, _STRETCH) if value != EMPTY]
        self._append(median(blocks) if len(blocks) >= _LEAST_BLOCKS else EMPTY, min(blocks, default=EMPTY))
        known = [value for value in self.medians if value != EMPTY]
        return median(known) if len(known) >= _LEAST_MEDIANS else EMPTY

    def push_empty(self, stretches: int) -> None:
        """Add so many stretches without a reading."""
        for _ in range(min(stretches, MEDIANS)):
            self._append(EMPTY, EMPTY)

    def dips_by(self, pages: float) -> bool:
        """Return whether the memory went down by so much within the two hours, and came back at once."""
        medians = [0 if value == EMPTY else value for value in self.medians]
        heights = [max(pair) for pair in pairwise(medians)]
        lows = enumerate(self.lows)
        return any(
            0 < place < len(medians) - 1 and low + pages <= min(heights[place - 1], heights[place])
            for place, low in lows
        )

    def _append(self, value: int, low: int) -> None:
        if len(self.medians) == MEDIANS:
            del self.medians[0], self.lows[0]
        self.medians.append(value)
        self.lows.append(low)


def median(values: Sequence[int]) -> int:
    """Return the lower median."""
    return sorted(values)[(len(values) - 1) // 2]
