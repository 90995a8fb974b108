"""The rule of the gate: what is growth to look into, and what is growth that does not stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

Figures = Mapping[str, Optional[int]]
"""What is held after some calls, by device, in bytes; None where it could not be read."""
Part = Sequence[Figures]
"""What was read in the course of a part of the run."""
NODES = "autograd graphs"
"""Name of the figure that counts nodes of autograd graphs, which are in no allocator's figure."""
PARTS = 4
GRANULE_BYTES = 512
"""CUDA's caching allocator rounds each block up to this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""
LEAST_LAST_SHARE = 0.5
"""The last part must have grown by so much of what the parts before it did on average, else the growth slows down."""


class Growth(NamedTuple):
    """Growth of one figure in the calls that confirmed it."""

    name: str
    amount: int
    """In bytes, or nodes for `NODES`."""
    calls: int


def suspects(figures: Sequence[Figures], calls_in_part: int, allowed_bytes: int) -> list[str]:
    """Return the figures that grew in the second half of the run.

    `figures` has `PARTS + 1` entries: before the first part and after each one. The second half, and not the last part
    alone: what leaks in one call of ten does not grow in each part.
    """
    half = PARTS // 2
    return [
        name for name in _known(figures) if _grew(name, figures[half], figures[-1], half * calls_in_part, allowed_bytes)
    ]


def growing(names: Sequence[str], parts: Sequence[Part], calls_in_part: int, allowed_bytes: int) -> list[str]:
    """Return those of the figures that grew from each part to the next so far.

    The least of a part must be more than the most of the one before, by a granule: what goes up and down, as a cache of
    entries of different sizes does, rises from reading to reading by chance, but not so twelve times in a row.
    """
    known = set(_known([figures for part in parts for figures in part]))
    return [
        name
        for name in names
        if name in known
        and all(
            min(_values(name, after)) - max(_values(name, before)) >= _granule(name)
            and _grew(name, before[-1], after[-1], calls_in_part, allowed_bytes)
            for before, after in zip(parts, parts[1:])
        )
    ]


def confirmed(names: Sequence[str], parts: Sequence[Part], calls_in_part: int, allowed_bytes: int) -> list[Growth]:
    """Return those of the figures that grew in every part and did not slow down; GPUs first, then most growth.

    The first of `parts` is what was read before any of them.
    """
    found = []
    for name in growing(names, parts, calls_in_part, allowed_bytes):
        values = _values(name, [part[-1] for part in parts])
        before_last = (values[-2] - values[0]) / (len(values) - 2)
        if values[-1] - values[-2] >= before_last * LEAST_LAST_SHARE:
            found.append(Growth(name, values[-1] - values[0], calls_in_part * (len(values) - 1)))
    return sorted(found, key=lambda one: (one.name == NODES, one.name == "cpu", -one.amount))


def _values(name: str, part: Part) -> list[int]:
    return [figures[name] or 0 for figures in part]


def _granule(name: str) -> int:
    return GRANULE_BYTES if name.startswith("cuda") else 1


def _known(figures: Sequence[Figures]) -> list[str]:
    """Return the names that have a figure each time: a missing one is missing, and never zero."""
    names = dict.fromkeys(name for figure in figures for name in figure)
    return [name for name in names if all(figure.get(name) is not None for figure in figures)]


def _grew(name: str, before: Figures, after: Figures, calls: int, allowed_bytes: int) -> bool:
    step = (after[name] or 0) - (before[name] or 0)
    if name == NODES:
        return step > 0
    return step >= _granule(name) and step > allowed_bytes * calls
