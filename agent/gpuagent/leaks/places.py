"""How much memory there is, and is free, for a process: that of its GPU, or of its MIG GPU instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import GpuReading, GpuState


class Place(NamedTuple):
    """Where memory comes from."""

    total_bytes: int
    free_bytes: int | None
    device_uuids: Mapping[int, str]
    """NVML's UUIDs by compute instance id: under them a client tells the allocator's figures."""


def readable(gpu: GpuReading) -> bool:
    """Whether this tick says something of the processes' memory on this GPU.

    A list that the driver is known to shuffle is shown, and never judged.
    """
    return gpu.state is GpuState.OK and gpu.processes_known and gpu.processes_trusted


def places(gpu: GpuReading) -> dict[int, Place]:
    """By GPU instance id; `NO_INSTANCE` is the GPU as a whole. Empty where the GPU has no memory of its own."""
    return dict(_places(gpu))


def _places(gpu: GpuReading) -> Iterator[tuple[int, Place]]:
    memory = gpu.memory
    if memory is not None and memory.total_bytes:
        yield NO_INSTANCE, Place(memory.total_bytes, memory.free_bytes, {NO_INSTANCE: gpu.identity.uuid})
    devices: dict[int, dict[int, str]] = {}
    for instance in gpu.mig:
        devices.setdefault(instance.gpu_instance_id, {})[instance.compute_instance_id] = instance.uuid
        memory = instance.memory
        if memory.total_bytes:
            uuids = devices[instance.gpu_instance_id]
            yield instance.gpu_instance_id, Place(memory.total_bytes, memory.free_bytes, uuids)


def nobodys_bytes(gpu: GpuReading) -> int | None:
    """Memory of no living process: of the dead, of the driver, of whatever the driver does not list."""
    split = gpu.reconciliation
    return None if split is None else split.dead_processes_bytes + split.unattributed_bytes
