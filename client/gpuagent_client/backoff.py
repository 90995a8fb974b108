"""When to look for the agent again: soon at first, then less and less often, and never all apps at the same moment."""

from __future__ import annotations

import random
from typing import Callable

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 10.0


class Backoff:
    """Doubles from 0.2 s to 10 s, each time by a random factor of 0.5 to 1.5."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._next = FIRST_SECONDS

    def failed(self) -> float:
        """The seconds to wait now."""
        delay = self._next
        self._next = min(2 * delay, LONGEST_SECONDS)
        return delay * self._uniform(0.5, 1.5)

    def succeeded(self) -> None:
        """Start over."""
        self._next = FIRST_SECONDS
