"""Find the processes that the kernel hangs up when others end: terminals and job control.

* The leader of a session with a terminal ends: SIGHUP goes to the foreground process group of that terminal, whoever
  its processes belong to, as what a person runs by `sudo -u somebody` in a shell (`disassociate_ctty`,
  drivers/tty/tty_jobctrl.c).
* A process group becomes an orphan while a member of it is stopped: nobody is left who could continue it, so it gets
  SIGHUP and SIGCONT (`kill_orphaned_pgrp`, kernel/exit.c). It is kept by a member whose parent is in another group of
  the same session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpuagent.acting.process_scan import ProcessRow, ProcessScan

_HOST_INIT = 1


def in_foreground_of(scan: ProcessScan, leader: ProcessRow) -> Iterator[ProcessRow]:
    """Yield who is in the foreground of the terminal of a session's leader; nobody where it is no such leader."""
    if leader.session == leader.pid and leader.terminal and leader.foreground > 0:
        yield from (row for row in scan.rows.values() if row.group == leader.foreground)


def in_orphaned_groups(scan: ProcessScan, ended: Collection[int]) -> Iterator[ProcessRow]:
    """Yield who is in a group with a stopped member that becomes an orphan when these processes end."""
    stopped = {row.group for row in scan.rows.values() if row.is_stopped and row.pid not in ended}
    for group in (each for each in stopped if each > 0):
        members = [row for row in scan.rows.values() if row.group == group]
        keepers = [(row.pid, row.parent_pid) for row in members if _keeps(scan, row)]
        if keepers and all(pid in ended or parent in ended for pid, parent in keepers):
            yield from members


def _keeps(scan: ProcessScan, member: ProcessRow) -> bool:
    """Return whether a member's parent keeps its group from being an orphan."""
    parent = scan.rows.get(member.parent_pid)
    return (
        parent is not None
        and parent.pid != _HOST_INIT
        and parent.group != member.group
        and parent.session == member.session
    )
