"""Find the container that a unit is made of: podman runs one for each quadlet, with conmon as the unit's main process.

conmon starts the container and ends with it, so a restart of the unit stops and starts both by design. It counts as the
unit's own where systemd names it as the main process, and it is root's, by its file, and no process of a container.
Whoever descends from it is in its container. A conmon that is not the main process monitors another container: what
`podman exec` or a script of the unit has started. Where the container has processes of more than one user beside its
root, it may be a hub or a queue, which runs the work of several.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpuagent.procfs.credentials import Credentials, has_own_root
from gpuagent.procfs.files import ProcFiles, Stat, parse_stat
from gpuagent_alerts.remedies.facts.job_starters import runs_program

MONITOR = "conmon"
MONITOR_ENTRY = "conmon*"
"""Entry of the built-in never-list that means it."""
_ROOT = 0
_HOST_NAMESPACES = 1
_CONTAINER_NAMESPACES = 2
"""Pid namespaces that a process of a container is visible in; one in a container inside of it is in more."""


class UnitContainers(NamedTuple):
    """The monitors of containers in a unit, and the processes of the unit's own container."""

    monitors: frozenset[int] = frozenset()
    """Pid of each conmon of root's."""
    others: frozenset[int] = frozenset()
    """Those of them that are not the unit's main process."""
    inside: frozenset[tuple[int, int]] = frozenset()
    """Pid and start of each process in the container of the unit's main process."""
    first: frozenset[int] = frozenset()
    """Those of them that the main process has started itself: the first process of the container."""

    def holds(self, process: Credentials) -> bool:
        """Return whether a process is in the container that the unit is made of."""
        return (process.pid, process.start_ticks) in self.inside


NO_CONTAINERS = UnitContainers()


def find_users(files: ProcFiles, processes: Iterable[Credentials], own: UnitContainers) -> frozenset[int]:
    """Return the users in the unit's own container, but for root and the container's own root.

    Raises OSError, ValueError where it cannot be told which user that is.
    """
    users = frozenset(uid for each in processes if own.holds(each) for uid in each.uids) - {_ROOT}
    return users - {_root_in(files, pid) for pid in own.first} if users else users


def _root_in(files: ProcFiles, pid: int) -> int | None:
    """Return which user is root in the user namespace of a process, None for nobody: see user_namespaces(7)."""
    for line in files.read(pid, "uid_map").splitlines():
        inside, outside, _ = map(int, line.split())
        if inside == _ROOT:
            return outside
    return None


def find_containers(files: ProcFiles, processes: Collection[Credentials], main_pid: int) -> UnitContainers:
    """Return what is seen among the processes of a unit; `main_pid` is systemd's word, 0 for none. Raises OSError.

    What cannot be read is no monitor, and what has ended is left out.
    """
    stats = {each.pid: stat for each in processes if (stat := _read_stat(files, each)) is not None}
    monitors = {each.pid for each in processes if each.pid in stats and _is_monitor(files, each, stats[each.pid])}
    if main_pid not in monitors:
        return UnitContainers(frozenset(monitors), frozenset(monitors))
    below = _descendants(stats.values(), main_pid) - monitors
    inside = {
        (each.pid, each.start_ticks)
        for each in processes
        if each.pid in below and each.namespaces <= _CONTAINER_NAMESPACES
    }
    first = {pid for pid, _ in inside if stats[pid].parent_pid == main_pid}
    return UnitContainers(frozenset(monitors), frozenset(monitors - {main_pid}), frozenset(inside), frozenset(first))


def _read_stat(files: ProcFiles, process: Credentials) -> Stat | None:
    try:
        stat = parse_stat(files.read(process.pid, "stat"))
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return stat if stat.start_ticks == process.start_ticks else None


def _is_monitor(files: ProcFiles, process: Credentials, stat: Stat) -> bool:
    if process.uids != {0} or process.namespaces != _HOST_NAMESPACES:
        return False
    try:
        return runs_program(files, process.pid, stat.state, {MONITOR}) and has_own_root(files, stat) is False
    except (OSError, ValueError):
        return False


def _descendants(stats: Iterable[Stat], ancestor: int) -> frozenset[int]:
    children: dict[int, list[int]] = {}
    for each in stats:
        children.setdefault(each.parent_pid, []).append(each.pid)
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(new)
        waiting += new
    return frozenset(found)
