"""Find whether the container that a process is in is its user's own: Apptainer, enroot, pyxis, bubblewrap, unshare(1).

Such a container has no name that root gave, so that no entry of an allow list can mean it. It is the user's own where
root's cgroups say so - the slice of that user, or a job of Slurm's - and where the user has made it. Without privileges
that takes a user namespace: a pid namespace or another root directory in the host's user namespace was made by root, or
by a program with root's rights, whatever user id its processes have. Who made a user namespace is told by who started
the first process in there; where that is not the user (Slurm starts a task in the user's container as root, as pyxis
has it), by the kernel: see ioctl_nsfs(2) and user_namespaces(7). What a container runtime of root's has made lies in
cgroups of the runtime.
"""

from __future__ import annotations

import array
import fcntl
import os
from collections.abc import Callable, Collection
from pathlib import Path

from gpuagent.procfs.cgroup_owner import Name
from gpuagent.procfs.credentials import has_host_uids, has_own_root
from gpuagent.procfs.files import ProcFiles, parse_stat, parse_status
from gpuagent.procfs.hanging import READS
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from gpuagent_alerts.remedies.facts.unit_places import read_place

_MOST_ANCESTORS = 256
_ROOT = 0
_NS_GET_USERNS = 0xB701
_NS_GET_PARENT = 0xB702
_NS_GET_OWNER_UID = 0xB704


def maker_of_namespaces(pid: int, root: Path = Path("/proc")) -> int | None:
    """Return who made the user namespace of a process, with its mount namespace and its pid namespace.

    None where that cannot be seen, where the user namespace does not lie directly in the agent's own, which is the
    host's wherever the agent may act, or where one of the two others belongs to another user namespace; a pid namespace
    that is the agent's own counts for nothing. Without privileges a pid or mount namespace is made only in a user
    namespace of the same user. To open the files takes the right to trace the process. The caller sees to it that the
    pid is still that of the same process.
    """
    host, own = root / "self" / "ns", root / str(pid) / "ns"
    opened: list[int] = []

    def keep(descriptor: int) -> int:
        opened.append(descriptor)
        return descriptor

    def open_file(path: Path) -> int:
        with READS.reading(pid, "ns"):
            return keep(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    try:
        user = open_file(own / "user")
        if not _is_same(keep(fcntl.ioctl(user, _NS_GET_PARENT)), open_file(host / "user")):
            return None
        for name in ("mnt", "pid"):
            namespace = open_file(own / name)
            if name == "pid" and _is_same(namespace, open_file(host / name)):
                continue
            if not _is_same(keep(fcntl.ioctl(namespace, _NS_GET_USERNS)), user):
                return None
        owner = array.array("I", [0])
        fcntl.ioctl(user, _NS_GET_OWNER_UID, owner)
        return owner[0]
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _is_same(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def is_in_users_container(
    files: ProcFiles,
    pid: int,
    uids: Collection[int],
    proven_names: Collection[str],
    maker_of: Callable[[int], int | None] = maker_of_namespaces,
) -> bool:
    """Return whether the container of a process, if it is in one, is its user's own; False where that cannot be seen.

    `uids` are those of all its threads, and `maker_of` tells who made the namespaces of a process.
    """
    owners = set(uids)
    if len(owners) != 1 or _ROOT in owners:
        return False
    try:
        place = read_place(files, pid)
        if place.in_container or not (place.user_id in owners or Name.JOB in proven_names):
            return False
        return _is_made_by(files, pid, owners, maker_of)
    except (OSError, ValueError, UnseenProcesses):
        return False


def _is_made_by(files: ProcFiles, pid: int, owners: set[int], maker_of: Callable[[int], int | None]) -> bool:
    """Return whether one of these users has made the container: up from the process to who is outside of it.

    Whoever is inside has to be of these users, and in a user namespace. Who has come into a pid namespace from outside
    has no ancestor that was the first there. Raises OSError, ValueError.
    """
    status = parse_status(files.read(pid, "status"))
    outermost, started, depth, is_first = pid, 0, len(status.namespace_pids), False
    for _ in range(_MOST_ANCESTORS):
        level = len(status.namespace_pids)
        if level == 0 or level > depth or (level < depth and not is_first):
            return False
        stat = parse_stat(files.read(pid, "stat"))
        is_on_host = has_host_uids(files, pid)
        if is_on_host and level == 1 and has_own_root(files, stat) is False:
            return set(status.uids) == owners or _is_proven(files, outermost, started, owners, maker_of)
        if is_on_host is not False or set(status.uids) != owners:
            return False
        outermost, started = pid, stat.start_ticks
        depth, is_first = level, status.namespace_pids[-1] == 1
        pid = stat.parent_pid
        status = parse_status(files.read(pid, "status"))
    return False


def _is_proven(
    files: ProcFiles, pid: int, started: int, owners: set[int], maker_of: Callable[[int], int | None]
) -> bool:
    """Return whether the kernel says that one of these users has made the namespaces of this very process."""
    return maker_of(pid) in owners and parse_stat(files.read(pid, "stat")).start_ticks == started
