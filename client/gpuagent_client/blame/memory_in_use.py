"""How many bytes the app has in use by device: whether memory goes on growing where no container can be asked.

Free memory that an allocator keeps does not count, so that a warm-up that has ended looks like one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from gpuagent_client.blame.lines import allocated_bytes
from gpuagent_client.blame.pause import resident_bytes

HOST = "cpu"
FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
MANY_OF_ANOTHER = 0.1
"""Part of the resident memory that glibc must know of: else another allocator has taken its place."""


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS)


@functools.lru_cache(maxsize=1)
def _mallinfo2() -> Callable[[], _MallocInfo] | None:
    try:
        found = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # another C library, or one before glibc 2.33
        return None
    found.restype = _MallocInfo
    found.argtypes = ()
    return found


def host_bytes() -> int:
    """Return the bytes that malloc has given out, or the resident memory where malloc does not tell."""
    resident = resident_bytes()
    ask = _mallinfo2()
    if ask is None:
        return resident
    info = ask()
    used = int(info.uordblks) + int(info.hblkhd)
    return used if used >= MANY_OF_ANOTHER * resident else resident


def bytes_in_use(torch: ModuleType) -> dict[str, int]:
    """Return the bytes in use, by device as torch calls it. Makes no CUDA context."""
    return {HOST: host_bytes(), **allocated_bytes(torch)}


def floor_rise(values: Sequence[int]) -> int:
    """Return by how much the lowest value of the second half is above that of the first: what comes and goes is not."""
    half = len(values) // 2
    return min(values[half:]) - min(values[:half]) if half else 0


def rises_on(values: Sequence[int], expected: float, besides: float) -> bool:
    """Return whether memory went on growing, by a part of what is expected and by all that is known `besides`.

    Both are over all of these values: from the first half of them to the second it is half of it.
    """
    return floor_rise(values) > (AGAIN_PART * expected + besides) / 2


AGAIN_PART = 0.3
Usage = Mapping[str, Sequence[int]]
"""Bytes in use, by device, at each moment of the watch."""


class UsageSeries:
    """Series of the bytes in use."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.values: dict[str, list[int]] = {}

    def sample(self) -> None:
        """Ask once."""
        for device, used in bytes_in_use(self._torch).items():
            self.values.setdefault(device, []).append(used)
