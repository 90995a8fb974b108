"""Problems of one GPU: its state, its memory, and its errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuagent.core.growth import MemoryKey
from gpuagent.core.hardware import HIGH_RATIO, Ecc, Memory, MigInstance, Power, recovery_action
from gpuagent.core.holding import (
    Holding,
    ending_advice,
    find_holding,
    held_by_nobody,
    is_nobodys,
    name_with_pid,
    untold_advice,
)
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import GIB, format_bytes, format_duration, format_ratio
from gpuagent.core.wording import MPS_UNKNOWN, NO_PCI_ADDRESS
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.mps import mps_problems
from gpuagent_exporters.status.severity import Problem, joined

_NONE_BY_DESIGN: Mapping[MemoryKey, bool] = {}
_UNATTRIBUTED_RATIO = 0.05
"""Below this, and below 1 GiB, it is the driver's own: contexts, page tables."""


class _Stuck(NamedTuple):
    """Processes that hold memory and do not answer to a signal. `one` and `many` begin the sentence."""

    kind: str
    severity: Severity
    includes: Callable[[ProcessReading], bool]
    one: str
    many: str
    advice: str


def _in_state(letter: str) -> Callable[[ProcessReading], bool]:
    return lambda process: process.info is not None and process.info.state == letter


_DEAD = _Stuck(
    "dead_processes",
    Severity.WARNING,
    lambda process: process.state is ProcessState.DEAD and not process.is_zombie,
    "a process that has ended still holds",
    "processes that have ended still hold",
    "No signal can free this memory. If it stays, it takes a reset of the GPU or a reboot.",
)
_STUCK = (
    _Stuck(
        "zombie_processes",
        Severity.WARNING,
        lambda process: process.is_zombie or (process.info is not None and process.info.state == "Z"),
        "a zombie process holds",
        "zombie processes hold",
        "It has ended and cannot be killed: its parent has to collect it, or has to end.",
    ),
    _Stuck(
        "uninterruptible_processes",
        Severity.INFO,
        _in_state("D"),
        "a process waits inside the kernel (state D) and holds",
        "processes wait inside the kernel (state D) and hold",
        "Usual for a moment. If it lasts, only SIGKILL may reach it until the kernel answers.",
    ),
)


def memory_problems(
    gpu: GpuReading, processes: Sequence[ProcessReading], by_design: Mapping[MemoryKey, bool] = _NONE_BY_DESIGN
) -> Iterator[Problem]:
    """Return the problems of the memory of a GPU that answers, with its processes.

    Memory that is `by_design` is high on purpose: that is a problem once it is full.
    """
    uuid = gpu.identity.uuid
    yield from _full(gpu, processes, is_intended=by_design.get(MemoryKey(uuid), False))
    # Compute instances share the memory of their GPU instance: it is full once.
    for instance in {instance.gpu_instance_id: instance for instance in reversed(gpu.mig)}.values():
        is_intended = by_design.get(MemoryKey(uuid, 0, instance.gpu_instance_id), False)
        within = [one for one in processes if one.gpu_instance_id == instance.gpu_instance_id]
        yield from _instance_full(gpu, instance, within, is_intended=is_intended)
    yield from _stuck(gpu, processes)
    yield from _unattributed(gpu, processes)
    yield from mps_problems(gpu, processes)
    yield from _unseen_memory(gpu)


def _fullness(memory: Memory | None, *, is_intended: bool) -> tuple[Severity, str] | None:
    ratio = memory.taken_ratio if memory else None
    if memory is None or ratio is None or ratio <= HIGH_RATIO or (is_intended and not memory.is_full):
        return None
    left = (
        max(0, (memory.total_bytes or 0) - (memory.used_bytes or 0)) if memory.free_bytes is None else memory.free_bytes
    )
    severity = Severity.CRITICAL if memory.is_full else Severity.WARNING
    return severity, f"{format_ratio(ratio)} full, {format_bytes(left)} left"


def _full(gpu: GpuReading, processes: Sequence[ProcessReading], *, is_intended: bool) -> Iterator[Problem]:
    full = _fullness(gpu.memory, is_intended=is_intended)
    if full is not None:
        severity, text = full
        host = gpu.reconciliation.host_bytes if gpu.reconciliation else 0
        used = (gpu.memory.used_bytes if gpu.memory else None) or 0
        nobodys = 0 if gpu.reconciliation is None else gpu.reconciliation.unattributed_bytes
        found = find_holding(processes, used)
        spared = found
        largest = max((process.used_bytes or 0 for process in processes), default=0)
        holder = "" if found is None else f"; {_holder(found)}"
        if is_nobodys(nobodys, processes, used):
            holder, spared = f"; {format_bytes(nobodys)} {held_by_nobody(processes)}", None
        if host > largest:
            holder, spared = f"; {format_bytes(host)} of it are used beside the GPU", None
        whose = "memory of GPU and CPU" if gpu.identity.unified_memory else "memory"
        wedge = " If it runs out, the whole machine may hang." if gpu.identity.unified_memory else ""
        yield Problem(
            severity,
            "memory_full",
            f"{whose} is {text}{holder}",
            f"{_room_advice(gpu, spared)}{wedge}",
            gpu=gpu.identity.index,
        )


def _room_advice(gpu: GpuReading, found: Holding | None) -> str:
    """Return how to make room in memory of which `found` holds most."""
    ending = "" if found is None or found.process is None else ending_advice(found.process)
    if not ending:
        return f"The next allocation may fail. `gpuagent ps --gpu {gpu.identity.index}` shows who holds what."
    return f"The next allocation may fail. Move work elsewhere, or end what can be spared: {ending}"


def _instance_full(
    gpu: GpuReading, instance: MigInstance, processes: Sequence[ProcessReading], *, is_intended: bool
) -> Iterator[Problem]:
    full = _fullness(instance.memory, is_intended=is_intended)
    if full is not None:
        severity, text = full
        found = find_holding(processes, (instance.memory.used_bytes if instance.memory else None) or 0)
        holder = "" if found is None else f"; {_holder(found)}"
        yield Problem(
            severity,
            "memory_full",
            f"memory of MIG instance {instance.gpu_instance_id} ({instance.profile}) is {text}{holder}",
            _room_advice(gpu, found),
            gpu=gpu.identity.index,
            gpu_instance_id=instance.gpu_instance_id,
        )


def dead_process_problems(processes: Iterable[ProcessReading]) -> Iterator[Problem]:
    """Return the problems of dead processes of GPUs that answer: one on several GPUs is one process."""
    gpus_of: dict[int, set[int]] = defaultdict(set)
    dead = [process for process in processes if process.used_bytes != 0 and _DEAD.includes(process)]
    for process in dead:
        gpus_of[process.pid].add(process.gpu_index)
    by_gpus: dict[tuple[int, ...], list[ProcessReading]] = defaultdict(list)
    for process in dead:
        by_gpus[tuple(sorted(gpus_of[process.pid]))].append(process)
    for gpus, holders in by_gpus.items():
        yield _held(_DEAD, holders, gpus)


def _stuck(gpu: GpuReading, processes: Sequence[ProcessReading]) -> Iterator[Problem]:
    """Memory that its process will not, or not at once, give back when told to."""
    for stuck in _STUCK:
        holders = [process for process in processes if process.used_bytes != 0 and stuck.includes(process)]
        if holders:
            yield _held(stuck, holders, (gpu.identity.index,))


def _held(stuck: _Stuck, holders: Sequence[ProcessReading], gpus: Sequence[int]) -> Problem:
    known = sum(process.used_bytes or 0 for process in holders)
    size = format_bytes(known) if known else "memory (the driver does not tell how much)"
    named = {process.pid: _who(process) for process in holders}
    who = stuck.one if len(named) == 1 else f"{len(named)} {stuck.many}"
    where = f" on GPUs {joined(gpus)}" if len(gpus) > 1 else ""
    known_by_name = any(named.values())
    whose = joined(name or f"pid {pid}" for pid, name in named.items()) if known_by_name else f"pid {joined(named)}"
    return Problem(
        stuck.severity,
        stuck.kind,
        f"{who} {size}{where}: {whose}",
        stuck.advice,
        gpu=gpus[0] if len(gpus) == 1 else None,
        pid=next(iter(named)) if len(named) == 1 else None,
        gpus=tuple(gpus) if len(gpus) > 1 else (),
    )


def _who(process: ProcessReading) -> str:
    """Return the name, its owner and pid of one that has ended; "" where only the pid is known."""
    was = process.former
    if was is None:
        return ""
    owner = was.slurm_job and f"job {was.slurm_job}"
    owner = owner or was.pod or was.unit or was.container_name
    parts = (was.user, owner, f"pid {process.pid}")
    return f"{was.name} ({', '.join(part for part in parts if part)})"


def _unattributed(gpu: GpuReading, processes: Sequence[ProcessReading]) -> Iterator[Problem]:
    total = gpu.memory.total_bytes if gpu.memory else None
    if gpu.reconciliation is None or not total:
        return
    size = gpu.reconciliation.unattributed_bytes
    if size <= max(GIB, _UNATTRIBUTED_RATIO * total):
        return
    untold = untold_advice(processes)
    advice = (
        untold or "Managed memory, hidden processes or a leftover: `fuser -v /dev/nvidia*` shows who has the GPU open."
    )
    whose = "assigned to no process" if untold else "used by no process that the driver lists"
    text = f"{format_bytes(size)} is {whose}"
    severity = Severity.INFO if untold else Severity.WARNING
    yield Problem(severity, "unattributed", text, advice, gpu=gpu.identity.index)


def _unseen_memory(gpu: GpuReading) -> Iterator[Problem]:
    """Of a GPU whose memory the agent does not see whole: a container's share, or a limit that the driver keeps."""
    limit = gpu.figures.get("memory_own_limit_bytes")
    if limit is not None:
        yield Problem(
            Severity.WARNING,
            "memory_view",
            f"the driver limits the agent's own cgroup to {format_bytes(int(limit))} of it, and tells of that limit "
            "instead of the GPU's memory: how full the GPU is, is not known",
            "Take the limit off the agent's cgroup, or run the agent in another one: nvidia-smi memory-limits.",
            gpu=gpu.identity.index,
            uuid=gpu.identity.uuid,
        )
    if gpu.identity.unified_memory and (gpu.memory is None or gpu.memory.total_bytes is None):
        yield Problem(
            Severity.WARNING,
            "memory_view",
            "its memory is the machine's, and that is not known here: neither how full it is nor when it will be",
            "An agent in a container may see its own share alone: `gpuagent doctor` says whether. Run it on the host.",
            gpu=gpu.identity.index,
            uuid=gpu.identity.uuid,
        )


def _holder(found: Holding) -> str:
    if found.process is None:
        return f"{format_bytes(found.used_bytes)} of it held by {found.text}"
    ended = ", which has ended," if found.process.state is ProcessState.DEAD else ""
    return f"{name_with_pid(found.process)}{ended} holds {format_bytes(found.used_bytes)}"


_NOT_TOLD = {MPS_UNKNOWN, NO_PCI_ADDRESS}
"""Refusals to act for want of a fact: nothing contradicts itself."""
_SLOWED_DOWN = {
    "hw_thermal_slowdown": "it is too hot",
    "sw_thermal_slowdown": "it is too hot",
    "hw_power_brake_slowdown": "the power supply pulled the brake",
    "hw_slowdown": "it is too hot or lacks power",
}
"""`sw_power_cap` is not here: at the default limit it is how a busy GPU works."""


def recovery_name(action: int | None) -> str | None:
    """Return the driver's advice as one word; "none" where it has none."""
    if action is None:
        return None
    return recovery_action(action).name


def with_begin_of_loss(snapshot: Snapshot | None, firing: Iterable[FiringAlert]) -> Snapshot | None:
    """Return the snapshot with GPUs lost for as long as the alert of that says, which an agent before may have begun.

    An alert knows a GPU that is lost from the start by its index alone.
    """
    begins = {
        (alert.uuid, alert.gpu): snapshot.clock_seconds - (snapshot.time_seconds - alert.began_at)
        for alert in firing
        if snapshot is not None and alert.name == "GpuLost" and alert.began_at is not None
    }  # fmt: skip
    if snapshot is None or not begins:
        return snapshot

    def follow(gpu: GpuReading) -> GpuReading:
        index = gpu.identity.index
        begun = begins.get((gpu.identity.uuid, index), begins.get(("", index)))
        if begun is None or gpu.lost_since_seconds is None or begun >= gpu.lost_since_seconds:
            return gpu
        is_lost = gpu.state in (GpuState.LOST, GpuState.GONE)
        return replace(gpu, lost_since_seconds=begun, since_seconds=begun if is_lost else gpu.since_seconds)

    return replace(snapshot, gpus=tuple(follow(gpu) for gpu in snapshot.gpus))


def of_state(gpu: GpuReading, now_seconds: float) -> Problem:
    """Return the problems of a GPU that could not be read in this tick."""
    reason = f" ({gpu.reason})" if gpu.reason else ""
    begun = gpu.since_seconds
    if gpu.state is GpuState.BLIND and gpu.measured_seconds is not None:
        begun = gpu.measured_seconds  # the age that its figures have everywhere
    since = "" if begun is None else f" for {format_duration(max(0.0, now_seconds - begun))}"
    index = gpu.identity.index
    if gpu.state is GpuState.STARTING:
        return Problem(Severity.INFO, "gpu_starting", f"not read yet{reason}", gpu=index)
    texts = {
        GpuState.LOST: f"lost{since}: the driver has no access to it{reason}",
        GpuState.BLIND: f"nothing is known of it{since}: a call into the driver has not come back",
        GpuState.GONE: f"gone{since}: it was there before, and the driver no longer lists it",
    }
    advice = {
        GpuState.LOST: f"Look for Xid in the kernel log (dmesg). Then nvidia-smi -r -i {index}, or drain and reboot.",
        GpuState.BLIND: "Look for Xid and for tasks in state D in the kernel log (dmesg). Often only a reboot helps.",
        GpuState.GONE: "If nobody took it out: look at the kernel log (dmesg) and `lspci -d 10de:`, then reboot.",
    }
    return Problem(
        Severity.CRITICAL,
        f"gpu_{gpu.state}",
        texts.get(gpu.state, f"cannot be read{since}{reason}"),
        advice.get(gpu.state, "It is tried again by itself. `gpuagent doctor` says more."),
        gpu=index,
        uuid=gpu.identity.uuid,
    )


def of_reading(
    gpu: GpuReading,
    processes: Sequence[ProcessReading],
    now_seconds: float,
    by_design: Mapping[MemoryKey, bool] = _NONE_BY_DESIGN,
) -> Iterator[Problem]:
    """Return the problems of a GPU that answers; `by_design` says which memory is high on purpose."""
    if gpu.lost_since_seconds is not None:
        since = format_duration(max(0.0, now_seconds - gpu.lost_since_seconds))
        yield Problem(
            Severity.CRITICAL,
            "gpu_lost",
            f"was lost {since} ago and answers again: it is back once it answers after a new initialization of NVML",
            "The agent initializes NVML by itself, at first after a minute. Look for Xid in the kernel log (dmesg).",
            gpu=gpu.identity.index,
        )
    yield from memory_problems(gpu, processes, by_design)
    yield from _ecc(gpu)
    yield from _slowed_down(gpu)
    if gpu.processes_known and not gpu.processes_trusted:
        yield Problem(
            Severity.WARNING,
            "processes_untrusted",
            "this driver version mixes up its list of processes: memory may be shown beside the wrong pid",
            "Update the driver (later than 535.98). Until then nothing is done to a process on its word.",
            gpu=gpu.identity.index,
        )
    elif gpu.act_refusal:
        yield _figures(gpu)


def _figures(gpu: GpuReading) -> Problem:
    """Return the problem of a GPU whose figures contradict each other or another GPU's, or tell too little."""
    if gpu.act_refusal in _NOT_TOLD:
        hint = "The figures are shown; nothing is done to a process by them. Compare with nvidia-smi -q as root."
        return Problem(Severity.WARNING, "figures_untrusted", gpu.act_refusal, hint, gpu=gpu.identity.index)
    return Problem(
        Severity.WARNING,
        "figures_untrusted",
        gpu.act_refusal,
        "Figures that cannot be true are not shown. Compare with nvidia-smi and look for Xid in the kernel log "
        "(dmesg). If it lasts, update the driver, or reset the GPU when it is idle: "
        f"nvidia-smi -r -i {gpu.identity.index}.",
        gpu=gpu.identity.index,
    )


def _ecc(gpu: GpuReading) -> Iterator[Problem]:
    ecc, index = gpu.ecc or Ecc(), gpu.identity.index
    if ecc.recovery_action:
        action = recovery_action(ecc.recovery_action)
        text = f"the driver asks to {action.text}"
        yield Problem(Severity.CRITICAL, "recovery_action", text, action.advice.format(gpu=index), gpu=index)
    if ecc.remap_failed or ecc.sram_threshold_exceeded:
        text = "a bad memory row could not be replaced" if ecc.remap_failed else "too many errors in its SRAM"
        advice = "Take the GPU out of service and have it examined: it will likely be replaced under warranty."
        yield Problem(Severity.CRITICAL, "memory_defect", text, advice, gpu=index)
    if ecc.remap_pending or ecc.retired_pages_pending:
        text = "bad memory waits to be replaced by spare rows or pages"
        calm = "" if ecc.volatile_uncorrected else "Running work is not hurt. "
        advice = f"{calm}Reset the GPU when it is idle: nvidia-smi -r -i {index}."
        yield Problem(Severity.WARNING, "remap_pending", text, advice, gpu=index)
    if ecc.volatile_uncorrected:
        text = f"uncorrectable memory errors since the driver was loaded: {ecc.volatile_uncorrected}"
        advice = (
            "Results of the programs that were hit are lost. Reset the GPU when idle; if errors return, replace it."
        )
        yield Problem(Severity.WARNING, "ecc_uncorrected", text, advice, gpu=index)


def _slowed_down(gpu: GpuReading) -> Iterator[Problem]:
    active = [name for name, on in (gpu.clocks.event_reasons if gpu.clocks else ()) if on]
    causes = list(dict.fromkeys(_SLOWED_DOWN[name] for name in active if name in _SLOWED_DOWN))
    if causes:
        celsius = gpu.thermal.gpu_celsius if gpu.thermal else None
        heat = "" if celsius is None else f" ({celsius:.0f} degrees)"
        yield Problem(
            Severity.WARNING,
            "slowed_down",
            f"the driver slows it down: {causes[0]}{heat}",
            "Check fans, air flow, room temperature and power cables.",
            gpu=gpu.identity.index,
        )
    power = gpu.power or Power()
    limit, default = power.enforced_limit_watts, power.default_limit_watts
    if "sw_power_cap" in active and limit and default and limit < default:
        yield Problem(
            Severity.INFO,
            "power_limited",
            f"held at {limit:.0f} W, below its default of {default:.0f} W",
            "Somebody lowered the limit (nvidia-smi -pl), or the chassis did.",
            gpu=gpu.identity.index,
        )
