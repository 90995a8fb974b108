"""The process's own memory, kept to what it needs, and a reserve to let go of when there is no more.

Both are hints. A C library other than glibc has neither call, and all goes on without them.

malloc fails where the address space is limited (RLIMIT_AS) or where the kernel promises no more than it has
(vm.overcommit_memory=2); a cgroup's limit kills instead. An exception then may come from any line at all, asyncio's
and those of `logging` included, and one that comes out of asyncio's last resort would end the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import mmap
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

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

    def mlockall(self, flags: int) -> int:
        """Lock the pages of this process; 0 where that was done."""
        ...


def c_library() -> CLibrary:
    """Return this process's C library."""
    return cast("CLibrary", ctypes.CDLL(None))


def set_up_heap(library: CLibrary) -> None:
    """Have all threads share one heap, with no heap for large blocks; call it before any thread is started.

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


def trim_and_freeze(library: CLibrary) -> None:
    """Give back what a start or a reload took for a moment, and spare the collector what will stay.

    The collector no longer goes through some 90,000 objects (modules, functions, rules) that live as long as the
    process, which takes it tens of milliseconds each time, in the event loop.
    """
    gc.unfreeze()  # of an earlier time: what a reload replaced is garbage now
    freeze_gc()
    trim_heap(library)


def freeze_gc() -> None:
    """Freeze what is in use now: it mostly stays, so the collector no longer goes through it.

    Once things are as they will be: what is found in use by chance is never collected, should it ever hang in a circle.
    """
    gc.collect()
    gc.freeze()


def trim_heap(library: CLibrary) -> None:
    """Give what is free in the heap back to the kernel: 1.5 MiB with scrapes of 8 GPUs with 64 processes."""
    with suppress(AttributeError):
        library.malloc_trim(0)


_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
"""Of <sys/mman.h>, the same on x86 and Arm."""


def lock_pages(library: CLibrary) -> str:
    """Have no page of this process taken from it any more; return why that is not done, "" where it is.

    When memory is short the kernel drops pages of programs first, as they are on the disk: who has to act then must not
    wait for the disk that everybody waits for. Pages are locked as they are used (MCL_ONFAULT), so it takes no more
    memory than before. Under a finite limit any later mapping might fail, so none is touched.
    """
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return "the limit of locked memory is finite (LimitMEMLOCK= of the unit)"
    try:
        failed = library.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT)
    except AttributeError:
        return "the C library has no mlockall"
    return "the kernel refuses it" if failed else ""


_RESERVE_BYTES = 16 * 2**20
"""Two answers to a scrape and the stack of a thread (8 MiB). Addresses only: no page of it is ever touched."""
_AGAIN_SECONDS = 5.0
"""At once it would be taken from the next request: whatever finds no memory is broken off."""


class Reserve:
    """Memory that is kept for when there is none."""

    def __init__(self, size_bytes: int = _RESERVE_BYTES, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._size_bytes = size_bytes
        self._seconds = monotonic
        self._again_seconds = 0.0
        self._held: mmap.mmap | None = None
        self.restore()

    @property
    def held(self) -> bool:
        """Whether there is something to let go of."""
        return self._held is not None

    def restore(self) -> None:
        """Have one again, some time after it was let go of, and where that can be."""
        if self._held is None and self._seconds() >= self._again_seconds:
            with contextlib.suppress(OSError, MemoryError):
                self._held = mmap.mmap(-1, self._size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def release(self) -> None:
        """Let go of it: what failed for want of memory will not fail when it is tried again."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
            self._again_seconds = self._seconds() + _AGAIN_SECONDS


def endure(loop: asyncio.AbstractEventLoop, reserve: Reserve) -> None:
    """Have this loop go on where memory runs out, instead of ending with what its log cannot say."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), MemoryError):
            reserve.release()
        with contextlib.suppress(MemoryError):
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
