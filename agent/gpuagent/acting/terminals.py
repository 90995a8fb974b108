"""Find the processes that the kernel hangs up when the leader of a session with a terminal ends.

Then it sends SIGHUP to the foreground process group of that terminal, whoever its processes belong to: what a person
runs by `sudo -u somebody` in a shell. Stopped jobs of the session are hung up as well, since nobody is left who could
continue them (setsid(2), credentials(7); `disassociate_ctty` in drivers/tty/tty_jobctrl.c, `kill_orphaned_pgrp` in
kernel/exit.c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpuagent.acting.members import Reader, read_member
from gpuagent.acting.namespaces import list_pids
from gpuagent.acting.never_entries import NOTHING, NeverLook
from gpuagent.procfs.files import ProcFiles
from gpuagent.reading import ProcessInfo
from gpuagent_alerts.remedies.target import MAX_NAMESPACE_MEMBERS, NamespaceMember

_HOST_INIT = 1
_GONE = (FileNotFoundError, ProcessLookupError)
_STOPPED = frozenset({b"T", b"t"})


class _Job(NamedTuple):
    """Fields 3, 5 to 8 and 20 of proc_pid_stat(5)."""

    state: bytes
    group: int
    session: int
    terminal: int
    foreground: int
    """Process group in the foreground of the terminal; -1 for none."""
    threads: int


def hung_up_with(
    files: ProcFiles,
    reader: Reader,
    leader: ProcessInfo,
    pids: Callable[[], Iterable[int]] = list_pids,
    never: NeverLook = NOTHING,
) -> tuple[NamespaceMember, ...] | None:
    """Return whom the kernel hangs up when `leader` ends; () where it leads no session with a terminal.

    None means that not every process can be seen. It ends with the first beyond `MAX_NAMESPACE_MEMBERS`.
    """
    found: list[NamespaceMember] = []
    everybody_is_seen = False
    try:
        own = _read(files, leader.id.pid)
        if own.session != leader.id.pid or not own.terminal:
            return ()
        for pid in pids():
            try:
                job = _read(files, pid)
                everybody_is_seen = everybody_is_seen or pid == _HOST_INIT
                if pid == leader.id.pid or not _is_hung_up(job, own):
                    continue
                found.append(read_member(files, reader, pid, leader, never=never))
            except _GONE:
                continue
            if len(found) > MAX_NAMESPACE_MEMBERS:
                break
    except _GONE:
        raise
    except (OSError, ValueError):
        return None
    return tuple(found) if everybody_is_seen else None


def _is_hung_up(job: _Job, leader: _Job) -> bool:
    if job.state in {b"Z", b"X"} and job.threads <= 1:  # where more live, its first thread alone has ended
        return False
    return job.group == leader.foreground or (job.session == leader.session and job.state in _STOPPED)


def _read(files: ProcFiles, pid: int) -> _Job:
    """Raises OSError, and ValueError for what is no stat file."""
    data = files.read(pid, "stat")
    fields = data[data.rfind(b") ") + 2 :].split()
    if len(fields) < 18:
        raise ValueError(f"not a stat file of a process: {data[:80]!r}")
    return _Job(fields[0], *(int(each) for each in (*fields[2:6], fields[17])))
