"""What a method said of a trace, and the reading of the trace that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.leak.trace import Trace


class Alarm(NamedTuple):
    """The moment at which a method began to say that there is a leak."""

    at_seconds: float
    exhaustion_seconds: float | None
    """When it thought, from then, that the memory would be gone."""


class Point(NamedTuple):
    """What a method that is given one figure a minute has."""

    time_seconds: float
    bytes: float
    free_bytes: float


def minutes(trace: Trace, *, client: bool) -> Iterator[Point]:
    """The last reading of each minute, as a scrape would have it; a minute without one is left out."""
    series = trace.samples.allocated if client and trace.client else trace.samples.used
    minute, last = -1.0, None
    for time, size, free in zip(trace.samples.times, series, trace.samples.free, strict=True):
        if time // 60 != minute and last is not None:
            yield last
            last = None
        minute = time // 60
        if size == size:  # noqa: PLR0124  a missing reading is NaN
            last = Point(time, size, free)
    if last is not None:
        yield last
