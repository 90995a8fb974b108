"""Find whether the container that a process is in is its user's own: Apptainer, enroot, pyxis, bubblewrap, unshare(1).

Such a container has no name that root gave, so that no entry of an allow list can mean it. It is the user's own where
root's cgroups say so - the slice of that user, or a job of Slurm's - and where every process that its pid namespaces
began with is that user's as well. What a container runtime of root's has made lies in cgroups of the runtime. A process
of a container that has the user's number as its user id lies there too.
"""

from __future__ import annotations

from collections.abc import Collection

from gpuagent.procfs.cgroup_owner import Name
from gpuagent.procfs.files import ProcFiles, parse_stat, parse_status
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from gpuagent_alerts.remedies.facts.unit_places import read_place

_MOST_ANCESTORS = 256
_ROOT = 0


def is_in_users_container(files: ProcFiles, pid: int, uids: Collection[int], proven_names: Collection[str]) -> bool:
    """Return whether the container of a process, if it is in one, is its user's own; False where that cannot be seen.

    `uids` are those of all its threads.
    """
    owners = set(uids)
    if len(owners) != 1 or _ROOT in owners:
        return False
    try:
        place = read_place(files, pid)
        if place.in_container or not (place.user_id in owners or Name.JOB in proven_names):
            return False
        return _began_with(files, pid, owners)
    except (OSError, ValueError, UnseenProcesses):
        return False


def _began_with(files: ProcFiles, pid: int, owners: set[int]) -> bool:
    """Return whether all ancestors inside of its pid namespaces are of these users, down from the first of each.

    Who has come into a namespace from outside has no ancestor that was the first there. Raises OSError, ValueError.
    """
    status = parse_status(files.read(pid, "status"))
    depth, is_first = len(status.namespace_pids), False
    for _ in range(_MOST_ANCESTORS):
        level = len(status.namespace_pids)
        if level == 0 or level > depth or (level < depth and not is_first):
            return False
        if level == 1:
            return True
        if set(status.uids) != owners:
            return False
        depth, is_first = level, status.namespace_pids[-1] == 1
        pid = parse_stat(files.read(pid, "stat")).parent_pid
        status = parse_status(files.read(pid, "status"))
    return False
