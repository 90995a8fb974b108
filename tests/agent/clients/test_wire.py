"""The socket of one app: who sent what, and what is sent when the other end does not read."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from gpuagent.clients.wire import Wire, sender_pid
from tests.agent.clients.parts import until


def play(scene: Callable[[Wire, socket.socket], Awaitable[None]]) -> None:
    """Run a scene with both ends of a connection."""

    async def run() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        wire = Wire(ours, asyncio.get_running_loop(), socket.socket.close)
        with theirs:
            await scene(wire, theirs)
        wire.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("ancillary", "pid"),
    [
        ([(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", 7, 0, 0))], 7),
        ([(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("2i", 7, 0))], 0),
        ([(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 7, 0, 0))], 0),
        ([(socket.IPPROTO_IP, socket.SCM_CREDENTIALS, struct.pack("3i", 7, 0, 0))], 0),
        ([], 0),
    ],
    ids=["told", "cut off", "descriptors", "another level", "nothing"],
)
def test_the_sender_is_who_the_kernel_names(ancillary: list[tuple[int, int, bytes]], pid: int) -> None:
    """Whatever else may be attached is no sender: then it is nobody."""
    assert sender_pid(ancillary) == pid


def test_a_read_tells_its_sender() -> None:
    """The test's own process, over a pair of sockets."""

    async def scene(wire: Wire, theirs: socket.socket) -> None:
        theirs.send(b"hello")
        buffer = memoryview(bytearray(64))
        received = wire.receive(buffer)
        assert (bytes(buffer[: received.size_bytes]), received.pid, received.passes_more) == (
            b"hello",
            os.getpid(),
            False,
        )
        with pytest.raises(BlockingIOError):
            wire.receive(buffer)

    play(scene)


def test_what_the_kernel_does_not_take_is_sent_when_the_other_end_reads() -> None:
    """All of it, in order, and not a byte twice."""
    line = b"0123456789" * 100_000

    async def scene(wire: Wire, theirs: socket.socket) -> None:
        wire.open(lambda: None, lambda: None)
        wire.send(line)
        wire.send(b"end")
        assert wire.unsent_bytes > 0
        theirs.setblocking(False)
        come = b""
        while len(come) < len(line) + 3:
            come += await asyncio.get_running_loop().sock_recv(theirs, 65536)
        assert come == line + b"end"
        await until(lambda: wire.unsent_bytes == 0)

    play(scene)


def test_an_end_while_something_is_still_to_be_sent_is_told() -> None:
    """Else the rest would wait for ever; sending afterwards says so too, and a closed wire sends nothing."""

    async def scene(wire: Wire, theirs: socket.socket) -> None:
        wire.open(wire.pause_reading, wire.close)
        wire.send(b"x" * 10**6)
        theirs.close()
        await until(lambda: wire.closed)
        assert wire.unsent_bytes == 0
        wire.send(b"y")
        assert wire.unsent_bytes == 0

    play(scene)


def test_reading_can_be_paused() -> None:
    """What comes meanwhile is read afterwards."""

    async def scene(wire: Wire, theirs: socket.socket) -> None:
        read: list[int] = []
        buffer = memoryview(bytearray(64))
        wire.open(lambda: read.append(wire.receive(buffer).size_bytes), lambda: None)
        wire.pause_reading()
        theirs.send(b"12345")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert read == []
        wire.resume_reading()
        await until(lambda: read)
        assert read == [5]

    play(scene)
