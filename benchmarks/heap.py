"""Where a process's memory is: what the kernel, the C library and the interpreter say, of the process that asks."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc (mallinfo(3))."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
            "keepcost",
        )
    )


@dataclass(frozen=True)
class Heap:
    """At one moment, in bytes."""

    resident_bytes: int
    anonymous_bytes: int
    """Of the resident: not of a file, so nobody else's."""
    used_bytes: int
    """What the C library has handed out, large blocks with a mapping of their own too."""
    free_bytes: int
    """What it holds in store: holes, as far as they were not given back."""
    python_blocks: int
    """Small pieces of Python objects that are in use. The interpreter has them from the kernel, not from malloc."""


def heap() -> Heap:
    """Of this process, now. For glibc."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    told = mallinfo2()
    rollup = dict(line.split(":", 1) for line in _ROLLUP.read_text(encoding="ascii").splitlines()[1:])
    return Heap(
        resident_bytes=int(rollup["Rss"].split()[0]) * 1024,
        anonymous_bytes=int(rollup["Anonymous"].split()[0]) * 1024,
        used_bytes=told.uordblks + told.hblkhd,
        free_bytes=told.fordblks,
        python_blocks=sys.getallocatedblocks(),
    )
