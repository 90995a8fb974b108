"""Device memory and BAR1."""

from __future__ import annotations

from gpuagent.core.hardware import Memory
from gpuagent.nvml.device import Device
from gpuagent.nvml.failure import IMPOSSIBLE, UNKNOWN, NvmlFailure
from gpuagent.nvml.values import NOT_BELIEVED, count, possible_memory


def collect(device: Device) -> Memory:
    """Memory as the driver counts it, BAR1 aside: that is `collect_bar1`, at the slow rate."""
    bar1 = device.state(_Bar1)
    return _read(device, bar1.total_bytes, bar1.used_bytes)


def collect_bar1(device: Device) -> None:
    """Refresh the BAR1 figures, which the next `collect` carries."""
    info = device.ask("nvmlDeviceGetBAR1MemoryInfo")
    bar1 = device.state(_Bar1)
    bar1.total_bytes = count(info.bar1Total) if info else None
    bar1.used_bytes = count(info.bar1Used) if info else None


class _Bar1:
    total_bytes: int | None = None
    used_bytes: int | None = None


class _Version2:
    works = False


def _read(device: Device, bar1_total: int | None, bar1_used: int | None) -> Memory:
    """Version 2 tells `reserved` apart from `used`; version 1 adds it to `used`.

    Version 1 is for drivers before R510, and for WSL, where version 2 answers UNKNOWN
    (https://github.com/XuehaiPan/nvitop/issues/30). Where version 2 has ever worked, its failure is a failure: to go
    back and forth between the two would look like half a gigabyte coming and going.
    """
    version_2 = device.state(_Version2)
    before = len(device.failures)
    info = device.ask("nvmlDeviceGetMemoryInfo", device.library.constant("nvmlMemory_v2"))
    reserved = None
    if info is not None:
        reserved = count(info.reserved)
        version_2.works = True
    elif not version_2.works:
        version_2_failed = device.failures[before:]
        info = device.ask("nvmlDeviceGetMemoryInfo")
        if info is not None and all(failure.code == UNKNOWN for failure in version_2_failed):
            del device.failures[before:]
    nothing = Memory(bar1_total_bytes=bar1_total, bar1_used_bytes=bar1_used)
    if info is None:
        return nothing
    total, used, free = count(info.total), count(info.used), count(info.free)
    if not possible_memory(total, used, free, reserved):
        device.failures.append(NvmlFailure("nvmlDeviceGetMemoryInfo", IMPOSSIBLE, NOT_BELIEVED))
        return nothing
    return Memory(
        total_bytes=total,
        used_bytes=used,
        free_bytes=free,
        reserved_bytes=reserved,
        bar1_total_bytes=bar1_total,
        bar1_used_bytes=bar1_used,
    )
