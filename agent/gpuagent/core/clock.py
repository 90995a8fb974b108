"""Clocks: one object, injected everywhere, so that a simulation can run faster than real time.

`Backoff` says when to try again: soon at first, then less and less often.
"""

from __future__ import annotations

import time
from typing import Protocol

CLOCK_STEP_SECONDS = 1.0
"""Difference between both clocks from which on the wall clock was set: less is how it is kept right all the time."""


class Clock(Protocol):
    """Two clocks: one for ages and holds that never goes back, one for time stamps that people read."""

    speed: float
    """Seconds of this clock per second of the machine's."""

    def now(self) -> float:
        """Return seconds that never go back and go on through a suspend."""
        ...

    def wall(self) -> float:
        """Unix time in seconds."""
        ...


class SystemClock:
    """CLOCK_BOOTTIME and the wall clock of the machine."""

    speed = 1.0

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()


class ScaledClock:
    """A clock that starts with the machine's and runs `speed` times as fast: for `--simulate --speed`."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._start = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._wall = time.time()

    def now(self) -> float:
        return self._start + (time.clock_gettime(time.CLOCK_BOOTTIME) - self._start) * self.speed

    def wall(self) -> float:
        return self._wall + self.now() - self._start


class ManualClock:
    """Clock that stands still until it is advanced: for tests and for soak runs."""

    speed = 1.0

    def __init__(self, now: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._now += seconds
        self._wall += seconds


class Backoff:
    """Double the delay from `first_seconds` to `longest_seconds`; `succeeded()` starts over."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._next = first_seconds
        self.due_at: float | None = None

    def failed(self, now: float) -> float:
        """Note a failure; returns the seconds until the next try is due."""
        delay = self._next
        self._next = min(delay * 2, self._longest)
        self.due_at = now + delay
        return delay

    def due(self, now: float) -> bool:
        """Return whether it is time: at once if nothing has failed yet."""
        return self.due_at is None or now >= self.due_at

    def succeeded(self) -> None:
        """Start over."""
        self._next = self._first
        self.due_at = None
