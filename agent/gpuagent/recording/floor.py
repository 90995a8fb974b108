"""What is held and not given back again, of a recording of any length, in a bounded number of figures."""

from __future__ import annotations

import math
from typing import NamedTuple

_MOST_BLOCKS = 512


class Rise(NamedTuple):
    """How much more is held at the end than was at any time since."""

    bytes: float
    seconds: float


class FloorPath:
    """The lowest reading of each block of time. Blocks become longer as the recording does."""

    def __init__(self, block_seconds: float = 1.0) -> None:
        self._begin: float | None = None
        self._width = block_seconds
        self._lows: list[float] = []

    def add(self, seconds: float, value: float) -> None:
        """A reading; time does not go back."""
        if self._begin is None:
            self._begin = seconds
        while seconds - self._begin >= self._width * _MOST_BLOCKS:
            self._lows = [min(self._lows[place : place + 2]) for place in range(0, len(self._lows), 2)]
            self._width *= 2
        place = int((seconds - self._begin) / self._width)
        self._lows.extend([math.inf] * (place + 1 - len(self._lows)))
        self._lows[place] = min(self._lows[place], value)

    def last_half(self) -> Rise | None:
        """The rise over the second half, which leaves loading and warming up out; None for a recording of no length."""
        path = self._lows
        while path and path[-1] == math.inf:
            path = path[:-1]
        half = len(path) // 2
        if len(path) - half < 2:
            return None
        return Rise(path[-1] - min(path[half:]), (len(path) - 1 - half) * self._width)
