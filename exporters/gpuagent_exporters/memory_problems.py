"""Memory of one GPU that runs out, or that nobody can give back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpuagent.core.hardware import Memory, MigInstance
from gpuagent.core.snapshot import GpuReading, ProcessReading, ProcessState
from gpuagent.core.units import GIB, format_bytes, format_ratio
from gpuagent_exporters.severity import Problem, Severity, joined

_FULL_WARNING, _FULL_CRITICAL = 0.90, 0.98
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
    lambda process: process.state is ProcessState.DEAD,
    "a process that has ended still holds",
    "processes that have ended still hold",
    "No signal can free this memory. If it stays, it takes a reset of the GPU or a reboot.",
)
_STUCK = (
    _Stuck(
        "zombie_processes",
        Severity.WARNING,
        _in_state("Z"),
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


def memory_problems(gpu: GpuReading, processes: Sequence[ProcessReading]) -> Iterator[Problem]:
    """Of a GPU that answers, with its processes."""
    yield from _full(gpu, processes)
    # Compute instances share the memory of their GPU instance: it is full once.
    for instance in {instance.gpu_instance_id: instance for instance in reversed(gpu.mig)}.values():
        yield from _instance_full(gpu, instance)
    yield from _stuck(gpu, processes)
    yield from _unattributed(gpu, processes)


def _fullness(memory: Memory | None) -> tuple[Severity, str] | None:
    ratio = memory.used_ratio if memory else None
    if memory is None or ratio is None or ratio <= _FULL_WARNING:
        return None
    severity = Severity.CRITICAL if ratio > _FULL_CRITICAL else Severity.WARNING
    used, total = memory.used_bytes or 0, memory.total_bytes or 0
    return severity, f"{format_ratio(ratio)} full, {format_bytes(max(0, total - used))} left"


def _full(gpu: GpuReading, processes: Sequence[ProcessReading]) -> Iterator[Problem]:
    full = None if gpu.identity.unified_memory else _fullness(gpu.memory)
    if full is not None:
        severity, text = full
        largest = max(processes, key=lambda process: process.used_bytes or 0, default=None)
        holder = (
            f"; {_named(largest)} holds {format_bytes(largest.used_bytes)}" if largest and largest.used_bytes else ""
        )
        yield Problem(
            severity,
            "memory_full",
            f"memory is {text}{holder}",
            f"The next allocation may fail. `gpuagent ps --gpu {gpu.identity.index}` shows who holds what.",
            gpu=gpu.identity.index,
        )


def _instance_full(gpu: GpuReading, instance: MigInstance) -> Iterator[Problem]:
    full = _fullness(instance.memory)
    if full is not None:
        severity, text = full
        yield Problem(
            severity,
            "memory_full",
            f"memory of MIG instance {instance.gpu_instance_id} ({instance.profile}) is {text}",
            f"The next allocation may fail. `gpuagent ps --gpu {gpu.identity.index}` shows who holds what.",
            gpu=gpu.identity.index,
        )


def dead_process_problems(processes: Iterable[ProcessReading]) -> Iterator[Problem]:
    """Of the processes of GPUs that answer: one that holds memory on several GPUs is one process."""
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
    if gpu.reconciliation is None or not total or gpu.identity.unified_memory:
        return
    size = gpu.reconciliation.unattributed_bytes
    if size <= max(GIB, _UNATTRIBUTED_RATIO * total):
        return
    untold = sum(process.used_bytes is None for process in processes)
    advice = (
        f"The driver does not tell the memory of {untold} process{'es' if untold > 1 else ''}: it is likely there."
        if untold
        else "Managed memory, hidden processes or a leftover: `fuser -v /dev/nvidia*` shows who has the GPU open."
    )
    text = f"{format_bytes(size)} is used by no process that the driver lists"
    severity = Severity.INFO if untold else Severity.WARNING
    yield Problem(severity, "unattributed", text, advice, gpu=gpu.identity.index)


def _named(process: ProcessReading) -> str:
    return f"{process.info.name} (pid {process.pid})" if process.info else f"pid {process.pid}"
