"""Serve embedded clients: open their socket, join what they tell with each tick, and tell them.

An app's own cache counts as room for that app: its allocator hands it out again without asking the driver.

What apps tell stands under the names that the driver has for GPUs, and only while it is fresh. torch names a device by
its UUID without NVML's prefix. A MIG device's figures stand under the UUID of its GPU, as its processes do: CUDA gives
one process one MIG device (docs.nvidia.com, MIG User Guide, "CUDA visible devices").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.clients.admission import SOCKET_NAME, Acceptor, open_client_socket
from gpuagent.clients.connection import Connection
from gpuagent.clients.protocol import AllocatorDevice, Message, encode
from gpuagent.clients.registry import MOST_WAITING, ClientLimits, ClientRegistry
from gpuagent.core.clock import Clock
from gpuagent.core.metrics.clients import ClientFigures
from gpuagent.core.snapshot import AllocatorReading, ClientReading, GpuReading, Snapshot
from gpuagent.procfs.containers import PodNames
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.machine import boot_time_seconds, own_namespace
from gpuagent.procfs.reader import BootContext, ProcessReader
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.users import UserNames
from gpuagent_exporters.http.listeners import ListenError, UnixListener, descriptors_refused

if TYPE_CHECKING:
    from gpuagent.config.models import Config

_LEAST_FRESH_SECONDS = 5.0
_FRESH_INTERVALS = 3
UNKNOWN_GPU = "it tells of a GPU that the driver does not list"
NAMELESS_GPU = "its torch does not tell which GPU its figures are of"


def fresh_seconds(interval_seconds: float) -> float:
    """Return how old figures may be to be believed, where they come this often."""
    return max(_LEAST_FRESH_SECONDS, _FRESH_INTERVALS * interval_seconds)


def read_clients(
    connections: Iterable[Connection], snapshot: Snapshot, *, now_seconds: float, speed: float = 1.0
) -> dict[int, ClientReading]:
    """Return the reading of each app, by pid, without apps whose pid the snapshot knows as another process.

    `speed` is that of the clock: in a simulation that runs faster, apps do not send more.
    """
    listed = list(connections)
    if not listed:
        return {}
    names = gpu_names(snapshot)
    on: dict[int, set[str]] = {}
    strangers: set[int] = set()
    ids = {connection.info.id.pid: connection.info.id for connection in listed if connection.info}
    for process in snapshot.processes:
        if process.pid in ids:
            on.setdefault(process.pid, set()).add(process.gpu_uuid)
            # A start below 0 stands for one that /proc hides: then there is nothing to compare.
            if process.info and process.info.id != ids[process.pid] and process.info.id.start_ticks >= 0:
                strangers.add(process.pid)
    found: dict[int, ClientReading] = {}
    for connection in listed:
        info = connection.info
        if info is None or info.id.pid in strangers:
            continue
        measured = connection.measured_seconds
        is_fresh = measured is not None and now_seconds - measured <= fresh_seconds(connection.pace_seconds) * speed
        found[info.id.pid] = _reading(connection, names, on.get(info.id.pid, set()), is_fresh=is_fresh)
    return found


def gpu_names(snapshot: Snapshot) -> dict[str, str]:
    """Return NVML's UUID of a GPU by each name that torch may have for it, or for one of its MIG devices."""
    names: dict[str, str] = {}
    for gpu in snapshot.gpus:
        names[_bare(gpu.identity.uuid)] = gpu.identity.uuid
        for instance in gpu.mig:
            names[_bare(instance.uuid)] = gpu.identity.uuid
    return names


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def _reading(connection: Connection, names: Mapping[str, str], on: set[str], *, is_fresh: bool) -> ClientReading:
    info, hello, stats = connection.info, connection.hello, connection.stats
    assert info is not None and hello is not None  # noqa: S101, PT018  it is a client
    devices: dict[str, AllocatorReading] = {}
    problem = ""
    if stats is not None and is_fresh:
        problem = stats.problem
        for device in stats.devices:
            uuid = names.get(_bare(device.uuid), "") if device.uuid else _only(stats.devices, on)
            if uuid:
                devices[uuid] = device.reading
            else:
                problem = problem or (UNKNOWN_GPU if device.uuid else NAMELESS_GPU)
    return ClientReading(
        id=info.id,
        app=hello.app,
        client_version=hello.client_version,
        torch_version=hello.torch_version,
        python_version=hello.python_version,
        backend=hello.backend,
        capabilities=hello.capabilities,
        measured_seconds=connection.measured_seconds,
        devices=devices,
        problem=problem,
        declared_minimum_bytes=hello.declared_minimum_bytes,
        declared_typical_bytes=hello.declared_typical_bytes,
        frameworks=hello.frameworks,
    )


def _only(devices: tuple[AllocatorDevice, ...], on: set[str]) -> str:
    """Return the GPU of an app with one device whose process is on one GPU: there it needs no name."""
    return next(iter(on)) if len(devices) == len(on) == 1 else ""


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


class FreeMemory:
    """Free memory on the node, and whether it has changed since it was last sent to all apps."""

    def __init__(self) -> None:
        self._told: Mapping[str, int] = {}

    def changed(self, snapshot: Snapshot) -> bool:
        """Return whether a GPU has come, gone, or has noticeably more or less free memory since this was last True."""
        free = _free(snapshot)
        totals = {gpu.identity.uuid: (gpu.memory.total_bytes or 0) for gpu in snapshot.gpus if gpu.memory}
        changed = free.keys() != self._told.keys() or any(
            abs(free_bytes - self._told[uuid]) >= _STEP_RATIO * totals[uuid] for uuid, free_bytes in free.items()
        )
        if changed:
            self._told = free
        return changed


def level_message(level: str, snapshot: Snapshot) -> Message:
    """Return the level message of an app: nothing that `nvidia-smi` would not show it."""
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

    def __init__(
        self, registry: ClientRegistry, directory: Path, clock: Clock, *, refuse_descriptors: bool = True
    ) -> None:
        """`refuse_descriptors` lets the kernel refuse them, where it can."""
        self.registry = registry
        self._refuse_descriptors = refuse_descriptors
        self.snapshot: Snapshot | None = None
        self._directory = directory
        self._clock = clock
        self._listener: UnixListener | None = None
        self._acceptor: Acceptor | None = None
        self._free_memory = FreeMemory()
        self._waiting: set[asyncio.Future[Snapshot]] = set()

    @property
    def listening(self) -> bool:
        """Whether apps can connect."""
        return self._acceptor is not None and not self.registry.disposer.is_full

    @property
    def socket_path(self) -> str:
        """Where apps connect; "" while none can."""
        return str(self._directory / SOCKET_NAME) if self.listening else ""

    async def open(self) -> None:
        """Listen; where that cannot be, say so in the log and as a metric."""
        try:
            self._listener = await asyncio.to_thread(
                open_client_socket, self._directory, refuse_descriptors=self._refuse_descriptors
            )
        except ListenError as error:
            log.warning("apps with the embedded client cannot connect: %s", error)
            return
        listening = self._listener.socket
        listening.listen(_QUEUED)
        self._acceptor = Acceptor(
            listening, self.registry.accept, self.registry.drop_unidentified, self.registry.connecting,
            lambda: self.registry.disposer.is_full,
        )  # fmt: skip
        log.info("embedded clients may connect to %s", self._directory / SOCKET_NAME)

    async def close(self) -> None:
        """End all connections. The apps notice, and look for the next agent."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        self.registry.close()
        if self._listener is not None:
            # Connections that were never accepted may have some. Who closes the last copy waits for them: the thread.
            refused = descriptors_refused(self._listener.socket)
            last = None if refused else os.dup(self._listener.socket.fileno())
            self._listener.close()
            if last is not None:
                self.registry.disposer.close_in_thread(last, "the listening socket")
            self._listener = None
        for waiting in self._waiting:
            waiting.cancel()

    def readings(self, snapshot: Snapshot) -> Mapping[int, ClientReading]:
        """Return what the apps tell, by pid, to go into this snapshot; and tell them how much room there is."""
        self.registry.observe(snapshot)
        found = read_clients(
            self.registry.clients,
            snapshot,
            now_seconds=self._clock.now(),
            speed=self._clock.speed,
        )
        self._push_levels(snapshot, found)
        return found

    def show(self, snapshot: Snapshot) -> None:
        """Publish the current snapshot to all who wait for one."""
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
        registry = self.registry
        return ClientFigures(
            listening=self.listening,
            clients=len(list(registry.clients)),
            accepted=registry.accepted,
            lines=registry.lines,
            events=registry.events,
            throttlings=registry.throttlings,
            refused=registry.refusals,
            dropped=registry.drops,
            commands=registry.commands,
        )

    def _push_levels(self, snapshot: Snapshot, readings: Mapping[int, ClientReading]) -> None:
        if not readings:
            return
        is_news = self._free_memory.changed(snapshot)
        lines: dict[str, bytes] = {}
        for connection in list(self.registry.clients):
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
        BootContext(boot_id, boot_time_seconds(), own_namespace()),
        users=UserNames(clock),
        redactor=Redactor(config.processes.redact),
        command=config.processes.command,
        pods=PodNames(clock),
    )
    registry = ClientRegistry(clock, reader, files, limits_of(config))
    registry.interval_seconds = config.clients.interval
    return ClientServer(registry, config.client_dir, clock)


def limits_of(config: Config) -> ClientLimits:
    """Return what apps may cost, by the configuration and by the descriptors that the agent may open.

    A connection takes two, its socket and a pidfd. Apps get a quarter of the descriptors at most, and connections that
    have not said hello a sixteenth: the rest is for /proc, pidfds of processes on GPUs, and HTTP.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ClientLimits(
        max_connections=max(1, min(config.clients.max_connections, descriptors // 8)),
        max_connections_per_user=config.clients.max_connections_per_user,
        max_waiting=max(1, min(MOST_WAITING, descriptors // 32)),
        may_attach=config.clients.attach == "allowed",
    )
