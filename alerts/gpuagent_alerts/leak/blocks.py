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


RECENT: Final = 16
"""Blocks, 4 min."""
_CELLS: Final = RING + SLOTS
_NOTHING: Final = array("I")


class BlockStore:
    """The blocks of one signal.

    All rings and highs lie in one array, a ring written round and round: a level then costs its numbers and nothing
    beside them. How many blocks a level has had follows from `base_count`, and so where its newest is.
    """

    __slots__ = ("_cells", "base_count", "first", "recent_low", "slot")

    def __init__(self, first: int = 0) -> None:
        """Begin at level `first`: the levels below it are not kept, and a block that is pushed is one of that level."""
        self.first = first
        self._cells = _NOTHING
        """Per level that has begun: its ring, then its highs, which are 0 where there is none."""
        self.slot = 0
        """Number of the current 6 hours."""
        self.base_count = 0
        """Blocks of 15 s so far: a window at level l reaches back over n * 2**l of them."""
        self.recent_low = EMPTY
        """The lowest of the newest `RECENT` blocks of the lowest level, for who asks at every reading."""

    @property
    def levels(self) -> int:
        """The number of the last that has begun, and 1."""
        return min(self.base_count.bit_length(), LEVELS)

    @property
    def begun(self) -> range:
        """The levels that have begun."""
        return range(self.first, self.levels)

    def count(self, level: int) -> int:
        """Blocks in a level's ring."""
        return min(self.base_count >> level, RING)

    def newest(self, level: int) -> int:
        """Return the newest block of a level that has begun."""
        return self._cells[(level - self.first) * _CELLS + ((self.base_count >> level) - 1) % RING]

    def ring(self, level: int, most: int = RING) -> array[int]:
        """Return the newest blocks of a level, oldest first."""
        begin = (level - self.first) * _CELLS
        total = self.base_count >> level
        head = total % RING
        if total >= RING:
            cells = self._cells[begin + head : begin + RING] + self._cells[begin : begin + head]
        else:
            cells = self._cells[begin : begin + total]
        return cells if most >= len(cells) else cells[-most:]

    def highs_of(self, level: int) -> array[int]:
        """Return the highest blocks that fell out of a level's ring, one for each of the `SLOTS`."""
        begin = (level - self.first) * _CELLS
        return self._cells[begin + RING : begin + _CELLS]

    def enter_slot(self, end_seconds: float) -> None:
        """Forget the highs that are 48 h old when a block ends at this time."""
        slot = int(end_seconds // SLOT_SECONDS)
        for number in range(max(self.slot + 1, slot - SLOTS + 1), slot + 1):
            for level in self.begun:
                self._cells[(level - self.first) * _CELLS + RING + number % SLOTS] = 0
        self.slot = max(self.slot, slot)

    def push(self, value: int) -> int:
        """Add a block at the lowest level; the highest level that got a new block from it."""
        first = self.first
        self.base_count += 1 << first
        level, index = first, (self.base_count >> first) - 1
        while True:
            self._put(level, index, value)
            if index % 2 == 0 or level == LEVELS - 1:
                self._update_recent_low()
                return level
            # The second of a pair: both go up as one.
            value = min(value, self._cells[(level - first) * _CELLS + (index - 1) % RING])
            level, index = level + 1, index // 2

    def push_empty(self, count: int) -> None:
        """Add so many blocks without a reading: the same as one by one, at a bounded cost for a gap of any length."""
        before = self.base_count
        self.base_count += count << self.first
        first = EMPTY  # the only block of those to be added that may not be empty
        for level in range(self.first, LEVELS):
            begin, end = before >> level, self.base_count >> level
            if begin == end:
                break
            place = (level - self.first) * _CELLS + (begin - 1) % RING
            waiting = self._cells[place] if begin % 2 else EMPTY
            self._put(level, begin, first)
            for index in range(max(begin + 1, end - RING), end):
                self._put(level, index, EMPTY)
            first = min(waiting, first)
        self._update_recent_low()

    def restore_level(self, level: int, ring: array[int], highs: array[int]) -> None:
        """Restore a level from what `ring` and `highs_of` returned, with the same `base_count`, levels in order.

        Raises ValueError where there are not as many as there must be.
        """
        if level >= self.levels or len(ring) != self.count(level) or len(highs) != SLOTS:
            raise ValueError("not the blocks of such a store")
        total = self.base_count >> level
        cells = array("I", bytes(4 * _CELLS))
        for place, value in enumerate(ring):
            cells[(total - len(ring) + place) % RING] = value
        cells[RING:] = highs
        self._cells = self._cells[: (level - self.first) * _CELLS] + cells
        if level == self.first:
            self._update_recent_low()

    def _update_recent_low(self) -> None:
        if self.first:
            return
        self.recent_low = min(self.ring(0, RECENT), default=EMPTY)

    def _put(self, level: int, index: int, value: int) -> None:
        """Store the block of this number; what had the place goes out, into the highs."""
        cells = self._cells
        begin = (level - self.first) * _CELLS
        if begin == len(cells):
            cells = self._cells = cells + array("I", bytes(4 * _CELLS))
        place = begin + index % RING
        oldest = cells[place]
        high = begin + RING + self.slot % SLOTS
        if oldest != EMPTY and oldest > cells[high]:
            cells[high] = oldest
        cells[place] = value
