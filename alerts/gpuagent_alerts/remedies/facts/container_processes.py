"""Whose processes a container or a Slurm job runs: a program that is given its id acts on all of them.

As of a unit, and by the same rules (`unit_processes`). Here the groups of all processes are read in /proc, since a job
and a container may have cgroups in several hierarchies, which the agent may see from inside of one. It may block, so it
is called in a thread.

A restart of a container also cuts off processes outside of it that use its network or its IPC
(`container_namespaces`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuagent.core.identity import format_container
from gpuagent.procfs.cgroup import Membership, parse_cgroup
from gpuagent.procfs.credentials import Credentials, MissingFact, read_credentials
from gpuagent.procfs.files import ProcFiles
from gpuagent_alerts.remedies.facts.container_ends import is_below, is_in_container
from gpuagent_alerts.remedies.facts.container_namespaces import used_by_others
from gpuagent_alerts.remedies.facts.own_work import ProcessInfoReader
from gpuagent_alerts.remedies.facts.process_scan import GONE, HOST_INIT, LISTINGS, list_pids
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.steps import StepGroup
from gpuagent_alerts.remedies.target import Target

_ROOT = 0
_OWN_PARTS = {StepGroup.CONTAINER: frozenset({"docker-init"}), StepGroup.JOB: frozenset({"slurmstepd*"})}
"""Entries of the built-in never-list that mean what a container or a job is made of: these end with it by design."""


class GroupProcesses:
    """Looks at everybody in the container or job of a process."""

    def __init__(
        self,
        files: ProcFiles,
        reader: ProcessInfoReader,
        units: UnitProcesses,
        pids: Callable[[], Iterable[int]] = list_pids,
    ) -> None:
        """`reader` tells whose containers are proven, `units` judges processes, `pids` lists those of /proc."""
        self._files = files
        self._reader = reader
        self._units = units
        self._pids = pids

    def refusal(self, target: Target, group: StepGroup, permission: UnitPermission, *, ends: bool = True) -> str:
        """Return why no program may be given the id of the target's container or job; "" if one may.

        Without `ends` nobody ends by what is done to the group: who depends on those in there is left out.
        """
        name = _name(target, group)
        try:
            own = parse_cgroup(self._files.read(target.pid, "cgroup"))
            processes = self._look(own, group)
            inside = {each.pid: each for each in processes}
            if target.pid not in inside:
                return f"pid {target.pid} is not in {name} any more"
            if group is StepGroup.CONTAINER and (nested := self._nested(target, processes, inside[target.pid])):
                return f"{name} runs containers: pid {nested} is in one of its own, or others than root put it there"
            if ends and group is StepGroup.CONTAINER and not own.pod_uid:  # in a pod these outlive the container
                for other, what in used_by_others(self._files, target.pid, inside, self._pids()):
                    return f"pid {other} outside of {name} uses its {what} namespace, and would be cut off"
        except (OSError, ValueError, MissingFact) as error:
            return f"it cannot be seen whose processes {name} runs: {error}"
        never = tuple(each for each in permission.never_processes if each not in _OWN_PARTS[group])
        return (
            self._units.never_among(name, sorted(inside), replace(permission, never_processes=never))
            or self._units.shared_among(
                name, processes, frozenset({target.uid, _ROOT}), containers=group is StepGroup.JOB
            )
            or (self._units.tied_among(name, inside, replace(permission, shared=False)) if ends else "")
        )

    def _look(self, own: Membership, group: StepGroup) -> list[Credentials]:
        """Read everybody in the group, until a listing has no process that is new. Raises OSError, MissingFact."""
        seen: set[int] = set()
        found: dict[int, Credentials] = {}
        for _ in range(LISTINGS):
            new = set(self._pids()) - seen
            if not new:
                break
            seen |= new
            for pid in new:
                try:
                    if _is_in(self._files.read(pid, "cgroup"), own, group):
                        found[pid] = read_credentials(self._files, pid)
                except GONE:
                    continue
        if HOST_INIT not in seen or not self._files.exists(HOST_INIT):
            raise MissingFact("/proc does not show every process")
        return sorted(found.values(), key=lambda each: each.pid)

    def _nested(self, target: Target, processes: Iterable[Credentials], inside: Credentials) -> int:
        """Return a process that is not proven to be in this very container; 0 for none."""
        for each in processes:
            other = self._reader.proven_container(each.pid) != target.proven_container_id
            if (other or each.namespaces > inside.namespaces) and self._files.exists(each.pid):
                return each.pid
        return 0


def _is_in(data: bytes, own: Membership, group: StepGroup) -> bool:
    """Return whether a process is in the group or in a cgroup below it, in any hierarchy, or says that it is."""
    if group is StepGroup.CONTAINER:
        return is_in_container(data, own)
    return parse_cgroup(data).slurm_job == own.slurm_job or is_below(data, own.job_level)


def _name(target: Target, group: StepGroup) -> str:
    if group is StepGroup.CONTAINER:
        return f"container {format_container(target.container_id)}"
    return f"job {target.slurm_job}"
