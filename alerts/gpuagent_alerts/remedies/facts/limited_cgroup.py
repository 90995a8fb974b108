"""Which cgroup a memory limit on a process is set on, and who else is in there.

That of its container, else of its Slurm job, else of its unit: one of root's making, which nobody but root may move a
process into or out of. Everything here reads files and may block: call it in a thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpuagent.core.identity import format_container
from gpuagent.core.memory_limits import CGROUP_ROOT
from gpuagent.procfs.cgroup import CgroupLevel, Membership, UnreadableTree, parse_cgroup, processes_in
from gpuagent.procfs.cgroup_owner import CgroupOwners
from gpuagent.procfs.files import ProcFiles, parse_stat
from gpuagent_alerts.remedies.facts.container_processes import GroupProcesses
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import NotPossibleHere, ProcessEnded, UnitPermission
from gpuagent_alerts.remedies.steps import StepGroup
from gpuagent_alerts.remedies.target import Target


class LimitedCgroup(NamedTuple):
    """A cgroup that may have a limit, or why there is none."""

    path: str = ""
    """From the root of the hierarchy."""
    name: str = ""
    """The unit, container or job whose cgroup it is, for people."""
    inode: int = 0
    """Inode of its folder, by which one that was made anew under the same name is told from it."""
    refusal: str = ""


class LimitedCgroups:
    """Finds the cgroup of a process that may have a memory limit."""

    def __init__(
        self,
        files: ProcFiles,
        units: UnitProcesses,
        groups: GroupProcesses,
        owners: CgroupOwners | None = None,
        root: str = CGROUP_ROOT,
    ) -> None:
        """`root` is where the driver wants cgroup version 2 to be."""
        self._files = files
        self._units = units
        self._groups = groups
        self._owners = owners or CgroupOwners(root)
        self._root = Path(root)

    def find(self, target: Target, permission: UnitPermission) -> LimitedCgroup:
        """Return the cgroup, and everybody in it judged. Raises ProcessEnded."""
        found = self._find(target)
        if found.refusal:
            return found
        if target.container_id or target.slurm_job:
            group = StepGroup.CONTAINER if target.container_id else StepGroup.JOB
            refusal = self._groups.refusal(target, group, permission, ends=False)
        else:
            refusal = (
                permission.against([target.unit])
                or self._units.never_ended(target.unit, found.path, permission)
                or self._units.shared_with(target.unit, found.path, target.uid)
            )
        return found._replace(refusal=refusal)

    def held_bytes(self, cgroup: str, gpu_uuid: str, everybody: tuple[Target, ...]) -> int | None:
        """Return what the processes of a cgroup hold on a GPU; None where that is not known of all of them."""
        try:
            inside = processes_in(self._root / cgroup.lstrip("/"))
        except UnreadableTree:
            return None
        held = [each.used_bytes for each in everybody if each.key.gpu_uuid == gpu_uuid and each.pid in inside]
        return sum(held) if all(held) else None  # 0 stands for what the driver does not tell

    def left(self, cgroup: str, pid: int) -> str:
        """Return that a process is not in a cgroup any more; "" while it is."""
        try:
            inside = processes_in(self._root / cgroup.lstrip("/"))
        except UnreadableTree:
            return f"it cannot be seen whether pid {pid} is in {cgroup}"
        return "" if pid in inside else f"pid {pid} is not in {cgroup} any more"

    def _find(self, target: Target) -> LimitedCgroup:
        try:
            data = self._files.read(target.pid, "cgroup")
            if parse_stat(self._files.read(target.pid, "stat")).start_ticks != target.id.start_ticks:
                raise ProcessEnded
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessEnded from None
        except (OSError, ValueError) as error:
            return LimitedCgroup(refusal=f"it cannot be seen in which cgroup pid {target.pid} is: {error}")
        return self._of(target, *_level(target, parse_cgroup(data)))

    def _of(self, target: Target, name: str, level: CgroupLevel | None) -> LimitedCgroup:
        """Return the cgroup at this level of the hierarchy, by its name for people."""
        if level is None:
            return LimitedCgroup(refusal=f"pid {target.pid} is not in {name} any more")
        if level.controllers:
            why = f"the cgroup of {name} is one of version 1: memory limits need version 2"
            return LimitedCgroup(refusal=NotPossibleHere(why))
        segments = self._owners.absolute(level)
        if segments is None:
            why = f"the cgroup of {name} cannot be seen from the agent's cgroup namespace: run it on the host"
            return LimitedCgroup(refusal=NotPossibleHere(why))
        whole = not target.container_id  # the directory of a container may be its own root's; those above may not
        if not self._owners(level, whole=whole):
            return LimitedCgroup(
                refusal=f"others than root may move processes out of the cgroup of {name}, and so out of a memory limit"
            )
        path = f"/{'/'.join(segments)}"
        try:
            inode = (self._root / path.lstrip("/")).lstat().st_ino
        except OSError as error:
            return LimitedCgroup(refusal=f"the cgroup of {name} cannot be read: {error.strerror}")
        return LimitedCgroup(path, name, inode)


def _level(target: Target, own: Membership) -> tuple[str, CgroupLevel | None]:
    """Return the name of what is limited, and its cgroup; None where the process has left it."""
    if target.container_id:
        is_in = own.container_id == target.container_id
        return f"container {format_container(target.container_id)}", own.container_level if is_in else None
    if target.slurm_job:
        return f"job {target.slurm_job}", own.job_level if own.slurm_job == target.slurm_job else None
    return target.unit, own.unit_level if own.unit == target.unit else None
