"""Read the MIG instances of a GPU as devices of their own.

Handles of instances become invalid, and may be reused, when an instance goes (nvml.h): they are looked up anew at each
collection and never kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from gpuagent.core.hardware import Memory, MigInstance, Profile
from gpuagent.driver.backend import NOT_BELIEVED
from gpuagent.driver.nvml import identity, profile
from gpuagent.driver.nvml.device import NvmlDevice, count, possible_memory
from gpuagent.driver.nvml.library import IMPOSSIBLE, INVALID_ARGUMENT, NOT_FOUND, Handle, Library, NvmlFailure


@dataclass(frozen=True, slots=True)
class MigDevices:
    """Instances of a GPU and, for this tick only, their handles."""

    instances: tuple[MigInstance, ...] = ()
    handles: tuple[Handle, ...] = ()


class _Profiles:
    def __init__(self) -> None:
        self.by_uuid: dict[str, Profile | None] = {}


def collect(device: NvmlDevice, *, slow: bool = True) -> MigDevices:
    """Read all MIG devices; empty where MIG is off. Whether it is, and GPM per GPU instance, at the slow rate."""
    if slow:
        identity.refresh_mig_mode(device)
    if not device.identity.mig_enabled:
        return MigDevices()
    number = device.ask("nvmlDeviceGetMaxMigDeviceCount") or 0
    instances = []
    handles = []
    for index in range(min(number, 64)):
        found = device.attempt(f"MIG device {index}", partial(_open, device, index))
        if found is not None:
            handles.append(found[0])
            instances.append(found[1])
    _profile(device, instances, slow=slow)
    return MigDevices(tuple(instances), tuple(handles))


def _open(device: NvmlDevice, index: int) -> tuple[Handle, MigInstance] | None:
    """Open the instance in a slot; None if there is none, or if it has just been destroyed."""
    try:
        handle = device.library.call("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, index)
        return handle, _read(device, handle)
    except NvmlFailure as failure:
        if failure.code in (NOT_FOUND, INVALID_ARGUMENT):
            return None
        raise


def _read(device: NvmlDevice, handle: Handle) -> MigInstance:
    library = device.library
    name = library.text("nvmlDeviceGetName", handle)
    return MigInstance(
        uuid=library.text("nvmlDeviceGetUUID", handle),
        gpu_instance_id=int(library.call("nvmlDeviceGetGpuInstanceId", handle)),
        compute_instance_id=int(library.call("nvmlDeviceGetComputeInstanceId", handle)),
        profile=name.partition("MIG ")[2],
        memory=_memory(library, handle),
    )


def _memory(library: Library, handle: Handle) -> Memory:
    try:
        info = library.call("nvmlDeviceGetMemoryInfo", handle, library.constant("nvmlMemory_v2"))
    except NvmlFailure as failure:
        if not failure.absent:
            raise
        info = library.call("nvmlDeviceGetMemoryInfo", handle)
    total, used, free = count(info.total), count(info.used), count(info.free)
    if not possible_memory(total, used, free):
        raise NvmlFailure("nvmlDeviceGetMemoryInfo", IMPOSSIBLE, NOT_BELIEVED)
    return Memory(total_bytes=total, used_bytes=used, free_bytes=free)


def _profile(device: NvmlDevice, instances: list[MigInstance], *, slow: bool) -> None:
    kept = device.state(_Profiles)
    if slow:
        profile.forget(device, {instance.gpu_instance_id for instance in instances})
        by_instance: dict[int, Profile | None] = {}
        for instance in instances:
            if instance.gpu_instance_id not in by_instance:
                by_instance[instance.gpu_instance_id] = profile.collect(device, instance.gpu_instance_id)
        kept.by_uuid = {instance.uuid: by_instance[instance.gpu_instance_id] for instance in instances}
    for position, instance in enumerate(instances):
        instances[position] = replace(instance, profile_metrics=kept.by_uuid.get(instance.uuid))
