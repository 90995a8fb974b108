"""What kept the event loop: how long each of its callbacks took, and the garbage collector within them."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_LEAST_SECONDS = 0.0005
"""What took less is not remembered."""


class Turn(NamedTuple):
    """Something that the loop did in one go."""

    seconds: float
    cpu_seconds: float
    """Of the loop's thread; the rest it waited: for a processor, for another thread of its own, or for a disk."""
    what: str

    def __str__(self) -> str:
        return f"{self.what} {self.seconds * 1e3:.1f} ms ({self.cpu_seconds * 1e3:.1f} of CPU)"


class Turns:
    """Of the loop of this thread."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._collecting = (0.0, 0.0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the block runs, every callback is timed: there may be no other loop."""
        run: Callable[[asyncio.Handle], None] = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            begun, before = time.perf_counter(), time.thread_time()
            run(handle)
            self._note(begun, before, lambda: _name(handle))

        asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
        gc.callbacks.append(self._collected)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collected)
            asyncio.Handle._run = run  # type: ignore[method-assign,assignment]

    def clear(self) -> None:
        """Forget what was noted."""
        self._turns.clear()

    def longest(self, most: int = 3) -> list[Turn]:
        """The longest since `clear`, longest first."""
        return sorted(self._turns, reverse=True)[:most]

    def _note(self, begun: float, before: float, name: Callable[[], str]) -> None:
        seconds = time.perf_counter() - begun
        if seconds >= _LEAST_SECONDS:
            self._turns.append(Turn(seconds, time.thread_time() - before, name()))

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter(), time.thread_time()
        else:
            self._note(*self._collecting, lambda: f"garbage collection of generation {info['generation']}")


def _name(handle: asyncio.Handle) -> str:
    """Of a step of a task its coroutine, of anything else the function."""
    callback: Any = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner.get_name()))
    return str(getattr(callback, "__qualname__", None) or repr(callback)[:80])
