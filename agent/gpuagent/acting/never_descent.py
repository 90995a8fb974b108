"""Which ancestors of a process an entry of the never-list may mean instead of it: workers are their program's own.

A program's workers are often called otherwise: `multiprocessing` starts them as `python -c ...`, servers write a title
over their command line. So an ancestor of the same user counts, through any number of parents, in the same cgroups or
above them and of the same login: within a session, a unit or a container. In a unit or a container root's ancestors
count too, as a server's workers give its rights up.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuagent.acting.own_work import Place, read_place
from gpuagent.procfs.cgroup import parse_cgroup
from gpuagent.procfs.files import ProcFiles, Stat, parse_stat, parse_status

_GONE = (FileNotFoundError, ProcessLookupError)
_HOST_INIT = 1
_MOST_ANCESTORS = 256
_ROOT = frozenset({0})


Row = tuple[Stat, frozenset[int], Place]
"""A process, its users, and where it runs."""


def own_ancestors(files: ProcFiles, pid: int, known: dict[int, Row]) -> Iterator[Stat]:
    """Yield each ancestor that may answer for a process, the nearest first; none of one that has ended since.

    `known` are those that were read for others at this moment. Raises FileNotFoundError or ProcessLookupError (the
    process has gone), OSError and ValueError (not to be read).
    """
    stat, uids, place = _read(files, pid)
    for _ in range(_MOST_ANCESTORS):
        if stat.parent_pid <= _HOST_INIT:
            return
        try:
            if stat.parent_pid not in known:
                known[stat.parent_pid] = _read(files, stat.parent_pid)
        except _GONE:
            return
        above, others, where = known[stat.parent_pid]
        if above.start_ticks > stat.start_ticks or where.difference(place):  # its number has changed hands, or a border
            return
        if others == uids or (others == _ROOT and _is_supervised(place)):
            yield above
        stat = above


def _read(files: ProcFiles, pid: int) -> Row:
    stat = parse_stat(files.read(pid, "stat"))
    return stat, frozenset(parse_status(files.read(pid, "status")).uids), read_place(files, pid)


def _is_supervised(place: Place) -> bool:
    membership = parse_cgroup(place.cgroups)
    return bool(membership.unit or membership.container_id)
