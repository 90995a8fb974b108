"""How many bytes the app has in use by device: whether memory goes on growing where no container can be asked.

Free memory that an allocator keeps does not count, so that a warm-up that has ended looks like one.
"""

from __future__ import annotations

import ctypes
import functools
import time
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


def malloc_bytes() -> int | None:
    """Return the bytes that glibc's malloc has given out; None where there is no such function.

    malloc goes through all its free memory for that, and lets no thread allocate meanwhile.
    """
    ask = _mallinfo2()
    if ask is None:
        return None
    info = ask()
    return int(info.uordblks) + int(info.hblkhd)


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


LONGEST_CPU_SECONDS = 0.005
"""CPU time of a call, after which malloc is asked no more; wall-clock time would count the load of the host too."""


class UsageSeries:
    """Series of the bytes in use: by malloc on the host, or the resident memory where malloc cannot be asked."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._devices: dict[str, list[int]] = {}
        self._resident: list[int] = []
        self._malloc: list[int] = []
        self._asks_malloc = True
        self.began = time.monotonic()

    @property
    def values(self) -> dict[str, list[int]]:
        """Bytes in use, by device as torch calls it; empty before the first sample."""
        host = self._malloc if self._asks_malloc else self._resident
        return {HOST: host, **self._devices} if host else {}

    def sample(self) -> None:
        """Measure once. Makes no CUDA context."""
        if not self._resident:
            self.began = time.monotonic()
        self._resident.append(resident_bytes())
        if self._asks_malloc:
            self._ask_malloc()
        for device, used in allocated_bytes(self._torch).items():
            self._devices.setdefault(device, []).append(used)

    def _ask_malloc(self) -> None:
        """Ask malloc; not again where the call is slow, or another allocator has most of the memory."""
        began = time.thread_time()
        used = malloc_bytes()
        if used is not None:
            self._malloc.append(used)
        is_slow = time.thread_time() - began > LONGEST_CPU_SECONDS
        self._asks_malloc = used is not None and used >= MANY_OF_ANOTHER * self._resident[-1] and not is_slow

    def part_of(self, since: float, until: float) -> float:
        """Return for which part of the time between two moments, by time.monotonic(), there are samples: 0 to 1."""
        return min(1.0, max(0.0, until - self.began) / (until - since)) if until > since else 1.0
