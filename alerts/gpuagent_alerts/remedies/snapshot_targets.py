"""Processes of a snapshot as targets, and which of them belong together.

Where no scheduler names a job, processes are one job by a sign that each of them shows, and by nothing else. A parent,
a process group and a command line in common are no sign. Supervisors start what is unrelated, Celery and gunicorn fork
one program for many tasks, and a shell's loop leaves all in one group.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuagent.core.growth import Growth, Verdict
from gpuagent.core.identity import NO_INSTANCE, JobSign, ProcessId, SignKind
from gpuagent.core.snapshot import GpuReading, ProcessReading, ProcessState, Snapshot
from gpuagent_alerts.remedies.safeguards.never_list import NEVER, find_listed
from gpuagent_alerts.remedies.safeguards.rule_analysis import RuleAnalysis, Subject
from gpuagent_alerts.remedies.safeguards.rule_sampling import PROCESS_LABELS
from gpuagent_alerts.remedies.target import Target

_FIGURES = re.compile(r"\d+")
_TOGETHER_SECONDS = 60.0
"""Between the starts of two ranks: one that a job before has left behind has the same address, and came earlier."""


def all_targets(snapshot: Snapshot, *, unknown_memory: bool = False) -> Iterator[Target]:
    """Yield every process on any GPU of which enough is known: what is not, is never acted on.

    With `unknown_memory` also those whose memory the driver does not tell, as if it were none: not to be chosen.
    """
    known = context_of(snapshot)
    for process in snapshot.processes:
        if unknown_memory and process.used_bytes is None:
            process = process._replace(used_bytes=0)  # noqa: PLW2901
        target = target_of(process, snapshot.growth.get(process.key), known)
        if target is not None:
            yield target


def targets_on(snapshot: Snapshot, gpu_uuid: str, gpu_instance: str = "", gpu: str = "") -> Iterator[Target]:
    """Yield the targets on one GPU; `gpu_instance` is the number of a MIG GPU instance, "" for any.

    `gpu` is the index that the alert gives. It decides where several GPUs have this UUID; otherwise an index that has
    changed since is no doubt.
    """
    shared = sum(each.identity.uuid == gpu_uuid for each in snapshot.gpus) > 1
    for target in all_targets(snapshot):
        if target.key.gpu_uuid != gpu_uuid or (shared and gpu != str(target.gpu_index)):
            continue
        if gpu_instance in {"", str(target.key.gpu_instance_id)}:
            yield target


def targets_named(targets: Iterable[Target], labels: Mapping[str, str], analysis: RuleAnalysis) -> list[Target]:
    """Return those that an expression's result is about: the process that it names, or all where it is about the GPU.

    One that was summed up by anything that says more of processes is about nobody in particular.
    """
    if not analysis.refusal and (analysis.subject is Subject.PROCESS) != bool(labels.get("pid")):
        return []
    if pid := labels.get("pid"):
        return [target for target in targets if str(target.pid) == pid]
    return [] if any(labels.get(label) for label in PROCESS_LABELS) else list(targets)


class SnapshotContext(NamedTuple):
    """What a snapshot as a whole says of its processes."""

    pci: Mapping[tuple[int, str], str]
    """PCI addresses by index and UUID."""
    idle: Mapping[ProcessId, float | None]
    """How long each process has been observed at 0 %, on all of its GPUs; None if it is not known of one of them."""


NO_CONTEXT = SnapshotContext({}, {})


def context_of(snapshot: Snapshot) -> SnapshotContext:
    """Read the addresses of the GPUs, and for how long each process has been idle.

    While the processes of a GPU cannot be read, or a GPU may be missing, any process may be at work there: nobody is
    known to be idle. That a GPU is lost or gone is what the driver says of it, and no observation that nobody works.
    """
    gpus = {(gpu.identity.index, gpu.identity.uuid): gpu for gpu in snapshot.gpus}
    blind = bool(snapshot.node.gpus_doubt) or not all(gpu.processes_read for gpu in snapshot.gpus)
    idle: dict[ProcessId, float | None] = {}
    for process in snapshot.processes:
        gpu = gpus.get((process.gpu_index, process.gpu_uuid))
        if process.info is None or gpu is None:
            continue
        since = process.idle_since_seconds
        here = None if blind or since is None else max(gpu.time_seconds - since, 0.0)
        there = idle.get(process.info.id, here)
        idle[process.info.id] = None if here is None or there is None else min(here, there)
    return SnapshotContext({place: gpu.identity.pci_bus_id for place, gpu in gpus.items()}, idle)


def unranked_memory(snapshot: Snapshot, gpu_uuid: str, gpu_instance: str, *, whole: bool) -> tuple[float, bool]:
    """Return the memory that no process of a ranking is known to hold, and whether a listed number is none of them.

    It belongs to processes that have ended, hide, have not been shown to be the holders, are listed without their GPU
    instance, or are on no list, as memory is freed late; infinite where an amount is not told. Where not the `whole`
    GPU or GPU instance is asked about, but an owner, only a listed process whose amount is not told counts.
    """
    on_it = [process for process in snapshot.processes if process.gpu_uuid == gpu_uuid]
    inside = [process for process in on_it if gpu_instance in {"", str(process.gpu_instance_id)}]
    nobodys = [process for process in inside if process.holder_unproven or target_of(process, None) is None]
    elsewhere = [process for process in on_it if gpu_instance and process.gpu_instance_id == NO_INSTANCE]
    others = nobodys + elsewhere  # one whose instance is not told may be in any
    if any(process.used_bytes is None for process in others):
        return math.inf, True
    if not whole:
        return 0.0, False
    listed = sum(process.used_bytes or 0 for process in others)
    gpu = next((each for each in snapshot.gpus if each.identity.uuid == gpu_uuid), None)
    return listed + _unlisted_bytes(gpu, on_it, gpu_instance), bool(others)


def used_ratio(snapshot: Snapshot, gpu_uuid: str) -> float:
    """Return how full a GPU is, from 0 to 1; 0 where that is not known."""
    for gpu in snapshot.gpus:
        memory = gpu.memory
        if gpu.identity.uuid == gpu_uuid and memory is not None and memory.used_bytes and memory.total_bytes:
            return memory.used_bytes / memory.total_bytes
    return 0.0


def _unlisted_bytes(gpu: GpuReading | None, on_it: Sequence[ProcessReading], gpu_instance: str) -> float:
    """Return the memory of a GPU, or of a GPU instance of it, that no process is listed for; infinite if not known."""
    if gpu is None:
        return math.inf
    used = {str(each.gpu_instance_id): each.memory.used_bytes for each in gpu.mig}
    held: Counter[str] = Counter()
    for process in on_it:
        untold = process.gpu_instance_id == NO_INSTANCE
        held["" if untold else str(process.gpu_instance_id)] += process.used_bytes or 0
    # Of the GPU the driver may tell a sum that leaves out what its instances hold: each is asked about by itself.
    asked = [gpu_instance] if gpu_instance else [*(used.keys() | held.keys()) - {""}]
    found = 0.0
    for instance in asked:
        in_use = used.get(instance)
        found += math.inf if in_use is None else max(0, in_use - held[instance])
    found = max(0.0, found - held[""])
    if gpu_instance:
        return found
    if gpu.reconciliation is None or (gpu.identity.mig_enabled and not gpu.mig):
        return math.inf
    return max(found, gpu.reconciliation.unattributed_bytes)


def target_of(process: ProcessReading, growth: Growth | None, known: SnapshotContext = NO_CONTEXT) -> Target | None:
    """Return the target; None for what /proc does not know, what hides its start, and where the memory is not told."""
    info = process.info
    if info is None or process.state is not ProcessState.LIVE or process.used_bytes is None or info.id.start_ticks <= 0:
        return None
    return Target(
        id=info.id,
        key=process.key,
        gpu_index=process.gpu_index,
        name=info.name,
        uid=info.uid,
        user=info.user,
        command=info.command,
        cgroup=info.cgroup,
        used_bytes=process.used_bytes,
        kinds=process.kinds,
        unit=info.unit,
        container_id=info.container_id,
        container_runtime=info.container_runtime,
        container_name=info.container_name,
        slurm_job=info.slurm_job,
        parent_pid=info.parent_pid,
        process_group=info.process_group,
        job_signs=info.job_signs,
        sm_ratio=process.utilization.sm_ratio if process.utilization else None,
        slope_bytes_per_second=growth.slope.value if growth and growth.slope else None,
        leaking=growth is not None and growth.verdict is Verdict.LEAKING,
        evidence=str(growth.evidence or "") if growth is not None else "",
        leak_confirmed=growth is not None and growth.confirmed,
        driver_confirms=growth is not None and growth.driver_confirms,
        proven_names=info.proven_names,
        gpu_pci=known.pci.get((process.gpu_index, process.gpu_uuid), ""),
        idle_seconds=known.idle.get(info.id),
        holder_proven=not process.holder_unproven,
    )


def relatives(target: Target, others: Iterable[Target]) -> tuple[Target, ...]:
    """Return who belongs to the target, and may hold its memory after it: by unit, container or job, else by descent.

    A cgroup alone makes nobody a relative: everything that a person has started by hand is in one. Nor does a name that
    is not proven: anybody may claim it.
    """
    return tuple(
        other
        for other in others
        if other.id != target.id
        and (
            _same(target.proven_container_id, other.proven_container_id)
            or _same(target.proven_slurm_job, other.proven_slurm_job)
            or _same(target.proven_unit, other.proven_unit)
            or other.parent_pid == target.pid
        )
    )


def successors(target: Target, others: Iterable[Target]) -> tuple[Target, ...]:
    """Return who runs what the target ran, for the same parent, started after it: as gunicorn replaces a worker."""
    return tuple(
        other for other in others if other.id.start_ticks > target.id.start_ticks and _is_sibling(target, other)
    )


def members(target: Target, everybody: Sequence[Target], scope: str, never: Iterable[str] = ()) -> tuple[Target, ...]:
    """Return who falls with the target, on whichever GPU; itself on other GPUs is always among them.

    `container`: what runs in the same container. `job`: the same Slurm job; where there is none, who is one job with it
    by a sign of each (`job_members`), but for children of whom the never-list means: `never` are the operator's
    entries. `process`: nobody else. An id that a user may have chosen makes nobody a member.
    """
    found = _joined(target, everybody, scope, never)
    return tuple(each for each in everybody if each.id in found and each.key != target.key)


def unjoined_lookalikes(
    target: Target, everybody: Sequence[Target], scope: str, never: Iterable[str] = ()
) -> tuple[Target, ...]:
    """Return who looks like a part of the target's job, and does not fall with it as nothing shows that it is."""
    if scope != "job" or target.slurm_job:
        return ()
    return lookalikes_outside(target, everybody, _joined(target, everybody, scope, never))


def _joined(target: Target, everybody: Sequence[Target], scope: str, never: Iterable[str]) -> dict[ProcessId, Target]:
    found = {target.id: target}
    if scope == "container":
        mine = target.proven_container_id
        found |= {each.id: each for each in everybody if _same(mine, each.proven_container_id)}
    elif scope == "job" and target.slurm_job:
        found |= {each.id: each for each in everybody if _same(target.proven_slurm_job, each.proven_slurm_job)}
    elif scope == "job":
        found = job_members(target, everybody, never)
    return found


def _is_sibling(one: Target, other: Target) -> bool:
    """Return whether the commands differ in numbers alone, of the same user and parent; pid 1 is everybody's parent."""
    same_place = (one.uid, one.container_id, one.parent_pid) == (other.uid, other.container_id, other.parent_pid)
    return same_place and one.parent_pid > 1 and _FIGURES.sub("", one.command) == _FIGURES.sub("", other.command)


def _same(one: str, other: str) -> bool:
    return bool(one) and one == other


def job_members(target: Target, everybody: Sequence[Target], never: Iterable[str] = ()) -> dict[ProcessId, Target]:
    """Return the target and all that are one job with it, of its user and in its container, directly or through others.

    Who has a parent that the never-list means has no job: it runs work of others. `never` are the operator's entries.
    """
    near = {each.id: each for each in everybody if _is_near(target, each)} | {target.id: target}
    signs = _believed_signs(near.values(), (*NEVER, *never))
    found, waiting = {target.id: target}, [target]
    while waiting:
        one = waiting.pop()
        for other in near.values():
            if other.id not in found and _are_one_job(one, other, signs):
                found[other.id] = other
                waiting.append(other)
    return found


def lookalikes_outside(
    target: Target, everybody: Iterable[Target], joined: Mapping[ProcessId, Target]
) -> tuple[Target, ...]:
    """Return who looks like a part of it and shows no sign: of its parent, its group, its child or its parent."""
    apart = {
        each.id: each
        for each in everybody
        if each.id not in joined and _is_near(target, each) and _looks_related(target, each)
    }
    return tuple(apart.values())


def _is_near(one: Target, other: Target) -> bool:
    return (one.uid, one.container_id) == (other.uid, other.container_id)


def _looks_related(one: Target, other: Target) -> bool:
    same_parent = one.parent_pid > 1 and one.parent_pid == other.parent_pid
    same_group = one.process_group > 0 and one.process_group == other.process_group
    return same_parent or same_group or one.pid == other.parent_pid or other.pid == one.parent_pid


def _believed_signs(near: Iterable[Target], never: tuple[str, ...]) -> dict[ProcessId, tuple[JobSign, ...]]:
    """Return the signs that count: no group of ranks in which a rank is there twice, or that has but one.

    Whoever inherits the environment of a rank says that it is this rank, too: its children, and all that a script
    starts for which somebody has set the variables.
    """
    near = list(near)
    believed = {
        each.id: tuple(sign for sign in each.job_signs if not find_listed(sign.parent_names, never)) for each in near
    }
    holders: defaultdict[str, defaultdict[int, list[Target]]] = defaultdict(lambda: defaultdict(list))
    for each in near:
        for sign in believed[each.id]:
            if sign.kind is SignKind.RANK:
                holders[sign.group][sign.rank].append(each)
    for group, ranks in holders.items():
        own = {target.id for of_rank in ranks.values() for target in _without_children(of_rank)}
        if any(len(_without_children(of_rank)) > 1 for of_rank in ranks.values()):
            own = set()
        for each in near:
            believed[each.id] = tuple(
                sign
                for sign in believed[each.id]
                if sign.kind is not SignKind.RANK or sign.group != group or each.id in own
            )
    return believed


def _without_children(of_rank: list[Target]) -> list[Target]:
    pids = {each.pid for each in of_rank}
    return [each for each in of_rank if each.parent_pid not in pids]


def _are_one_job(one: Target, other: Target, signs: Mapping[ProcessId, tuple[JobSign, ...]]) -> bool:
    if _has_started(one, signs[other.id]) or _has_started(other, signs[one.id]):
        return True
    if _FIGURES.sub("", one.command) != _FIGURES.sub("", other.command):
        return False
    together = abs(one.started_seconds - other.started_seconds) <= _TOGETHER_SECONDS
    return any(
        (mine.kind, mine.group) == (its.kind, its.group)
        and mine.kind is not SignKind.FORK
        and (together or mine.kind is not SignKind.RANK)
        for mine in signs[one.id]
        for its in signs[other.id]
    )


def _has_started(parent: Target, signs: tuple[JobSign, ...]) -> bool:
    """Return whether it is the parent of which a process is a worker or a copy: pid and start have to agree."""
    key = f"{parent.pid}:{parent.id.start_ticks}"
    return any(sign.kind in {SignKind.WORKERS, SignKind.FORK} and sign.group == key for sign in signs)
