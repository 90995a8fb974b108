"""Tell whether a process that depends on others is their own work: by container, or by user, cgroups and login.

Whoever was started into a container from outside, as by `docker exec`, has a parent outside of it, as long as that
lives. In a pid namespace the first process adopts whatever has lost its parent, so to be its child proves nothing: a
job that `docker exec` has left behind is one too (`find_new_reaper`, kernel/exit.c; a subreaper adopts what descends
from it, and nobody else). There a session tells: it is handed down by fork(2), and what is started from outside brings
another one along. One that begins a session of its own, and whose parent has ended, cannot be traced to anybody: it is
taken to have been started from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.credentials import read_uids
from gpuagent.procfs.files import ProcFiles, parse_status
from gpuagent.procfs.reader import ProcessRecord
from gpuagent_alerts.remedies.facts.process_scan import GONE, ProcessRow, read_placement

_ROOT = 0


class ProcessInfoReader(Protocol):
    """Reads a process in the way in which it was measured, and what says to whom it belongs."""

    def read(self, pid: int) -> ProcessRecord: ...

    def proven_container(self, pid: int) -> str: ...

    def user_now(self, uid: int) -> str:
        """Return the name that the user database has for this user at this moment."""
        ...


def is_anothers_session(
    reader: ProcessInfoReader, rows: Mapping[int, ProcessRow], row: ProcessRow, of: ProcessInfo
) -> bool:
    """Return whether it was started into a container from outside, as by `docker exec`, for a person or another user.

    What the container itself has started is its own, as which users ever.
    """
    if "container" not in of.proven_names or not of.container_id:
        return False
    line = _entered_line(rows, reader.proven_container, row, of.id.pid, of.container_id)
    return any(each.terminal != 0 or not each.uids <= {of.uid, _ROOT} for each in line)


def is_own_work(files: ProcFiles, reader: ProcessInfoReader, pid: int, of: ProcessInfo) -> bool:
    """Return whether it is in the same container, if root has named that.

    Without one, whether all of its threads have the same user, and it has the same cgroups and login.
    """
    if container := of.container_id if "container" in of.proven_names else "":
        return reader.proven_container(pid) == container
    if set(read_uids(files, pid, parse_status(files.read(pid, "status")).uids)) != {of.uid}:
        return False
    return not read_placement(files, of.id.pid).difference(read_placement(files, pid))


def _entered_line(
    rows: Mapping[int, ProcessRow], proven_container: Callable[[int], str], row: ProcessRow, target: int, container: str
) -> tuple[ProcessRow, ...]:
    """Return a process and those that it descends from, up to the one that was started from outside.

    Nobody where it is traced to the target, to one that the target descends from, or to the container's first process.
    """

    def is_inside(pid: int) -> bool:
        try:
            return pid in rows and proven_container(pid) == container
        except GONE:
            return False

    own = {target}
    while (parent := rows[target].parent_pid if target in rows else 0) not in own and is_inside(parent):
        own.add(parent)
        target = parent
    line: dict[int, ProcessRow] = {}
    while row.pid not in line:
        if row.pid in own:
            return ()
        line[row.pid] = row
        if not is_inside(row.parent_pid):
            return () if row.is_namespace_init else tuple(line.values())
        above = rows[row.parent_pid]
        if above.is_namespace_init and len(above.namespace_pids) == len(row.namespace_pids):
            if not is_inside(row.session):
                break
            above = rows[row.session]
        row = above
    return tuple(line.values())
