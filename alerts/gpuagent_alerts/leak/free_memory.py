"""How fast the free memory of a GPU or MIG instance falls, over minutes: what a forecast of its processes is held to.

Memory that one process gives back while another takes it leaves the GPU as full as it was. The slopes of those who grow
do not show that; what is free does.
"""

from __future__ import annotations

from array import array
from typing import Final

SPACING_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 1800.0
_WINDOWS: Final = (120.0, 300.0, 600.0, 1200.0, LONGEST_SECONDS)
"""Several, so that neither a program that ended in one of them nor growth in steps hides a fall."""
_MOST: Final = int(LONGEST_SECONDS / SPACING_SECONDS) + 2


class FreeMemory:
    """What was free lately, a reading every half minute. A restart loses it."""

    __slots__ = ("_free", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._free = array("d")

    def add(self, time_seconds: float, free_bytes: float) -> None:
        """Take a reading; times must not go backwards."""
        if self._times and time_seconds - self._times[-1] < SPACING_SECONDS:
            return
        if len(self._times) >= _MOST:
            del self._times[0], self._free[0]
        self._times.append(time_seconds)
        self._free.append(free_bytes)

    def fastest_fall(self, time_seconds: float, free_bytes: float) -> float | None:
        """Return bytes a second by which it fell, in the window in which it fell fastest; None if none is known.

        0 or less: in none of them is less free than before.
        """
        falls = []
        for window in _WINDOWS:
            begin = next(
                (place for place in range(len(self._times) - 1, -1, -1) if time_seconds - self._times[place] >= window),
                None,
            )
            if begin is not None:
                falls.append((self._free[begin] - free_bytes) / (time_seconds - self._times[begin]))
        return max(falls, default=None)
