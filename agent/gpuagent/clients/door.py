"""The agent's side of embedded clients: their socket, what they tell at each tick, and what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from gpuagent.catalogue.clients import ClientFigures
from gpuagent.clients.accept import Acceptor
from gpuagent.clients.figures import read_clients
from gpuagent.clients.frames import encode
from gpuagent.clients.hub import Hub, Limits
from gpuagent.clients.pressure import Room, level_message, level_of
from gpuagent.clients.socket_file import SOCKET_NAME, open_client_socket
from gpuagent.clock import Clock
from gpuagent.embedded import ClientReading
from gpuagent.reading import Snapshot
from gpuagent_exporters.listeners import ListenError, UnixListener

log = logging.getLogger(__name__)

_QUEUED = 1024
"""All apps of a node come back at the same moment when the agent starts again; the kernel keeps them waiting."""


class ClientDoor:
    """Open or not, it answers: without its socket there are no clients, and everything else goes on."""

    def __init__(self, hub: Hub, directory: Path, clock: Clock) -> None:
        self.hub = hub
        self.snapshot: Snapshot | None = None
        self._directory = directory
        self._clock = clock
        self._listener: UnixListener | None = None
        self._acceptor: Acceptor | None = None
        self._room = Room()
        self._waiting: set[asyncio.Future[Snapshot]] = set()

    @property
    def listening(self) -> bool:
        """Whether apps can connect."""
        return self._acceptor is not None

    async def open(self) -> None:
        """Listen. Where that cannot be, it is said in the log and as a metric."""
        try:
            self._listener = await asyncio.to_thread(open_client_socket, self._directory)
        except ListenError as error:
            log.warning("apps with the embedded client cannot connect: %s", error)
            return
        listening = self._listener.socket
        listening.listen(_QUEUED)
        self._acceptor = Acceptor(listening, self.hub.accept, self.hub.drop_waiting, self.hub.connecting)
        log.info("embedded clients may connect to %s", self._directory / SOCKET_NAME)

    async def close(self) -> None:
        """End all connections. The apps notice, and look for the next agent."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        self.hub.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for waiting in self._waiting:
            waiting.cancel()

    def use(self, limits: Limits, interval_seconds: float) -> None:
        """Other limits, and another interval."""
        self.hub.use(limits, interval_seconds)

    def readings(self, snapshot: Snapshot) -> Mapping[int, ClientReading]:
        """What the apps tell, by pid, to go into this snapshot; and tell them how much room there is."""
        self.hub.observe(snapshot)
        found = read_clients(
            self.hub.clients,
            snapshot,
            now_seconds=self._clock.now(),
            speed=self._clock.speed,
        )
        self._tell(snapshot, found)
        return found

    def show(self, snapshot: Snapshot) -> None:
        """The snapshot that now holds, whole: whoever waits for one is told."""
        self.snapshot = snapshot
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(snapshot)

    async def next_snapshot(self, timeout_seconds: float) -> Snapshot | None:
        """The next one; None if there is none in that time."""
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(future, timeout_seconds)
            return None
        finally:
            self._waiting.discard(future)

    def figures(self) -> ClientFigures:
        """For the metrics."""
        hub = self.hub
        return ClientFigures(
            listening=self.listening,
            clients=len(list(hub.clients)),
            accepted=hub.accepted,
            lines=hub.lines,
            events=hub.events,
            throttlings=hub.throttlings,
            refused=hub.refusals,
            dropped=hub.drops,
            commands=hub.commands,
        )

    def _tell(self, snapshot: Snapshot, readings: Mapping[int, ClientReading]) -> None:
        if not readings:
            return
        is_news = self._room.news(snapshot)
        lines: dict[str, bytes] = {}
        for connection in list(self.hub.clients):
            reading = readings.get(connection.peer.pid)
            if reading is None:
                continue
            level = level_of(reading, snapshot, connection.level)
            if level == connection.level and connection.informed and not is_news:
                continue
            connection.level, connection.informed = level, True
            if level not in lines:
                lines[level] = encode(level_message(level, snapshot))
            connection.send(lines[level])
