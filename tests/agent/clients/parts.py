"""A door that apps can really connect to, in a folder of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpuagent.clients.admission import SOCKET_NAME
from gpuagent.clients.commands import ClientCommands
from gpuagent.clients.registry import ClientLimits, ClientRegistry
from gpuagent.clients.server import ClientServer
from gpuagent.core.clock import ManualClock
from gpuagent.core.snapshot import Snapshot
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.reader import BootContext, ProcessReader
from gpuagent.procfs.redact import Redactor
from tests.fakes.embedded import FakeApp

T = TypeVar("T")
PATIENCE_SECONDS = 20.0


@dataclass
class Stage:
    """What a test holds in its hands."""

    door: ClientServer
    clock: ManualClock
    path: Path

    @property
    def registry(self) -> ClientRegistry:
        return self.door.registry

    @property
    def commands(self) -> ClientCommands:
        return ClientCommands(self.door, self.clock)

    async def app(self) -> FakeApp:
        """A connection that has been accepted: a thread's work, for the agent's loop is this one."""
        before = self.registry.accepted
        app = await in_thread(lambda: FakeApp(self.path))
        await until(lambda: self.registry.accepted > before)
        return app

    async def client(self, **changes: object) -> FakeApp:
        """An app that has been welcomed."""
        app = await self.app()
        assert (await in_thread(lambda: app.meet(**changes))).get("t") == "welcome"
        return app

    async def tick(self, snapshot: Snapshot) -> Snapshot:
        """As the service does it."""
        whole = dataclasses.replace(snapshot, clients=self.door.readings(snapshot))
        self.door.show(whole)
        await asyncio.sleep(0)
        return whole


@asynccontextmanager
async def stage(
    limits: ClientLimits | None = None, interval_seconds: float = 1.0, *, refuse_descriptors: bool = True
) -> AsyncIterator[Stage]:
    """A door that is open. At the end nothing is left of any connection."""
    clock = ManualClock()
    files = RealProc()
    reader = ProcessReader(files, BootContext("boot", 0.0, 0), users=str, redactor=Redactor(()))
    registry = ClientRegistry(clock, reader, files, limits)
    registry.interval_seconds = interval_seconds
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:
        directory = Path(folder, "clients")
        door = ClientServer(registry, directory, clock, refuse_descriptors=refuse_descriptors)
        await door.open()
        assert door.listening
        try:
            yield Stage(door, clock, directory / SOCKET_NAME)
        finally:
            await door.close()
            assert (registry.connections, list(registry.clients)) == (0, [])


async def in_thread(work: Callable[[], T]) -> T:
    """What a client does, while the agent's loop goes on."""
    return await asyncio.wait_for(asyncio.to_thread(work), PATIENCE_SECONDS)


async def until(look: Callable[[], object]) -> None:
    """Until that is so: what the loop has been told of is done within its next turns."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not look():  # noqa: ASYNC110  what is looked at tells nobody
            await asyncio.sleep(0.002)
