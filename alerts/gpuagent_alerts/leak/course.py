"""How the floor of a life went as a whole: whether it rises until now, as the lives of a leak that is restarted do.

A leak that a restart cuts short every night seldom takes enough, or evenly enough, for its own life to prove it. That
one life after the other rises to its end is another matter: a cache that is filled anew each day is full by then.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, RING, BlockStore

LIVES_ROSE: Final = "it has risen since its start, as lives of this service before did until their ends"
LEAST_SECONDS: Final = 6 * 3600.0
"""A shorter life is a start, and no course."""
_START: Final = 1 / 8
"""Part of a life that is its start."""
SECOND_HALF: Final = 0.2
"""Least share of the growth that the second half of a life has: of a straight line it has more than half."""
LAST_QUARTER: Final = 0.04
"""Least share that the last quarter has. Nights are quiet."""
LEAST_SHARE: Final = 0.17
"""Least growth, as a share of what is free and what it took of that: as of growth that is suspected."""
_TOLD: Final = 0.5
"""What is told by its course is told until it has less than this part of what was asked for."""


class Course(NamedTuple):
    """Growth of the floor since the start of a life."""

    pages: int
    seconds: float


def rising_course(
    store: BlockStore, free_bytes: float | None, least_growth_bytes: float, *, is_told: bool = False
) -> Course | None:
    """Return how far the floor has risen since the life's start; None where it does not rise until now.

    With `is_told` less is asked for, so that a quiet night ends nothing.
    A life that is longer than the blocks of the coarsest level reach back has no course.
    """
    level = store.first
    while store.base_count >> level > RING and level < store.levels - 1:
        level += 1
    blocks = store.ring(level) if store.levels else ()
    seconds = float((BLOCK_SECONDS << level) * len(blocks))
    if free_bytes is None or seconds < LEAST_SECONDS or store.base_count >> level > RING:
        return None
    floors = list(accumulate(reversed(blocks), min))[::-1]
    start, count = round(_START * len(floors)), len(floors)
    first, middle, late, last = floors[start], floors[count // 2], floors[3 * count // 4], floors[-1]
    if last == EMPTY:
        return None
    growth = last - first
    part = _TOLD if is_told else 1.0
    if growth * PAGE_BYTES < part * max(least_growth_bytes, LEAST_SHARE * (free_bytes + growth * PAGE_BYTES)):
        return None
    if last - middle < part * SECOND_HALF * growth or (not is_told and last - late < LAST_QUARTER * growth):
        return None
    return Course(growth, seconds * (count - start) / count)
