"""The process's own memory, kept to what it needs: hints to the C library and to the garbage collector.

Both are hints. A C library other than glibc has neither call, and all goes on without them.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Protocol, cast

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""Both of <malloc.h>."""
_LARGE_BYTES = 128 * 1024


class CLibrary(Protocol):
    """What is asked of glibc; of another C library's, an AttributeError is what comes of the asking."""

    def mallopt(self, parameter: int, value: int) -> int:
        """Set one of the allocator's parameters."""
        ...

    def malloc_trim(self, pad: int) -> int:
        """Give free memory back to the kernel."""
        ...


def c_library() -> CLibrary:
    """That of this process."""
    return cast("CLibrary", ctypes.CDLL(None))


def set_up_heap(library: CLibrary) -> None:
    """Before any thread is started: one heap for all of them, and none for large blocks.

    glibc gives threads heaps of their own, up to eight for each core, so that they need not wait for each other, as
    those of Python do anyway. Each has its own holes: after an hour of 8 GPUs with 64 processes they were 3.2 MiB in
    all, with one heap 0.9 (mallopt(3), M_ARENA_MAX).

    Blocks of 128 KiB and more are given back as soon as they are free: an answer to a scrape is one of 1 MiB. That is
    where glibc begins, but it moves its threshold up to the largest block that was ever freed, and from then on such
    blocks are cut from the heap and leave holes there (M_MMAP_THRESHOLD). Said once, it stays.
    """
    with suppress(AttributeError):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def settle(library: CLibrary) -> None:
    """After the start and after a reload: give back what that took for a moment, and look no more at what will stay.

    The collector no longer goes through some 90,000 objects (modules, functions, rules) that live as long as the
    process, which takes it tens of milliseconds each time, in the event loop.
    """
    gc.unfreeze()  # of an earlier time: what a reload replaced is garbage now
    look_no_more()
    give_back(library)


def look_no_more() -> None:
    """What is in use now mostly stays, so the collector no longer goes through it.

    Once things are as they will be: what is found in use by chance is never collected, should it ever hang in a circle.
    """
    gc.collect()
    gc.freeze()


def give_back(library: CLibrary) -> None:
    """What is free in the heap, back to the kernel: with scrapes of 8 GPUs with 64 processes, 1.5 MiB."""
    with suppress(AttributeError):
        library.malloc_trim(0)
