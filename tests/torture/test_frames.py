"""A million frames of every kind at the door for apps: none of them costs more than its connection."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from gpuagent.clients.allowance import Rate
from gpuagent.clients.connection import Connection
from gpuagent.clients.frames import Malformed, decode
from gpuagent.clients.hub import Hub, Limits
from gpuagent.clients.messages import read_message
from gpuagent.clock import SystemClock
from gpuagent.procfs.files import RealProc
from tests.agent.acting.processes import reader
from tests.torture import times
from tests.torture.frames import any_frame, corpus

FRAMES = times(100_000, 1_000_000)
_ENOUGH = Rate(1e12, 1e15)


def _descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Wire(asyncio.Transport):
    """What a connection writes to; it is never slow, and knows when it was ended."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert bytes(data).endswith(b"\n")

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""


class Door:
    """A hub, and one connection that is made anew when it was ended."""

    def __init__(self, sock: socket.socket) -> None:
        limits = Limits(10**9, 10**9, _ENOUGH, _ENOUGH, _ENOUGH)
        self.hub = Hub(SystemClock(), reader(), RealProc(), limits)
        self.connections = 0
        self._sock = sock
        self._wire: Wire | None = None
        self._connection: Connection | None = None

    def feed(self, frame: bytes) -> None:
        if self._wire is None or self._connection is None or self._wire.ended:
            self._wire, self._connection = Wire(self._sock), self.hub.protocol()
            self._connection.connection_made(self._wire)
            self.connections += 1
        buffer = self._connection.get_buffer(-1)
        for start in range(0, len(frame), len(buffer)):
            piece = frame[start : start + len(buffer)]
            buffer[: len(piece)] = piece
            self._connection.buffer_updated(len(piece))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_frames() -> None:
    """PROC-07: whatever comes is understood or dropped, counted, and leaves nothing behind."""

    async def run() -> None:
        chance = random.Random(4)
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        with ours, theirs:
            door = Door(ours)
            before = _descriptors()
            for number in range(FRAMES):
                door.feed(any_frame(chance))
                if number % 1000 == 0:
                    await asyncio.sleep(0)  # the loop's own turn: timers, readers
            door.hub.close()
            await asyncio.sleep(0)
            hub = door.hub
            assert hub.accepted == door.connections
            assert set(hub.drops) == {"flood", "malformed", "replaced", "silent", "stalled"}
            assert hub.drops["malformed"] + hub.refusals["pid"] > FRAMES / 10
            assert hub.lines > FRAMES / 10, "too few frames were understood to say anything"
            assert (hub.connections, list(hub.clients)) == (0, [])
            assert _descriptors() == before

    asyncio.run(run())


@pytest.mark.parametrize("number", range(len(corpus())))
def test_the_corpus(number: int) -> None:
    """PROC-07: each kept frame is understood, passed over or malformed, and nothing else."""
    for line in corpus()[number].split(b"\n"):
        try:
            said: Any = read_message(decode(line))
        except Malformed:
            continue
        assert said is None or type(said).__module__ == "gpuagent.clients.messages"
