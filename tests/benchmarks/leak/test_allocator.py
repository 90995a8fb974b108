"""The allocator's model follows the published rules."""

from __future__ import annotations

import random

import pytest
from benchmarks.leak.allocator import KIB, MIB, Block, CachingAllocator, OutOfMemory


class Device:
    """So much memory, for one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.allocator = CachingAllocator(lambda: self.size - self.allocator.reserved_bytes)


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_sizes_and_segments(size: int, allocated: int, reserved: int) -> None:
    """512 B steps; 2 MiB segments up to 1 MiB, 20 MiB ones below 10 MiB, its own rounded to 2 MiB from there."""
    allocator = Device(1024 * MIB).allocator

    allocator.allocate(size)

    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_what_is_freed_stays_reserved_and_is_used_again() -> None:
    """NVML sees the high-water mark: this is why a leak is invisible while it eats the cache."""
    allocator = Device(1024 * MIB).allocator
    block = allocator.allocate(100 * MIB)
    allocator.release(block)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 100 * MIB)

    pieces = [allocator.allocate(30 * MIB) for _ in range(3)]

    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (90 * MIB, 100 * MIB)
    for piece in (pieces[1], pieces[0], pieces[2]):  # neighbors on either side and on both
        allocator.release(piece)
    assert allocator.allocate(100 * MIB).size == 100 * MIB
    assert allocator.reserved_bytes == 100 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    """Best fit."""
    allocator = Device(1024 * MIB).allocator
    large, fits, _ = (allocator.allocate(size * MIB) for size in (60, 40, 20))
    allocator.release(large)
    allocator.release(fits)

    assert allocator.allocate(39 * MIB) is fits


def test_a_rest_of_one_mib_is_not_split_off() -> None:
    """Large blocks are split only where more than 1 MiB is left."""
    allocator = Device(1024 * MIB).allocator
    allocator.release(allocator.allocate(40 * MIB))

    assert allocator.allocate(39 * MIB).size == 40 * MIB


def test_the_cache_is_given_back_before_memory_is_out() -> None:
    """Wholly free segments go back to the device when it has no more; then memory is out."""
    allocator = Device(100 * MIB).allocator
    cached, held = allocator.allocate(40 * MIB), allocator.allocate(40 * MIB)
    allocator.release(cached)

    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == 100 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(KIB * KIB * 2)
    allocator.release(held)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 60 * MIB


def test_a_segment_in_part_used_is_not_given_back() -> None:
    """Fragmentation: one small tensor keeps 20 MiB."""
    allocator = Device(1024 * MIB).allocator
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    for block in blocks[1:]:
        allocator.release(block)

    allocator.empty_cache()

    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (4 * MIB, 20 * MIB)


def test_any_order_of_requests_keeps_the_account() -> None:
    """After thousands of requests of all sizes, what is held is what was asked for, and all of it can be given back."""
    rng, allocator = random.Random(7), Device(4096 * MIB).allocator
    held: list[Block] = []
    for _ in range(5000):
        if held and (rng.random() < 0.5 or len(held) > 60):
            allocator.release(held.pop(rng.randrange(len(held))))
        else:
            held.append(allocator.allocate(int(2 ** rng.uniform(4, 25))))
        assert allocator.allocated_bytes == sum(block.size for block in held) <= allocator.reserved_bytes

    for block in held:
        allocator.release(block)
    allocator.empty_cache()

    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)
