"""Tell what a container has started from what was started into it from outside, as by `docker exec`.

Whoever was started into it has a parent outside of it, as long as that lives. In a pid namespace the first process
adopts whatever has lost its parent, so to be its child proves nothing: a job that `docker exec` has left behind is
one too (`find_new_reaper`, kernel/exit.c; a subreaper adopts what descends from it, and nobody else). There a session
tells: it is handed down by fork(2), and what is started from outside brings another one along. One that begins a
session of its own, and whose parent has ended, cannot be traced to anybody: it is taken to have been started from
outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuagent_alerts.remedies.facts.process_scan import GONE, ProcessRow


def entered_line(
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
