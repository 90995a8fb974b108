"""Read device memory, BAR1 and the limit on the agent's own cgroup, and check a GPU's figures against each other.

Each figure alone is checked where it is read (`device.possible_memory`, `processes._plausible`). `check_figures` checks
the sums: a process list that does not fit into the memory that it is said to use is not exported, and nobody is acted
on by it.

Where the driver keeps a limit on GPU memory for a cgroup (NVML 13.4, driver 615), NVML tells the processes in it of the
limit instead of the GPU: `nvmlDeviceGetMemoryInfo_v2` has the limit as its total
(https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html). MIG devices have none. To read it takes no
privilege; nothing here sets one: that is `gpuagent.driver.memory_limits`, for the remedies' step `limit`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuagent.core.hardware import Memory, MigInstance
from gpuagent.core.snapshot import GpuProcess
from gpuagent.core.units import format_bytes
from gpuagent.driver.backend import NOT_BELIEVED
from gpuagent.driver.nvml.device import NvmlDevice, count, possible_memory
from gpuagent.driver.nvml.library import FUNCTION_NOT_FOUND, IMPOSSIBLE, UNKNOWN, NvmlFailure


def collect(device: NvmlDevice) -> Memory:
    """Read memory as the driver counts it, BAR1 aside: that is `collect_bar1`, at the slow rate.

    Of a GPU that shares the host's memory it is the host's: what the driver tells of it, if anything, takes page cache
    for used, which is given up when a program asks for memory. Where the driver limits the agent's own cgroup, it tells
    of the limit instead of the GPU (`own_limit_bytes`): that is not the GPU's memory, and nothing is told of it.
    """
    if device.identity.unified_memory:
        host = device.host_memory()
        if host is None:
            return Memory()
        used = host.total_bytes - host.available_bytes
        return Memory(total_bytes=host.total_bytes, used_bytes=used, free_bytes=host.available_bytes)
    bar1 = device.state(_Bar1)
    if device.state(_OwnLimit).hard_bytes is not None:
        return Memory(bar1_total_bytes=bar1.total_bytes, bar1_used_bytes=bar1.used_bytes)
    return _read(device, bar1.total_bytes, bar1.used_bytes)


def collect_bar1(device: NvmlDevice) -> dict[str, float]:
    """Refresh what the next `collect` goes by: the BAR1 figures, and the limit of the agent's own cgroup.

    Return that limit, where there is one.
    """
    own = device.state(_OwnLimit)
    own.hard_bytes = own_limit_bytes(device)
    info = device.ask("nvmlDeviceGetBAR1MemoryInfo")
    bar1 = device.state(_Bar1)
    bar1.total_bytes = count(info.bar1Total) if info else None
    bar1.used_bytes = count(info.bar1Used) if info else None
    return {} if own.hard_bytes is None else {"memory_own_limit_bytes": own.hard_bytes}


class _Bar1:
    total_bytes: int | None = None
    used_bytes: int | None = None


class _OwnLimit:
    hard_bytes: int | None = None


class _Version2:
    works = False


def _read(device: NvmlDevice, bar1_total: int | None, bar1_used: int | None) -> Memory:
    """Read version 2, which separates `reserved` from `used`, or version 1, which adds it to `used`.

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


SLACK_BYTES = 2 * 1024**2
"""Rounding allowed per process: device memory is handed out in pages of 2 MiB, and the driver counts them twice over,
once for the process and once for the device."""


class FigureCheck(NamedTuple):
    """Result of the check. At most one of the two texts is set."""

    impossible: str = ""
    """Contradiction that no state of the GPU explains: the process figures are withheld."""
    doubtful: str = ""
    """Contradiction that shared memory could explain: the figures are exported, and nobody is acted on by them."""

    @property
    def contradiction(self) -> str:
        """The one of the two texts that is set."""
        return self.impossible or self.doubtful


POSSIBLE = FigureCheck()


def check_figures(
    memory: Memory | None,
    processes: Sequence[GpuProcess],
    instances: Sequence[MigInstance] = (),
    read_again: Callable[[], Memory | None] = lambda: None,
) -> tuple[FigureCheck, Memory | None]:
    """Return the verdict, and the device memory that it rests on.

    Device memory is read before the process list, and a process may allocate in between. So where the list holds more
    than the device was said to use, `read_again` gives the device memory once more: only a list that contradicts both
    readings is a contradiction. A total of None (unified memory) is no limit.
    """
    totals = _instance_totals(instances)
    whole = memory.total_bytes if memory is not None else None
    if too_much := _beyond_total(processes, whole, totals):
        return FigureCheck(impossible=too_much), memory
    verdict = _against_used(memory, processes, instances)
    if verdict is POSSIBLE:
        return verdict, memory
    again = read_again()
    if again is None or again.used_bytes is None:
        return verdict, memory
    second = _against_used(again, processes, instances)
    if second is POSSIBLE:
        return POSSIBLE, again
    return (verdict, memory) if second.impossible else (second, again)


def _instance_totals(instances: Sequence[MigInstance]) -> dict[int, int]:
    """Return the memory of each GPU instance; its compute instances share it."""
    return {
        instance.gpu_instance_id: instance.memory.total_bytes
        for instance in instances
        if instance.memory.total_bytes is not None
    }


def _beyond_total(processes: Sequence[GpuProcess], whole: int | None, totals: dict[int, int]) -> str:
    """Name what is larger than the memory that it lies in; "" if nothing is."""
    if whole is None and not totals:
        return ""
    sums: dict[int, int] = defaultdict(int)
    counts: dict[int, int] = defaultdict(int)
    for process in processes:
        used = process.used_bytes
        if used is None:
            continue
        for limit in (whole, totals.get(process.gpu_instance_id)):
            if limit is not None and used > limit + SLACK_BYTES:
                return f"process {process.pid} holds {format_bytes(used)} of {format_bytes(limit)}"
        sums[process.gpu_instance_id] += used
        counts[process.gpu_instance_id] += 1
    for instance, total in totals.items():
        if sums[instance] > total + counts[instance] * SLACK_BYTES:
            return (
                f"the processes of GPU instance {instance} hold {format_bytes(sums[instance])} of {format_bytes(total)}"
            )
    together = sum(sums.values())
    if whole is not None and together > whole + sum(counts.values()) * SLACK_BYTES:
        return f"the processes together hold {format_bytes(together)} of {format_bytes(whole)}"
    return ""


def _against_used(
    memory: Memory | None, processes: Sequence[GpuProcess], instances: Sequence[MigInstance]
) -> FigureCheck:
    """Compare with what the device says is used.

    Two processes may map the same memory (CUDA IPC), and whether the driver counts it for both is not documented: a sum
    beyond what is used is doubtful where each process by itself fits.
    """
    if memory is None or memory.used_bytes is None:
        return POSSIBLE
    # Without privileges the parent's figure may leave out what its MIG instances hold.
    by_instance = {each.gpu_instance_id: each.memory.used_bytes or 0 for each in instances}
    used = max(memory.used_bytes, sum(by_instance.values()))
    together = listed = 0
    for process in processes:
        held = process.used_bytes
        if held is None:
            continue
        if held > used + SLACK_BYTES:
            return FigureCheck(
                impossible=f"process {process.pid} holds {format_bytes(held)}, the whole GPU {format_bytes(used)}"
            )
        together += held
        listed += 1
    if together > used + listed * SLACK_BYTES:
        return FigureCheck(
            doubtful=f"the processes together hold {format_bytes(together)}, the whole GPU {format_bytes(used)}"
        )
    return POSSIBLE


_GET_LIMITS = "nvmlDeviceGetMemoryLimits_v1"
_NO_LIMIT = "NVML_DEVICE_MEMORY_LIMIT_MAX"


def own_limit_bytes(device: NvmlDevice) -> int | None:
    """Return the hard limit of the agent's cgroup on this GPU; None where there is none, or that is not told.

    A cgroup without a limit answers NOT_FOUND, or NOT_SUPPORTED like a driver without limits: it is asked again, as one
    may be set at any time. A driver whose library lacks the call is not.

    Raises:
        NvmlFailure: the GPU is lost or the session has ended.
    """
    if not device.own_cgroup or device.lacks(_GET_LIMITS):
        return None
    memory = device.library.struct("c_nvmlGetMemoryLimits_v1_t")
    memory.nameSpace = device.own_cgroup.encode()
    try:
        device.library.call(_GET_LIMITS, device.handle, memory)
    except NvmlFailure as failure:
        if failure.lost or failure.ends_session:
            raise
        if failure.code == FUNCTION_NOT_FOUND:
            device.note_absent(_GET_LIMITS, failure)
        return None
    hard = int(memory.hardLimit)
    return hard if 0 < hard < device.library.constant(_NO_LIMIT) else None
