"""Tell whether a process that depends on others is their own work: by container, or by user, cgroups and login."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.credentials import read_uids
from gpuagent.procfs.files import ProcFiles, parse_status
from gpuagent.procfs.reader import ProcessRecord
from gpuagent_alerts.remedies.facts.container_entries import entered_line
from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, read_placement

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
    line = entered_line(rows, reader.proven_container, row, of.id.pid, of.container_id)
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
