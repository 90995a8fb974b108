"""Lowest readings over blocks of time, each level twice as coarse as the one below: 9 days in 2 KiB.

A block holds the lowest reading of its time: peaks vanish, and what is left is what was never given back. Values are
pages of 4 KiB in 32 bits (up to 16 TiB): exact for the driver, which counts whole pages.
"""

from __future__ import annotations

from array import array
from typing import Final

BLOCK_SECONDS: Final = 15
"""Two readings even when they come every 7 s, and a window of 16 blocks after 4 minutes; 10 and 30 s did as well."""
LEVELS: Final = 12
"""Blocks of 15 s to 8.5 h, windows of 3.75 min to 9.6 days: leaks of 21 MiB a day are seen on a GPU of 80 GiB."""
RING: Final = 32
"""Blocks kept per level: the longest window, 28, and 4 older ones."""
SLOT_SECONDS: Final = 21_600
SLOTS: Final = 8
"""What falls out of a ring is remembered as the highest of its 6 hours, for 42 to 48 h: a day curve's last peak."""
PAGE_BYTES: Final = 4096
EMPTY: Final = 2**32 - 1
"""A block without a reading. As the highest value of all it drops out of every minimum by itself."""


def to_pages(count: float) -> int:
    """Whole pages of a number of bytes; what does not fit becomes the highest page."""
    return min(int(count) // PAGE_BYTES, EMPTY - 1)


class BlockStore:
    """The blocks of one signal."""

    __slots__ = ("base_count", "highs", "pending", "rings", "slot")

    def __init__(self) -> None:
        self.rings: list[array[int]] = []
        """Per level that has begun, up to `RING` blocks, oldest first."""
        self.pending: list[int | None] = []
        """Per level, the first of a pair of blocks that waits for its second to go up as one."""
        self.highs = array("I", bytes(4 * LEVELS * SLOTS))
        """`SLOTS` for each level: the highest blocks that fell out of its ring; 0 where there is none."""
        self.slot = 0
        """Number of the current 6 hours."""
        self.base_count = 0
        """Blocks of the lowest level so far: a window at level l reaches back over n * 2**l of them."""

    def enter_slot(self, end_seconds: float) -> None:
        """Forget the highs that are 48 h old when a block ends at this time."""
        slot = int(end_seconds // SLOT_SECONDS)
        for number in range(max(self.slot + 1, slot - SLOTS + 1), slot + 1):
            for level in range(LEVELS):
                self.highs[level * SLOTS + number % SLOTS] = 0
        self.slot = max(self.slot, slot)

    def highs_of(self, level: int) -> array[int]:
        """The highs of one level."""
        return self.highs[level * SLOTS : (level + 1) * SLOTS]

    def push(self, value: int) -> int:
        """Add a block at the lowest level; the highest level that got a new block from it."""
        self.base_count += 1
        pending = self.pending
        level = 0
        while True:
            self._append(level, value)
            first = pending[level]
            if first is None:
                pending[level] = value
                return level
            pending[level] = None
            if level == LEVELS - 1:
                return level
            value = min(first, value)
            level += 1

    def push_empty(self, count: int) -> None:
        """Add so many blocks without a reading: the same as one by one, at a bounded cost for a gap of any length."""
        self.base_count += count
        head: list[int] = []  # the only value of those to be added that may not be empty
        for level in range(LEVELS):
            for value in head:
                self._append(level, value)
            for _ in range(min(count, RING)):
                self._append(level, EMPTY)
            if level == len(self.rings):
                return
            waiting = self.pending[level]
            if waiting is not None:
                head = [waiting, *head]
            pairs, odd = divmod(len(head) + count, 2)
            lowest = min(head, default=EMPTY)
            self.pending[level] = (EMPTY if pairs else lowest) if odd else None
            if pairs == 0:
                return
            head, count = [lowest], pairs - 1

    def _append(self, level: int, value: int) -> None:
        if level == len(self.rings):
            self.rings.append(array("I"))
            self.pending.append(None)
        ring = self.rings[level]
        if len(ring) == RING:
            oldest = ring[0]
            place = level * SLOTS + self.slot % SLOTS
            if oldest != EMPTY and oldest > self.highs[place]:
                self.highs[place] = oldest
            del ring[0]
        ring.append(value)
