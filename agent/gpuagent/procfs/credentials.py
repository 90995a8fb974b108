"""Whose a process is and which login it came from, as the kernel has it: see credentials(7).

A process can add to these facts about itself and cannot take them away: to change its user ids takes a right, and so
does a login uid once it is set (CAP_AUDIT_CONTROL). The terminal is the exception, which setsid(2) lets go of. Files
and fields are those of proc(5). All can be read without any right unless /proc is mounted with hidepid.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.living import LivingThread, read_living
from gpuagent.procfs.stat import parse_stat, parse_status
from gpuagent.procfs.thread_uids import read_uids

_UNSET = 2**32 - 1
"""A login uid or audit session that nothing has set: AUDIT_UID_UNSET and AUDIT_SID_UNSET of linux/audit.h."""
_UIDS = 4
"""Real, effective, saved and file system."""
_TERMINAL_FIELD = 7


class MissingFact(Exception):
    """The process is there, and a fact about it is not to be had."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the kernel holds about one process."""

    pid: int
    start_ticks: int
    uids: frozenset[int]
    """Real, effective, saved and file system user ids of all its threads, without repetition."""
    login_uid: int | None
    """The user who logged in, whichever the process has become since; None for what no login started."""
    in_audit_session: bool
    has_terminal: bool
    """It has a controlling terminal."""
    namespaces: int
    """Pid namespaces it is visible in, from the reader's own inwards: more than 1 in a container."""
    cgroup: bytes | None
    """The text of its /proc/<pid>/cgroup; None for one that is ending, which has no place any more."""


def read_credentials(files: ProcFiles, pid: int) -> Credentials:
    """Read one process.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
        MissingFact: it has not, and something cannot be read.
    """
    try:
        stat = files.read(pid, "stat")
        parsed = parse_stat(stat)
        found = read_living(files, parsed, _status_and_cgroup)
        # Of one that is ending, no thread tells where it is.
        status, cgroup = found or (files.read(pid, "status"), None)
        login_uid = _audit_number(files, pid, "loginuid")
        audit_session = _audit_number(files, pid, "sessionid")
        told = parse_status(status)
        namespaces = len(told.namespace_pids)
        if not namespaces:
            raise MissingFact(f"pid {pid}: its pid namespaces are unknown")
        return Credentials(
            pid=pid,
            start_ticks=parsed.start_ticks,
            uids=_uids(files, pid, told.uids),
            login_uid=None if login_uid == _UNSET else login_uid,
            in_audit_session=audit_session != _UNSET,
            has_terminal=_terminal(stat) != 0,
            namespaces=namespaces,
            cgroup=cgroup,
        )
    except (FileNotFoundError, ProcessLookupError):
        raise
    except (OSError, ValueError) as error:
        raise MissingFact(f"pid {pid}: {error}") from error


def _status_and_cgroup(thread: LivingThread) -> tuple[bytes, bytes]:
    return thread.read("status"), thread.read("cgroup")


def _audit_number(files: ProcFiles, pid: int, name: str) -> int:
    """A kernel without audit has no such file, which says nothing about logins."""
    try:
        return int(files.read(pid, name))
    except FileNotFoundError:
        if files.exists(pid):
            raise MissingFact(f"pid {pid}: the kernel does not tell its {name}") from None
        raise


def _uids(files: ProcFiles, pid: int, first: tuple[int, ...]) -> frozenset[int]:
    uids = read_uids(files, pid, first) if len(first) == _UIDS else ()
    if not uids:
        raise MissingFact(f"pid {pid}: its user ids are unknown")
    return frozenset(uids)


def _terminal(stat: bytes) -> int:
    """Field 7, the device number of the controlling terminal. `parse_stat` has found the text to be one of a process.

    The name in front of the fields may contain anything, hence the last parenthesis.
    """
    return int(stat[stat.rfind(b") ") + 2 :].split()[_TERMINAL_FIELD - 3])
