"""Whether a process has what a step acts by: a unit to restart, an id to hand over, nobody who supervises it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gpuagent.core.identity import NO_INSTANCE
from gpuagent_alerts.remedies.observation import NotPossibleHere, RemedyRequest, UnitPermission
from gpuagent_alerts.remedies.safeguards.never_list import is_supervised, is_users_own
from gpuagent_alerts.remedies.safeguards.refusals import unproven_container, unproven_job, unproven_unit
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.remedies.target import Facts, Target


def no_restart(target: Target, permission: UnitPermission, facts: Facts) -> Iterator[str]:
    """Yield why the process runs in no unit that may be restarted."""
    if not target.unit:
        yield "no systemd unit runs it: there is nothing to restart"
    elif is_users_own(target):
        yield (
            f"{target.unit} belongs to a user's own manager, which only that user may command:"
            " terminate or kill its process instead"
        )
    elif "unit" not in facts.identity.proven_names:
        yield unproven_unit(target)
    elif refusal := permission.against([target.unit]):
        yield refusal


def no_limit(target: Target, permission: UnitPermission, facts: Facts, *, unified_memory: bool) -> Iterator[str]:
    """Yield why no cgroup of the process may have a memory limit: one that root has made, for it and no login.

    Of the container, job and unit that it is in, the limit is that of the innermost: the container's, else the job's.
    """
    if target.key.gpu_instance_id != NO_INSTANCE:
        yield NotPossibleHere("it is on a MIG instance, and the driver keeps no memory limits for those")
    if "M" in target.kinds:
        yield NotPossibleHere(
            "it is a client of MPS, whose server holds its memory: a memory limit on its cgroup would not hold"
        )
    if unified_memory:
        yield NotPossibleHere("the GPU shares the machine's memory, and the driver limits none of that")
    if refusal := _no_limited_group(target, permission, facts.identity.proven_names):
        yield refusal


def _no_limited_group(target: Target, permission: UnitPermission, proven: Collection[str]) -> str:
    """Return why root has made no container, job or unit of its own for the process; "" if it has."""
    if target.container_id:
        return "" if "container" in proven else unproven_container(target)
    if target.slurm_job:
        return "" if "job" in proven else unproven_job(target)
    if not target.unit:
        return NotPossibleHere(
            f"no unit, container or job of root's making runs it: a memory limit on its cgroup {target.cgroup or '/'}"
            f" would hold for all that {target.user or 'its user'} runs there, or could be left"
        )
    if is_users_own(target):
        return f"{target.unit} is run by a user's own manager: that user may move processes out of a memory limit"
    return permission.against([target.unit]) if "unit" in proven else unproven_unit(target)


def nothing_to_fill_in(step: RemedyStep, target: Target) -> Iterator[str]:
    """Yield what an argument asks for and root has not written: `docker restart` with a false id hits another."""
    places = {
        "{container_id}": (target.container_id, target.proven_container_id),
        "{slurm_job}": (target.slurm_job, target.proven_slurm_job),
    }
    for place, (claimed, proven) in places.items():
        if proven or not any(place in argument for argument in step.command):
            continue
        if claimed:
            yield f"{step} needs {place}, and others than root may have chosen {claimed}"
        else:
            yield f"{step} needs {place}, and the process has none"


def no_bare_signal(
    step: RemedyStep,
    request: RemedyRequest,
    target: Target,
    facts: Facts,
    permission: UnitPermission,
    supervisors: Collection[str],
) -> Iterator[str]:
    """Yield that systemd supervises the process, unless a person answers for its unit with --force.

    They do where everybody in the unit was looked at: each who may end with it is judged, and has to have been shown.
    Nobody answers for a unit that `permission` puts on the never-list.
    """
    if not is_supervised(target, supervisors):
        return
    unit, spared = target.unit, replace(permission, shared=True).against([target.unit])
    if request.by_hand and request.forced and unit in facts.ties.units and not spared:
        return
    if spared:
        yield f"systemd supervises it ({unit}): a bare {step} could leave it down, and {spared}"
    elif target.parent_pid <= 1 or (request.by_hand and request.forced):
        yield f"systemd supervises it ({unit}): a bare {step} could leave it down; use restart_unit"
    else:
        yield (
            f"systemd supervises it ({unit}): a bare {step} could leave it down, or stop all of {unit}; use"
            f" restart_unit, or name {unit} in remedies.supervisors if its main process goes on when one that it has"
            " started ends"
        )
