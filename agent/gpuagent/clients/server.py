"""The agent's side of embedded clients: their socket, what they tell at each tick, and what they are told.

An app's own cache counts as room for that app: its allocator hands it out again without asking the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.clients.figures import read_clients
from gpuagent.clients.hub import MOST_WAITING, Hub, Limits
from gpuagent.clients.listener import SOCKET_NAME, Acceptor, open_client_socket
from gpuagent.clients.protocol import Message, encode
from gpuagent.core.clock import Clock
from gpuagent.core.metrics.clients import ClientFigures
from gpuagent.core.snapshot import ClientReading, GpuReading, Snapshot
from gpuagent.procfs.boot import boot_time_seconds
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.namespace import own_namespace
from gpuagent.procfs.pods import PodNames
from gpuagent.procfs.reader import Boot, ProcessReader
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.users import UserNames
from gpuagent_exporters.http.listeners import ListenError, UnixListener

if TYPE_CHECKING:
    from gpuagent.config.models import Config


OK, WARNING, CRITICAL = "ok", "warning", "critical"
_THRESHOLDS = ((CRITICAL, 0.03), (WARNING, 0.10))
"""Share of the GPU that is left. 3 % of a 24 GiB card is 740 MiB: a CUDA context and one larger tensor."""
_RELIEF = 1.25
"""A level ends when there is so much more than began it: at the very threshold it would flap."""
_STEP_RATIO = 1 / 64
"""A change of less of the GPU is no news."""


def level_of(client: ClientReading, snapshot: Snapshot, before: str) -> str:
    """Return the level of the fullest GPU that the app uses; ok for one that uses none yet."""
    worst = OK
    for gpu in snapshot.gpus:
        reading = client.devices.get(gpu.identity.uuid)
        if reading is None or gpu.memory is None or not gpu.memory.total_bytes or gpu.memory.free_bytes is None:
            continue
        cached = max(0, (reading.reserved_bytes or 0) - (reading.allocated_bytes or 0))
        level = _level((gpu.memory.free_bytes + cached) / gpu.memory.total_bytes, before)
        worst = max(worst, level, key=_rank)
    return worst


def _level(left_ratio: float, before: str) -> str:
    for level, threshold in _THRESHOLDS:
        if left_ratio < threshold * (_RELIEF if _rank(before) >= _rank(level) else 1.0):
            return level
    return OK


def _rank(level: str) -> int:
    return (OK, WARNING, CRITICAL).index(level)


class Room:
    """What is free on the node, and whether that is news since it was last told to all."""

    def __init__(self) -> None:
        self._told: Mapping[str, int] = {}

    def news(self, snapshot: Snapshot) -> bool:
        """Return whether a GPU has come, gone, or has noticeably more or less room. What is news once is told."""
        free = _free(snapshot)
        totals = {gpu.identity.uuid: (gpu.memory.total_bytes or 0) for gpu in snapshot.gpus if gpu.memory}
        changed = free.keys() != self._told.keys() or any(
            abs(free_bytes - self._told[uuid]) >= _STEP_RATIO * totals[uuid] for uuid, free_bytes in free.items()
        )
        if changed:
            self._told = free
        return changed


def level_message(level: str, snapshot: Snapshot) -> Message:
    """Return what an app is told: nothing that `nvidia-smi` would not tell it."""
    known = [gpu for gpu in snapshot.gpus if _is_known(gpu)]
    return {
        "t": "level",
        "level": level,
        "free_bytes": _free(snapshot),
        "total_bytes": {gpu.identity.uuid: gpu.memory.total_bytes for gpu in known if gpu.memory},
        "names": {gpu.identity.uuid: gpu.identity.name for gpu in known},
    }


def _is_known(gpu: GpuReading) -> bool:
    return gpu.memory is not None and gpu.memory.free_bytes is not None and bool(gpu.memory.total_bytes)


def _free(snapshot: Snapshot) -> dict[str, int]:
    return {
        gpu.identity.uuid: gpu.memory.free_bytes
        for gpu in snapshot.gpus
        if _is_known(gpu) and gpu.memory and gpu.memory.free_bytes is not None
    }


log = logging.getLogger(__name__)

_QUEUED = 1024
"""All apps of a node come back at the same moment when the agent starts again; the kernel keeps them waiting."""


class ClientServer:
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
        """Listen; where that cannot be, say so in the log and as a metric."""
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
        """Put other limits and another interval in force."""
        self.hub.use(limits, interval_seconds)

    def readings(self, snapshot: Snapshot) -> Mapping[int, ClientReading]:
        """Return what the apps tell, by pid, to go into this snapshot; and tell them how much room there is."""
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
        """Publish the snapshot that now holds to whoever waits for one."""
        self.snapshot = snapshot
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(snapshot)

    async def next_snapshot(self, timeout_seconds: float) -> Snapshot | None:
        """Return the next one; None if there is none in that time."""
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(future, timeout_seconds)
            return None
        finally:
            self._waiting.discard(future)

    def figures(self) -> ClientFigures:
        """Return the figures for the metrics."""
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


def client_server(config: Config, clock: Clock, boot_id: str) -> ClientServer:
    """Build the server over the machine's own /proc, also where the GPUs are simulated: apps that connect are real."""
    files = RealProc()
    reader = ProcessReader(
        files,
        Boot(boot_id, boot_time_seconds(), own_namespace()),
        users=UserNames(clock),
        redactor=Redactor(config.processes.redact),
        command=config.processes.command,
        pods=PodNames(clock),
    )
    hub = Hub(clock, reader, files, limits_of(config))
    hub.interval_seconds = config.clients.interval
    return ClientServer(hub, config.client_dir, clock)


def limits_of(config: Config) -> Limits:
    """Return what apps may cost, by the configuration and by the descriptors that the agent may open.

    A connection takes two, its socket and a pidfd. Apps get a quarter of the descriptors at most, and connections that
    have not said hello a sixteenth: the rest is for /proc, pidfds of processes on GPUs, and HTTP.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Limits(
        max_connections=max(1, min(config.clients.max_connections, descriptors // 8)),
        max_connections_per_user=config.clients.max_connections_per_user,
        max_waiting=max(1, min(MOST_WAITING, descriptors // 32)),
    )
