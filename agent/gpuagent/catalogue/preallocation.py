"""GPUs that are full by design: a full GPU is no alarm where a server that preallocates holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuagent.catalogue.frameworks import Recognise, framework_of
from gpuagent.embedded import ClientReading
from gpuagent.reading import GpuReading, ProcessReading

_LEAST_SHARE = 0.5
"""Of the used memory: a GPU that is full because of others is full."""


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
