"""GPUs that are full by design: it is no alarm where a server that preallocates holds one, or is about to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuagent.catalogue.frameworks import Recognise, framework_of
from gpuagent.embedded import ClientReading
from gpuagent.growth import MemoryKey
from gpuagent.reading import GpuReading, ProcessReading, Snapshot

_LEAST_SHARE = 0.5
"""Of the used memory: a GPU that is full because of others is full."""
_STARTS_SECONDS = 1800.0
"""A server takes its cache at once when it has loaded its weights, which takes a large model as long as this."""


def preallocated(
    gpus: Iterable[GpuReading],
    processes: Iterable[ProcessReading],
    clients: Mapping[int, ClientReading],
    recognise: Recognise,
) -> Iterator[tuple[GpuReading, bool]]:
    """For each GPU whose processes are known, whether such servers hold most of its used memory."""
    held: dict[str, int] = {}
    for process in processes:
        if process.info is not None and process.used_bytes:
            framework = framework_of(process, clients, recognise)
            if framework is not None and framework.preallocates:
                held[process.gpu_uuid] = held.get(process.gpu_uuid, 0) + process.used_bytes
    for gpu in gpus:
        if gpu.processes_known and gpu.memory is not None and gpu.memory.used_bytes is not None:
            share = held.get(gpu.identity.uuid, 0)
            yield gpu, share > 0 and share >= _LEAST_SHARE * gpu.memory.used_bytes


def fast_growth_expected(snapshot: Snapshot, recognise: Recognise) -> Iterator[tuple[GpuReading, bool]]:
    """For each GPU that would be full within minutes, whether all that grows so fast are such servers that start."""

    def starts(process: ProcessReading) -> bool:
        framework = framework_of(process, snapshot.clients, recognise)
        if process.info is None or framework is None or not framework.preallocates:
            return False
        return snapshot.time_seconds - process.info.start_time_seconds < _STARTS_SECONDS

    def grows_fast(key: MemoryKey) -> bool:
        growth = snapshot.growth.get(key)
        return growth is not None and growth.fast

    for gpu in snapshot.gpus:
        uuid = gpu.identity.uuid
        if grows_fast(MemoryKey(uuid)):
            growing = [each for each in snapshot.processes if each.gpu_uuid == uuid and grows_fast(each.key)]
            yield gpu, bool(growing) and all(map(starts, growing))
