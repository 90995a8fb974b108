"""How fast the free memory of a GPU or MIG instance falls, over minutes: what a forecast of its processes is held to.

Memory that one process gives back while another takes it leaves the GPU as full as it was. The slopes of those who grow
do not show that; what is free does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

SPACING_SECONDS: Final = 30.0
_WINDOWS: Final = (120.0, 300.0, 600.0, 1200.0, 1800.0)
"""Several, so that neither a program that ended in one of them nor growth in steps hides a fall."""
LONGEST_SECONDS: Final = 14_400.0
_LONG_WINDOWS: Final = (3600.0, 7200.0, LONGEST_SECONDS)
"""Those of growth in steps that are hours apart: only where none of the others has a fall."""
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
        fall = self._fastest(_WINDOWS, time_seconds, free_bytes)
        if fall is not None and fall <= 0:
            long = self._fastest(_LONG_WINDOWS, time_seconds, free_bytes)
            return fall if long is None else max(fall, long)
        return fall

    def _fastest(self, windows: Sequence[float], time_seconds: float, free_bytes: float) -> float | None:
        falls = []
        for window in windows:
            begin = bisect_right(self._times, time_seconds - window) - 1
            if begin >= 0:
                falls.append((self._free[begin] - free_bytes) / (time_seconds - self._times[begin]))
        return max(falls, default=None)
