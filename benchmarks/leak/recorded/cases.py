"""What is recorded: the example app, healthy or with one of its leaks, each under its own traffic."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.leak.recorded.traffic import Pattern

CACHE_ENTRIES = 100
"""Of the example's bounded cache, as it comes."""


class Case(NamedTuple):
    """One app on one GPU."""

    name: str
    """Of the file; those of a leak begin with `leak-`."""
    pattern: Pattern
    room_mib: int
    """Free on its GPU when the recording begins."""
    leak: str = ""
    cache_entries: int = CACHE_ENTRIES


# A request of `outputs` and `no_grad` leaves 25 KiB behind, of the others 5 to 10: the rates are such that the room is
# full after about 25 minutes.
CASES = (
    Case("leak-outputs", Pattern(6.5), 256, "outputs"),
    Case("leak-no_grad", Pattern(6.5, burst_seconds=90), 256, "no_grad"),
    Case("leak-cache", Pattern(24), 256, "cache"),
    Case("leak-hook", Pattern(12, day_seconds=600), 256, "hook"),
    Case("leak-exception", Pattern(17), 256, "exception"),
    Case("healthy-steady", Pattern(12), 256),
    Case("healthy-bursts", Pattern(8, burst_seconds=180), 256),
    Case("healthy-long-texts", Pattern(6, most_words=1000, day_seconds=900), 256),
    Case("healthy-cache", Pattern(12), 256, cache_entries=9000),  # bounded: it fills in 13 minutes, and stops
)
