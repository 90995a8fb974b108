"""Processes of a snapshot as targets, and who belongs to whom."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpuagent.growth import Growth, Verdict
from gpuagent.identity import ProcessId
from gpuagent.reading import ProcessReading, ProcessState, Snapshot
from gpuagent_alerts.remedies.target import Target

_FIGURES = re.compile(r"\d+")
_OWNERS: Mapping[str, Callable[[Target], str]] = {
    "user": lambda target: target.user,
    "uid": lambda target: str(target.uid),
    "unit": lambda target: target.unit if "unit" in target.proven_names else "",
    "container_id": lambda target: target.proven_container_id,
    "slurm_job": lambda target: target.proven_slurm_job,
}
"""Labels of the process series that say whose it is, by facts that the process does not choose."""
_CHOSEN_NAMES = ("process", "command", "framework", "app")
"""Labels that a process chooses for itself."""
_TOGETHER_SECONDS = 60.0
"""Between the starts of two ranks of one server: a process may choose its command line, and not when it was started."""


def all_targets(snapshot: Snapshot) -> Iterator[Target]:
    """Every process on any GPU of which enough is known: what is not, is never acted on."""
    for process in snapshot.processes:
        target = target_of(process, snapshot.growth.get(process.key))
        if target is not None:
            yield target


def targets_on(snapshot: Snapshot, gpu_uuid: str, gpu_instance: str = "") -> Iterator[Target]:
    """Those of one GPU; `gpu_instance` is the number of a MIG GPU instance, "" for any."""
    for target in all_targets(snapshot):
        if target.key.gpu_uuid == gpu_uuid and gpu_instance in {"", str(target.key.gpu_instance_id)}:
            yield target


def targets_named(targets: Iterable[Target], labels: Mapping[str, str]) -> list[Target]:
    """Return those that agree with all labels of an alert that say whose the memory is.

    An alert that sums up what one user holds is about that user's processes. One that sums up by a name which processes
    give themselves is about nobody in particular: anybody's process may have added to it.
    """
    if labels.get("pid"):
        return list(targets)
    given = {label for label in (*_OWNERS, *_CHOSEN_NAMES) if labels.get(label)}
    owners = {label: of for label, of in _OWNERS.items() if label in given}
    if given and not owners:
        return []
    return [target for target in targets if all(labels[label] == of(target) for label, of in owners.items())]


def target_of(process: ProcessReading, growth: Growth | None) -> Target | None:
    """None for what /proc does not know, for what hides its start time, and where the memory is not told."""
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
        sm_ratio=process.utilization.sm_ratio if process.utilization else None,
        slope_bytes_per_second=growth.slope.value if growth and growth.slope else None,
        leaking=growth is not None and growth.verdict is Verdict.LEAKING,
        evidence=str(growth.evidence or "") if growth is not None else "",
        driver_confirms=growth is not None and growth.driver_confirms,
        proven_names=info.proven_names,
    )


def relatives(target: Target, others: Iterable[Target]) -> tuple[Target, ...]:
    """Who belongs to the target, and may hold its memory after it: by unit, container or job, else by descent.

    A cgroup alone makes nobody a relative: everything that a person has started by hand is in one.
    """
    return tuple(
        other
        for other in others
        if other.id != target.id
        and (
            _same(target.container_id, other.container_id)
            or _same(target.slurm_job, other.slurm_job)
            or _same(target.unit, other.unit)
            or other.parent_pid == target.pid
        )
    )


def successors(target: Target, others: Iterable[Target]) -> tuple[Target, ...]:
    """Who runs what the target ran, for the same parent, and was started after it: as gunicorn replaces a worker."""
    return tuple(
        other for other in others if other.id.start_ticks > target.id.start_ticks and _is_sibling(target, other)
    )


def members(target: Target, everybody: Sequence[Target], scope: str) -> tuple[Target, ...]:
    """Who falls with the target, on whichever GPU; itself on other GPUs is always among them.

    `container`: what runs in the same container. `job`: the same Slurm job; where there is none, parents and children,
    and processes of one parent that run the same command, numbers aside, and were started within a minute: the ranks
    of a server, and not all that was started from one shell. `process`: nobody else. An id that a user may have chosen
    makes nobody a member.
    """
    found = {target.id: target}
    if scope == "container":
        mine = target.proven_container_id
        found |= {each.id: each for each in everybody if _same(mine, each.proven_container_id)}
    elif scope == "job" and target.slurm_job:
        found |= {each.id: each for each in everybody if _same(target.proven_slurm_job, each.proven_slurm_job)}
    elif scope == "job":
        found = _family(target, everybody)
    return tuple(each for each in everybody if each.id in found and each.key != target.key)


def _family(target: Target, everybody: Sequence[Target]) -> dict[ProcessId, Target]:
    found, waiting = {target.id: target}, [target]
    while waiting:
        one = waiting.pop()
        for other in everybody:
            if other.id not in found and _is_kin(one, other):
                found[other.id] = other
                waiting.append(other)
    return found


def _is_kin(one: Target, other: Target) -> bool:
    if (one.uid, one.container_id) != (other.uid, other.container_id):
        return False
    if one.pid == other.parent_pid or other.pid == one.parent_pid:
        return True
    return abs(one.started_seconds - other.started_seconds) <= _TOGETHER_SECONDS and _is_sibling(one, other)


def _is_sibling(one: Target, other: Target) -> bool:
    """The same command but for its numbers, of the same user and parent; pid 1 is everybody's parent."""
    same_place = (one.uid, one.container_id, one.parent_pid) == (other.uid, other.container_id, other.parent_pid)
    return same_place and one.parent_pid > 1 and _FIGURES.sub("", one.command) == _FIGURES.sub("", other.command)


def _same(one: str, other: str) -> bool:
    return bool(one) and one == other
