"""Memory that grows: what leaks, what will fill the GPU, and what only looks like it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpuagent.core.growth import Growth, GrowthState, MemoryKey, Verdict
from gpuagent.core.holding import ending_advice, unowned_memory, untold_advice
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.preallocation import fast_growth_expected
from gpuagent.core.metrics.process import FrameworkRecognizer
from gpuagent.core.snapshot import GpuReading, ProcessReading, Snapshot
from gpuagent.core.units import format_duration
from gpuagent.core.wording import alone_words, forecast_words, pace_words, since_words
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.severity import Assessments, Document, Problem

_GONE_WHEN_FULL = "What stopped because there is no room goes on when there is. "


def growth_problems(snapshot: Snapshot, recognize: FrameworkRecognizer, said: Assessments) -> Iterator[Problem]:
    """Return the problems of growth, by GPU. A figure that is not known in this tick makes no problem."""
    leaking_on: set[MemoryKey] = set()
    for process in snapshot.processes:
        growth = said.of(process.key)
        if growth is not None:
            yield from _of_process(process, growth, said, snapshot.time_seconds)
            if growth.verdict is Verdict.LEAKING:
                leaking_on |= {MemoryKey(process.gpu_uuid), MemoryKey(process.gpu_uuid, 0, process.gpu_instance_id)}
    starts_on = {gpu.identity.uuid for gpu, is_so in fast_growth_expected(snapshot, recognize) if is_so}
    for gpu in snapshot.gpus:
        uuid = gpu.identity.uuid
        yield from _fast(gpu, snapshot, said, a_server_starts=uuid in starts_on)
        yield from _of_group(gpu, said)
        yield from _of_nobody(gpu, leaking_on, said, [one for one in snapshot.processes if one.gpu_uuid == uuid])


def _of_process(process: ProcessReading, growth: Growth, said: Assessments, now_seconds: float) -> Iterator[Problem]:
    severity = said.severity(process.key)
    if severity is None:
        return
    name = f"{process.info.name} (pid {process.pid})" if process.info else f"pid {process.pid}"
    document = _document(said, process.key)
    why = f": {'; '.join(growth.reasons)}" if growth.reasons else ""
    kind, text, advice = "", "", ""
    if growth.verdict is Verdict.LEAKING:
        since = since_words(document, now_seconds)
        begun = f"has been leaking memory for {since}" if since else "is leaking memory"
        if since and growth.state in {GrowthState.STOPPED, GrowthState.FULL}:  # when that stopped is not known
            begun = f"began to leak memory {since} ago"
        evidence = f" (evidence: {growth.grade})" if growth.grade else ""
        kind, text = "leak", f"{name} {begun}{_figures(document)}{evidence}{why}"
        blame = f"`gpuagent blame {process.pid}` names the line that holds it, if the app has the client."
        ending = ending_advice(process)
        advice = f"{ending} Before that, {blame}" if ending else blame
    elif growth.verdict is Verdict.GROWING and not growth.fast:
        kind, text = "growth", f"{name} is growing{_figures(document)}; it may still stop{why}"
        advice = f"Nothing proves a leak yet. `gpuagent leaks explain {process.pid}` shows how it goes on."
        if growth.state is GrowthState.FULL:
            text, advice = f"{name} was growing{_figures(document)}{why}", _GONE_WHEN_FULL + advice
    elif growth.verdict is Verdict.CACHED:
        kind, text = "cached", f"{name} has cached memory, not leaked it{why}"
        advice = f"If others need it: `gpuagent release {process.pid}` has the app give it back."
    elif said.alerted(process.key) is not None and not growth.fast:
        kind, text = "leak", f"{name} is no longer leaking, its alert ends soon ({growth.verdict}){why}"
        if growth.verdict is Verdict.LEARNING:  # what it did before is not remembered: that proves no end
            began_at = said.alerted_since(process.key)
            begun = "" if began_at is None else f" for {format_duration(max(0.0, now_seconds - began_at))}"
            text = f"{name} has had an alert about its growth{begun}; whether it still leaks is being measured anew"
        advice = "`gpuagent alerts` shows it."
    if text:
        left = document.get("gpu_exhaustion_seconds") or growth.forecast_seconds
        yield Problem(
            severity, kind, text, advice, gpu=process.gpu_index, pid=process.pid,
            seconds_left=left if isinstance(left, float) else None,
        )  # fmt: skip


def _fast(gpu: GpuReading, snapshot: Snapshot, said: Assessments, *, a_server_starts: bool) -> Iterator[Problem]:
    """Yield what would fill the GPU, or a MIG instance, within minutes; where a leak explains it, nothing."""
    index, uuid = gpu.identity.index, gpu.identity.uuid
    places = [(MemoryKey(uuid), "")]
    instances = {one.gpu_instance_id: one.profile for one in reversed(gpu.mig)}
    places += [
        (MemoryKey(uuid, 0, number), f" of MIG instance {number} ({name})") for number, name in instances.items()
    ]
    for key, whose in places:
        growth = said.of(key)
        if growth is None or not growth.fast or growth.fast_exhaustion_seconds is None:
            continue
        parts = [said.of(process.key) for process in snapshot.processes if process.gpu_uuid == uuid]
        fast = [part for part in parts if part is not None and part.fast]
        if fast and all(part.verdict is Verdict.LEAKING for part in fast):
            continue
        why = f": {'; '.join(growth.reasons)}" if growth.reasons else ""
        advice = (
            "A server has just started that takes most of the GPU by design."
            if a_server_starts
            else f"May be a model that is being loaded: it would stop. `gpuagent ps --gpu {index}` shows what grows."
        )
        yield Problem(
            said.alerted(key) or (Severity.INFO if a_server_starts else Severity.WARNING),
            "fast_growth",
            f"memory{whose} is {forecast_words(_document(said, key))} if it goes on like this{why}",
            advice,
            gpu=index,
            gpu_instance_id=key.gpu_instance_id,
            seconds_left=growth.fast_exhaustion_seconds,
        )


def _of_group(gpu: GpuReading, said: Assessments) -> Iterator[Problem]:
    """Yield what fills a GPU by ever more processes of one owner, none of which grows by itself."""
    key = MemoryKey(gpu.identity.uuid)
    growth, severity = said.of(key), said.severity(key)
    if growth is None or not growth.group or severity is None or growth.fast:
        return
    yield Problem(
        severity,
        "growth",
        f"{growth.group} hold ever more together, as they become more{_figures(_document(said, key))}",
        f"Each holds what it did at its start: see why none of them ends. `gpuagent ps --gpu {gpu.identity.index}`.",
        gpu=gpu.identity.index,
    )


def _of_nobody(
    gpu: GpuReading, leaking_on: Collection[MemoryKey], said: Assessments, processes: Sequence[ProcessReading]
) -> Iterator[Problem]:
    """Yield memory of no process that leaks: by the MIG instances in which it does, else on the GPU as a whole."""
    uuid = gpu.identity.uuid
    instances = {MemoryKey(uuid, 0, one.gpu_instance_id): one.profile for one in reversed(gpu.mig)}
    leaking = [
        key for key in (*instances, MemoryKey(uuid))
        if key not in leaking_on and (growth := said.of(key)) is not None and growth.verdict is Verdict.LEAKING
    ]  # fmt: skip
    for key in [key for key in leaking if key in instances] or leaking:
        growth = said.of(key)
        why = f": {'; '.join(growth.reasons)}" if growth is not None and growth.reasons else ""
        listed = [one for one in processes if key not in instances or one.gpu_instance_id == key.gpu_instance_id]
        advice = untold_advice(listed) or "`fuser -v /dev/nvidia*` as root shows who has the GPU open."
        where = f" in MIG instance {key.gpu_instance_id} ({instances[key]})" if key in instances else ""
        yield Problem(
            said.severity(key) or Severity.WARNING,
            "unowned_leak",
            f"{unowned_memory(listed)} is leaking{where}{_figures(_document(said, key))}{why}",
            advice,
            gpu=gpu.identity.index,
            gpu_instance_id=key.gpu_instance_id,
        )


def _document(said: Assessments, key: MemoryKey) -> Document:
    """Return what is said of it, and which MIG instance it is in."""
    instance = None if key.gpu_instance_id == NO_INSTANCE else key.gpu_instance_id
    return {**said.document(key), "gpu_instance_id": instance}


def _figures(document: Document) -> str:
    """`, 1.2 GiB/h, full in 2 h 14 min`, as far as it is known."""
    forecast = "" if document.get("growth_state") == GrowthState.FULL.value else forecast_words(document)
    if forecast and (alone := alone_words(document)):
        forecast += f" ({alone})"
    return "".join(f", {words}" for words in (pace_words(document), forecast) if words)
