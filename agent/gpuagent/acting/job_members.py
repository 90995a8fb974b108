"""Who is one job with a process, where no scheduler says it: by a sign that each of them shows, and by nothing else.

A parent, a process group and a command line in common are no sign. Supervisors start what is unrelated, Celery and
gunicorn fork one program for many tasks, and a shell's loop leaves all in one group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpuagent.core.identity import JobSign, ProcessId, SignKind
from gpuagent_alerts.remedies.never_list import NEVER, find_listed
from gpuagent_alerts.remedies.target import Target

_FIGURES = re.compile(r"\d+")
_TOGETHER_SECONDS = 60.0
"""Between the starts of two ranks: one that a job before has left behind has the same address, and came earlier."""


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


def standing_apart(
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
