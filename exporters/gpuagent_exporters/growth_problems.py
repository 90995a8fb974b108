"""Memory that grows: what leaks, what will fill the GPU, and what only looks like it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuagent.catalogue.frameworks import Recognise
from gpuagent.catalogue.preallocation import fast_growth_expected
from gpuagent.growth import Growth, MemoryKey, Verdict
from gpuagent.reading import GpuReading, ProcessReading, Snapshot
from gpuagent.units import format_bytes, format_duration
from gpuagent_exporters.severity import Problem, Severity

_MINUTES_LEFT = 1800.0
_HOURS_LEFT = 4 * 3600.0


def growth_problems(snapshot: Snapshot, recognise: Recognise) -> Iterator[Problem]:
    """By GPU. A figure that is not known in this tick makes no problem."""
    growth = snapshot.growth
    leaking_on = set()
    for process in snapshot.processes:
        said = growth.get(process.key)
        if said is not None:
            yield from _of_process(process, said, snapshot.time_seconds)
            if said.verdict is Verdict.LEAKING:
                leaking_on.add(process.gpu_uuid)
    starts_on = {gpu.identity.uuid for gpu, is_so in fast_growth_expected(snapshot, recognise) if is_so}
    for gpu in snapshot.gpus:
        uuid = gpu.identity.uuid
        said = growth.get(MemoryKey(uuid))
        if said is not None:
            yield from _of_gpu(gpu, said, a_process_leaks=uuid in leaking_on, a_server_starts=uuid in starts_on)


def pace(growth: Growth) -> str:
    """`1.2 GiB/h`; "" while it cannot be said."""
    return f"{format_bytes(max(0.0, growth.slope.value) * 3600)}/h" if growth.slope is not None else ""


def _of_process(process: ProcessReading, said: Growth, now_seconds: float) -> Iterator[Problem]:
    name = f"{process.info.name} (pid {process.pid})" if process.info else f"pid {process.pid}"
    rate, full = pace(said), _full(said)
    seconds = said.exhaustion.value if said.exhaustion else None
    why = f": {'; '.join(said.reasons)}" if said.reasons else ""
    if said.verdict is Verdict.LEAKING:
        since = f" for {format_duration(max(0.0, now_seconds - said.since_seconds))}" if said.since_seconds else ""
        standard = f" (standard: {said.evidence})" if said.evidence else ""
        yield Problem(
            Severity.CRITICAL if seconds is not None and seconds < _MINUTES_LEFT else Severity.WARNING,
            "leak",
            f"{name} has been leaking memory{since}{f', {rate}' if rate else ''}{full}{standard}{why}",
            f"`gpuagent blame {process.pid}` names the line that holds it, if the app has the client. A restart gives "
            "the memory back.",
            gpu=process.gpu_index,
            pid=process.pid,
        )
    elif said.verdict is Verdict.GROWING and seconds is not None and seconds < _HOURS_LEFT:
        yield Problem(
            Severity.WARNING if seconds < _MINUTES_LEFT else Severity.INFO,
            "growth",
            f"{name} grows{f' by {rate}' if rate else ''}{full}; it may still stop{why}",
            f"Nothing proves a leak yet. `gpuagent ps --gpu {process.gpu_index}` shows how it goes on.",
            gpu=process.gpu_index,
            pid=process.pid,
        )
    elif said.verdict is Verdict.CACHED:
        yield Problem(
            Severity.INFO,
            "cached",
            f"{name} has cached memory, not leaked it{why}",
            f"If others need it: `gpuagent release {process.pid}` has the app give it back.",
            gpu=process.gpu_index,
            pid=process.pid,
        )


def _of_gpu(gpu: GpuReading, said: Growth, *, a_process_leaks: bool, a_server_starts: bool) -> Iterator[Problem]:
    index = gpu.identity.index
    why = f": {'; '.join(said.reasons)}" if said.reasons else ""
    if said.fast and said.fast_exhaustion_seconds is not None:
        left = format_duration(max(0.0, said.fast_exhaustion_seconds))
        advice = (
            "A server has just started that takes most of the GPU by design."
            if a_server_starts
            else "This is growth and not yet a leak: a model that is loaded stops. "
            f"`gpuagent ps --gpu {index}` shows what grows."
        )
        yield Problem(
            Severity.INFO if a_server_starts else Severity.CRITICAL,
            "fast_growth",
            f"memory is full in {left} if it goes on like this{why}",
            advice,
            gpu=index,
        )
    if said.verdict is Verdict.LEAKING and not a_process_leaks:
        rate = pace(said)
        yield Problem(
            Severity.WARNING,
            "unowned_leak",
            f"memory that no process owns grows without end{f', {rate}' if rate else ''}{_full(said)}{why}",
            "`fuser -v /dev/nvidia*` as root shows who has the GPU open.",
            gpu=index,
        )


def _full(said: Growth) -> str:
    return f", the GPU is full in about {format_duration(said.exhaustion.value)}" if said.exhaustion else ""
