"""A bounded queue before the GPU: it says no at once, where an unbounded one would say so by running out of memory."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Full(Exception):
    """As many wait as may wait."""


class Gate:
    """Lets `inside` requests in at a time, and `waiting` more wait."""

    def __init__(self, inside: int, waiting: int) -> None:
        self._places = asyncio.Semaphore(inside)
        self._room = inside + waiting
        self._present = 0

    async def __aenter__(self) -> None:
        if self._present >= self._room:
            raise Full
        self._present += 1
        try:
            await self._places.acquire()
        except asyncio.CancelledError:  # the caller has hung up
            self._present -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._present -= 1
        self._places.release()
