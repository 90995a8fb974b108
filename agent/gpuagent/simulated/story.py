"""The time of a scenario: 0 when the node came to be."""

from __future__ import annotations

import math
import threading

from gpuagent.core.clock import Clock


class Story:
    """Seconds since the beginning of the scenario, by the injected clock."""

    def __init__(self, clock: Clock, start: float | None = None) -> None:
        self.clock = clock
        self.start = clock.now() if start is None else start
        """What the clock said at time 0."""
        self._lock = threading.Lock()
        self._batch = (-math.inf, 0)

    def now(self) -> float:
        """Story time in seconds."""
        return self.clock.now() - self.start

    def wall_microseconds(self) -> int:
        """Unix time, as the driver stamps its values."""
        return int(self.clock.wall() * 1e6)

    def batch_stamp(self) -> int:
        """Unix microseconds at which the current full second of the story began.

        One per second, for every caller.
        """
        now = self.now()
        second = math.floor(now)
        with self._lock:
            if self._batch[0] != second:
                self._batch = (second, int((self.clock.wall() - (now - second)) * 1e6))
            return self._batch[1]
