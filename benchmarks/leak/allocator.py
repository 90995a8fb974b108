"""A model of torch's caching allocator: what NVML sees of a process is what this holds, not what lives in it.

The rules are those that are published with the source,
https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize and the constants beside
it): sizes are rounded up to 512 B; up to 1 MiB they come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB,
and what is larger has a segment of its own, rounded up to 2 MiB. The smallest free block that is large enough is taken
and split where enough is left. A block that is freed merges with its free neighbors and stays with the process. When
the device has no more, segments that are wholly free are given back and the request is tried again.

Streams, private pools and expandable segments are not modeled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

KIB = 1024
MIB = 1024**2
_ROUND_BYTES = 512
_SMALL_BYTES = 1 * MIB
_SMALL_SEGMENT_BYTES = 2 * MIB
_LARGE_SEGMENT_BYTES = 20 * MIB
_OWN_SEGMENT_BYTES = 10 * MIB
_OWN_ROUND_BYTES = 2 * MIB


class OutOfMemory(Exception):
    """The device has no room, with everything given back that could be."""


class Block:
    """A piece of a segment, between its neighbors."""

    __slots__ = ("after", "before", "free", "order", "size", "small")

    def __init__(self, size: int, order: int, *, small: bool) -> None:
        self.size = size
        self.order = order
        """Ties between blocks of a size go to the older one, where torch takes the lower address."""
        self.small = small
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None


class CachingAllocator:
    """One process's allocator on one device, of which `room` tells the free bytes."""

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._order = 0
        # (size, order) of each free block, sorted, and the block by its order.
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, Block] = {}

    def allocate(self, size: int) -> Block:
        """A block of at least `size` bytes.

        Raises:
            OutOfMemory: with the process's state as it was, but for its cache.
        """
        size = max(_ROUND_BYTES, -(-size // _ROUND_BYTES) * _ROUND_BYTES)
        small = size <= _SMALL_BYTES
        block = self._take(size, small=small) or self._grow(size, small=small)
        left = block.size - size
        if left >= _ROUND_BYTES if small else left > _SMALL_BYTES:
            self._split(block, size)
        self.allocated_bytes += block.size
        return block

    def release(self, block: Block) -> None:
        """The block is no longer used; the process keeps it."""
        self.allocated_bytes -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._forget(before)
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._forget(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._keep(block)

    def empty_cache(self) -> None:
        """Give back the segments of which nothing is used."""
        for small in (True, False):
            for _, order in list(self._free[small]):
                block = self._blocks[order]
                if block.before is None and block.after is None:
                    self._forget(block)
                    self.reserved_bytes -= block.size

    def _take(self, size: int, *, small: bool) -> Block | None:
        free = self._free[small]
        place = bisect_left(free, (size, -1))
        if place == len(free):
            return None
        block = self._blocks.pop(free.pop(place)[1])
        block.free = False
        return block

    def _grow(self, size: int, *, small: bool) -> Block:
        if small:
            segment = _SMALL_SEGMENT_BYTES
        elif size < _OWN_SEGMENT_BYTES:
            segment = _LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // _OWN_ROUND_BYTES) * _OWN_ROUND_BYTES
        if self._room() < segment:
            self.empty_cache()
            if self._room() < segment:
                raise OutOfMemory
        self.reserved_bytes += segment
        return self._make(segment, small=small)

    def _split(self, block: Block, size: int) -> None:
        rest = self._make(block.size - size, small=block.small)
        block.size = size
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        self._keep(rest)

    def _make(self, size: int, *, small: bool) -> Block:
        self._order += 1
        return Block(size, self._order, small=small)

    def _keep(self, block: Block) -> None:
        block.free = True
        self._blocks[block.order] = block
        insort(self._free[block.small], (block.size, block.order))

    def _forget(self, block: Block) -> None:
        block.free = False
        del self._blocks[block.order]
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.order))]
