"""What connected apps tell, joined with a snapshot: under the names that the driver has for GPUs, and only while fresh.

torch names a device by its UUID without NVML's prefix. A MIG device's figures stand under the UUID of its GPU, as its
processes do: CUDA gives one process one MIG device (docs.nvidia.com, MIG User Guide, "CUDA visible devices").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuagent.clients.connection import Connection
from gpuagent.clients.protocol import Device
from gpuagent.core.snapshot import AllocatorReading, ClientReading, Snapshot

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
    """Return what each app tells, by pid, without apps whose pid the snapshot knows as another process.

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


def _only(devices: tuple[Device, ...], on: set[str]) -> str:
    """Return the GPU of an app with one device whose process is on one GPU: there it needs no name."""
    return next(iter(on)) if len(devices) == len(on) == 1 else ""
