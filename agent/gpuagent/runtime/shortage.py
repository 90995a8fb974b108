"""When there is no more memory: let go of a reserve, say so in one line, and go on.

malloc fails where the address space is limited (RLIMIT_AS) or where the kernel promises no more than it has
(vm.overcommit_memory=2); a cgroup's limit kills instead. An exception then may come from any line at all, asyncio's
and those of `logging` included, and one that comes out of asyncio's last resort would end the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import time
from collections.abc import Callable
from typing import Any

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
