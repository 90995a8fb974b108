"""Who a client is, is read apart from the event loop: a process that hangs holds up its own user's apps alone."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from gpuagent.clients.identification import MOST_OF_USER, PeerIdentifier
from gpuagent.clients.wire import Peer, RefusedPeer
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.reader import BootContext, ProcessReader, ProcessRecord
from gpuagent.procfs.redact import Redactor
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.fakes.embedded import hello, stats
from tests.fakes.proc import FakeProc

HANGING = range(100, 200)


class HangingReader(ProcessReader):
    """Reads this process for any pid; of some pids a look does not come back before `answer` is set."""

    def __init__(self, *hanging: int) -> None:
        super().__init__(RealProc(), BootContext("boot", 0.0, 0), users=str, redactor=Redactor(()))
        self.answer = threading.Event()
        self.hanging = {*HANGING, *hanging}

    def read(self, pid: int) -> ProcessRecord:
        if pid in self.hanging:
            self.answer.wait()
        found = super().read(os.getpid())
        return found._replace(info=replace(found.info, id=found.info.id._replace(pid=pid)))


@pytest.fixture
def reader() -> Iterator[HangingReader]:
    """One whose threads end with the test."""
    made = HangingReader(os.getpid())
    yield made
    made.answer.set()


def play(scene: Callable[[PeerIdentifier], Awaitable[None]], reader: HangingReader) -> list[float]:
    """Run a scene with short waits; returns the CPU seconds that were spent."""
    spent: list[float] = []
    files = FakeProc()
    for pid in (1, 2, *HANGING, *range(1000, 1300)):
        files.put(pid, status=b"Uid:\t5\t5\t5\t5\nNSpid:\t%d\n" % pid)

    async def run() -> None:
        async with asyncio.timeout(20):
            await scene(PeerIdentifier(reader, files, spent.append, patience_seconds=0.5))

    asyncio.run(run())
    return spent


async def ask(identifier: PeerIdentifier, pid: int, user: str) -> ProcessInfo:
    """Say hello as this process of this user."""
    return await identifier.identify(Peer(pid, 5, 5, -1), pid, user)


def test_a_user_whose_processes_hang_is_refused_alone(reader: HangingReader) -> None:
    """Few threads wait for a user's processes; others are told apart at once, and that user once they answer."""

    async def scene(identifier: PeerIdentifier) -> None:
        for pid in HANGING[:MOST_OF_USER]:
            with pytest.raises(RefusedPeer, match=f"pid {pid} .* hangs in the kernel") as refused:
                await ask(identifier, pid, "user 5")
            assert refused.value.reason == "hanging"
        with pytest.raises(RefusedPeer, match="processes of user 5 hang in the kernel"):
            await ask(identifier, 1, "user 5")
        assert (await ask(identifier, 2, "user 6")).id.pid == 2
        reader.answer.set()
        while True:
            try:
                assert (await ask(identifier, 1, "user 5")).id.pid == 1
            except RefusedPeer:
                continue
            break

    assert len(play(scene, reader)) == 2


def test_a_process_that_connects_anew_while_it_is_read(reader: HangingReader) -> None:
    """Two looks at one process go on at the same time: each has its answer."""

    async def scene(identifier: PeerIdentifier) -> None:
        both = [asyncio.create_task(ask(identifier, HANGING[0], "user 5")) for _ in range(2)]
        await asyncio.sleep(0)
        reader.answer.set()
        assert [(await one).id.pid for one in both] == [HANGING[0]] * 2

    assert len(play(scene, reader)) == 2


def test_many_of_one_user_are_told_apart_in_turn(reader: HangingReader) -> None:
    """Apps that come back at once, when the agent has started again, are all admitted."""

    async def scene(identifier: PeerIdentifier) -> None:
        found = await asyncio.gather(*(ask(identifier, pid, "user 5") for pid in range(1000, 1300)))
        assert len(found) == 300

    assert len(play(scene, reader)) == 300


def test_the_loop_goes_on_while_a_hello_hangs(reader: HangingReader) -> None:
    """Nothing waits for a process that keeps /proc from answering, and its connection ends with the reason."""

    async def scene(opened: Stage) -> None:
        opened.registry._identifier = PeerIdentifier(reader, RealProc(), lambda _: None, patience_seconds=0.05)
        app = await opened.app()
        app.send(hello())
        await until(lambda: opened.registry.refusals["hanging"])
        assert await in_thread(app.receive) == {}
        app.close()

    asyncio.run(_staged(scene))


def test_what_follows_a_hello_at_once_is_heard() -> None:
    """Figures and events that come in one piece with the hello are taken after it, in order."""

    async def scene(opened: Stage) -> None:
        app = await opened.app()
        lines = (hello(), {"t": "unheard of"}, *(stats(init=known) for known in (True, False)))
        app.send(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        assert (await in_thread(app.receive))["t"] == "welcome"
        await until(lambda: opened.registry.lines == len(lines))
        (client,) = opened.registry.clients
        assert client.stats is not None
        assert not client.stats.initialized
        app.close()

    asyncio.run(_staged(scene))


async def _staged(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async with asyncio.timeout(30), stage() as opened:
        await scene(opened)
