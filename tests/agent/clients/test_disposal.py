"""Descriptors that a peer sends and whose close waits: the agent's loop never closes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpuagent.clients.disposal import MOST_HELD, SocketDisposer
from gpuagent.clients.wire import Wire
from gpuagent_exporters.http.listeners import descriptors_refused
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.agent.procfs.children import answer, child, say
from tests.fakes.embedded import hello

ATTACK = """
import json, os, socket, struct, sys, time
path, how, first = sys.argv[1:4]
message = json.loads(first); message["pid"] = os.getpid(); first = json.dumps(message).encode() + b"\\n"
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen()
sent = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
sent.setblocking(False)
try:
    while True:
        sent.send(b"x" * 65536)
except BlockingIOError:
    pass
sent.setblocking(True)
sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
app = socket.socket(socket.AF_UNIX); app.connect(path)
if how in ("after hello", "sender"):
    app.sendall(first)
    while b"\\n" not in app.recv(65536):
        pass
print("ready", flush=True)
sys.stdin.readline()
try:
    if how == "unread":  # the first line ends the connection, and the rest was not read
        app.send(b"no message\\n" + b"z" * 60000)
    if how == "sender" and os.fork():
        os.wait()
    else:
        flags = socket.MSG_OOB if how == "out of band" else 0
        socket.send_fds(app, [b"y"], [sent.fileno()], flags)
        if how == "sender":
            os._exit(0)
except OSError as error:
    print(error.strerror, flush=True)
    if how == "sender":
        os._exit(0)
else:
    sent.close()
    print("sent", flush=True)
sys.stdin.read()
"""
"""Sends the last reference to a TCP connection whose close waits for an hour, until this process ends."""
HOW = ["at once", "after hello", "unread", "out of band", "sender"]


def play(scene: Callable[[Stage], Awaitable[None]], *, refuse_descriptors: bool) -> None:
    """Run a scene on a stage, to its end."""

    async def run() -> None:
        async with asyncio.timeout(50), stage(refuse_descriptors=refuse_descriptors) as opened:
            await scene(opened)

    asyncio.run(run())


def closing_threads() -> int:
    """How many threads close what others have sent."""
    return sum(each.name == "close descriptors" for each in threading.enumerate())


@asynccontextmanager
async def attack(opened: Stage, how: str) -> AsyncIterator[str]:
    """Yield what an attacker reports, which ends afterwards."""
    with child(sys.executable, "-c", ATTACK, str(opened.path), how, json.dumps(hello(0))) as process:
        await in_thread(lambda: answer(process))
        say(process, b"\n")
        # The loop stands still: what is sent is to be the last reference.
        yield answer(process).decode().strip()
        process.kill()


@pytest.mark.parametrize("how", HOW)
def test_the_kernel_refuses_descriptors(how: str) -> None:
    """Since Linux 6.16 whoever would send one gets EPERM; the socket that is accepted inherits that."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.getsockopt(socket.SOL_SOCKET, 83)
        except OSError:
            pytest.skip("a kernel before 6.16 has no SO_PASSRIGHTS")

    async def scene(opened: Stage) -> None:
        async with attack(opened, how) as report:
            assert report in (
                {"Operation not permitted", "Broken pipe"} if how == "unread" else {"Operation not permitted"}
            )
            app = await opened.client()
            app.close()
        assert closing_threads() == 0

    play(scene, refuse_descriptors=True)


@pytest.mark.parametrize("how", HOW)
def test_a_close_that_waits_does_not_stop_the_loop(how: str) -> None:
    """Before: the connection ends and is counted, its user is refused while the close waits, and the loop goes on."""

    async def scene(opened: Stage) -> None:
        registry = opened.registry
        async with attack(opened, how) as report:
            assert report == "sent"
            await until(lambda: registry.drops["malformed"] == 1)
            await until(lambda: closing_threads() == 1)
            app = await opened.app()
            assert await in_thread(app.receive) == {}
            app.close()
            assert registry.refusals["descriptors"] == 1
            assert opened.door.listening
        await until(lambda: closing_threads() == 0)
        app = await opened.client()
        app.close()

    play(scene, refuse_descriptors=False)


def test_an_attack_is_over_when_the_agent_closes_its_socket() -> None:
    """A connection that nobody has accepted holds such a descriptor: closing the listening socket does not wait."""

    async def scene(opened: Stage) -> None:
        assert opened.door._acceptor is not None
        opened.door._acceptor.close()
        async with attack(opened, "at once") as report:
            assert report == "sent"
            await opened.door.close()
            await until(lambda: closing_threads() == 1)
        await until(lambda: closing_threads() == 0)

    play(scene, refuse_descriptors=False)


def test_an_account_has_one_thread_and_a_bound_closes_the_door() -> None:
    """Sockets of one user wait for one another; those of others are closed, and beyond a number nobody is accepted."""
    come = threading.Event()
    now = [0.0]
    closed: list[int] = []

    def close(descriptor: int) -> None:
        if descriptor in hanging:
            come.wait()
        closed.append(descriptor)
        os.close(descriptor)

    hanging = {os.open("/dev/null", os.O_RDONLY) for _ in range(MOST_HELD)}
    disposer = SocketDisposer(close=close, now=lambda: now[0])
    for descriptor in sorted(hanging):
        assert not disposer.is_full
        disposer.close_in_thread(descriptor, "user 1")
    assert disposer.is_full
    assert disposer.is_busy("user 1")
    assert closing_threads() == 1
    assert disposer.hanging() == []
    now[0] = 2.0
    assert (disposer.hanging(), disposer.hanging()) == (["user 1"], [])
    other = os.open("/dev/null", os.O_RDONLY)
    disposer.close_in_thread(other, "user 2")

    async def others() -> None:
        await until(lambda: not disposer.is_busy("user 2"))
        assert closed == [other]
        come.set()
        await until(lambda: not disposer.is_busy("user 1"))
        assert not disposer.is_full
        assert closed[1:] == sorted(hanging)

    asyncio.run(others())


@pytest.mark.parametrize("sends", ["nothing", "much", "descriptors"])
def test_what_is_left_in_a_socket(sends: str) -> None:
    """Without descriptors it is closed at once, whatever was sent; nobody can send into it meanwhile."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    handed: list[int] = []
    disposer = SocketDisposer(close=handed.append)
    if sends != "nothing":
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                theirs.send(b"x" * 100)
        ours.recv(50_000)
    if sends == "descriptors":
        socket.send_fds(theirs, [b"x"], [0])
    number = ours.fileno()
    assert not descriptors_refused(ours)
    disposer.dispose(ours, "user 1")

    async def look() -> None:
        if sends == "descriptors":
            await until(lambda: handed == [number])
            os.close(number)
        assert handed == ([number] if sends == "descriptors" else [])
        assert ours.fileno() == -1

    asyncio.run(look())
    theirs.close()


def test_a_read_before_a_message_with_descriptors_takes_neither() -> None:
    """The kernel would join them to one read: nothing is taken, and the connection has to end."""

    async def run() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        wire = Wire(ours, asyncio.get_running_loop(), socket.socket.close)
        buffer = memoryview(bytearray(64))
        theirs.send(b"before")
        assert wire.receive(buffer).size_bytes == 6
        theirs.send(b"before")
        socket.send_fds(theirs, [b"x"], [0])
        assert wire.receive(buffer).passes_more
        assert ours.recv(64) == b"beforex"
        wire.close()
        theirs.close()

    asyncio.run(run())
