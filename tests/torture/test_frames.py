"""A million frames of every kind at the door for apps: none of them costs more than its connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from gpuagent.clients.admission import Rate
from gpuagent.clients.protocol import Malformed, decode, read_message
from gpuagent.clients.registry import DROPPED, ClientLimits, ClientRegistry
from gpuagent.core.clock import SystemClock
from gpuagent.procfs.files import RealProc
from tests.alerts.remedies.processes import reader
from tests.torture import times
from tests.torture.frames import any_frame, corpus

FRAMES = times(100_000, 1_000_000)
_ENOUGH = Rate(1e12, 1e15)


def _descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Door:
    """A hub, and one connection that is made anew when it was ended."""

    def __init__(self) -> None:
        limits = ClientLimits(10**9, 10**9, _ENOUGH, _ENOUGH, _ENOUGH)
        self.registry = ClientRegistry(SystemClock(), reader(), RealProc(), limits)
        self.connections = 0
        self._theirs: socket.socket | None = None

    async def feed(self, frame: bytes) -> None:
        """Send a frame, and let the hub take all of it."""
        if self._theirs is None or not self.registry.connections:
            self.close()
            ours, self._theirs = socket.socketpair(socket.AF_UNIX)
            self._theirs.setblocking(False)
            self.registry.accept(ours)
            self.connections += 1
        left = memoryview(frame)
        while left and self.registry.connections:
            with contextlib.suppress(BlockingIOError, ConnectionError):  # full, or ended: the loop's turn
                left = left[self._theirs.send(left) :]
            await asyncio.sleep(0)

    def close(self) -> None:
        """Hang up."""
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_frames() -> None:
    """PROC-07: whatever comes is understood or dropped, counted, and leaves nothing behind."""

    async def run() -> None:
        chance = random.Random(4)
        before = _descriptors()
        door = Door()
        registry = door.registry
        for _ in range(FRAMES):
            await door.feed(any_frame(chance))
        door.close()
        registry.close()
        assert registry.accepted == door.connections
        assert set(registry.drops) == set(DROPPED)
        assert registry.drops["malformed"] + registry.refusals["pid"] > FRAMES / 10
        assert (registry.drops["failed"], registry.drops["sender"]) == (0, 0)
        assert registry.lines > FRAMES / 10, "too few frames were understood to say anything"
        assert (registry.connections, list(registry.clients)) == (0, [])
        assert _descriptors() <= before

    asyncio.run(run())


@pytest.mark.parametrize("number", range(len(corpus())))
def test_the_corpus(number: int) -> None:
    """PROC-07: each kept frame is understood, passed over or malformed, and nothing else."""
    for line in corpus()[number].split(b"\n"):
        try:
            said: Any = read_message(decode(line))
        except Malformed:
            continue
        assert said is None or type(said).__module__ == "gpuagent.clients.protocol"
