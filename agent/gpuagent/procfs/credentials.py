"""Read whose a process is, which login it came from, and whether it is in a container: see credentials(7).

All of it is the kernel's word, whatever the cgroup of the process is called. A process can add to these facts about
itself and cannot take them away: to change its user ids takes a right, and so does a login uid once it is set
(CAP_AUDIT_CONTROL). The terminal is the exception, which setsid(2) lets go of. Files and fields are those of proc(5).
All can be read without any right unless /proc is mounted with hidepid.

The kernel knows user ids of threads alone: the C library keeps those of a process the same, and setresuid(2) called
directly changes one. File servers do that to act for their clients. `/proc/PID/status` is that of the first thread. So
all threads are read, but only where somebody is judged: a process may have thousands of them.

Cgroups of version 1 move single threads, so whether all threads are in one unit, container and job is asked as well.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from gpuagent.procfs.cgroup import parse_cgroup
from gpuagent.procfs.files import (
    LivingThread,
    ProcessStatus,
    ProcFiles,
    Stat,
    parse_stat,
    parse_status,
    read_living,
)

MOST_THREADS = 8192
_MOST_LISTINGS = 16
"""A server that starts a thread for each of 500 requests a second is seen whole at the second or third."""
_UIDS = 4
_GONE = (FileNotFoundError, ProcessLookupError)


def read_uids(files: ProcFiles, pid: int, first: tuple[int, ...]) -> tuple[int, ...]:
    """Return the real, effective, saved and file system user ids of all threads; () where that cannot be seen.

    `first` are the four of the first thread, which are returned as they are where all others have the same. More users
    are returned each once, in order. A thread that ends meanwhile has no rights any more; those that have begun are
    read, too, until a listing has none that was not.
    """
    found = set(first)
    read = {pid}
    try:
        for _ in range(_MOST_LISTINGS):
            threads = files.threads(pid)
            new = set(threads) - read
            if not threads or len(threads) > MOST_THREADS:
                return ()
            if not new:
                # The first thread comes last, as it may be the one that makes the others.
                found.update(_four_ids(files.read(pid, "status")))
                return first if found == set(first) else tuple(sorted(found))
            for thread in new:
                with suppress(*_GONE):
                    found.update(_four_ids(files.read(pid, f"task/{thread}/status")))
            read |= new
    except (OSError, ValueError):
        pass
    return ()


def _four_ids(status: bytes) -> tuple[int, ...]:
    uids = parse_status(status).uids
    if len(uids) != _UIDS:
        raise ValueError("the user ids of a thread are unknown")
    return uids


_HOST_INIT = 1
"""The agent acts in the host's pid namespace alone, where this is the host's init."""
_UID_MAP_FIELDS = 3
_MOUNT_DEVICE, _MOUNT_ROOT, _MOUNT_POINT = 2, 3, 4


def is_on_host(files: ProcFiles, pid: int, stat: Stat, status: ProcessStatus) -> bool:
    """Return whether it has the host's pid namespace, user ids and root directory: then its user is an account here.

    A container chooses the user ids of its processes, and those of the host mean nothing in it. False also where that
    cannot be seen.
    """
    return len(status.namespace_pids) == 1 and has_host_uids(files, pid) is True and has_own_root(files, stat) is False


def root_mount(mounts: bytes) -> tuple[bytes, bytes] | None:
    """Return device and path of what a process has at `/`, of its mountinfo (proc_pid_mountinfo(5)).

    None where nothing is mounted there: a process after chroot(2) sees only the mounts below its root. Unlike the link
    `root`, mountinfo may be read without the right to trace the process (measured on Linux 6.18).
    """
    found = None
    for line in mounts.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) > _MOUNT_POINT and fields[_MOUNT_POINT] == b"/":
            found = fields[_MOUNT_DEVICE], fields[_MOUNT_ROOT]  # the last one lies on top
    return found


def has_host_uids(files: ProcFiles, pid: int) -> bool | None:
    """Return whether the process is in the host's user namespace: that of the host's init (user_namespaces(7))."""
    try:
        host, own = (files.read(each, "uid_map").split() for each in (_HOST_INIT, pid))
    except OSError:
        return None
    return own == host and len(own) == _UID_MAP_FIELDS


def has_own_root(files: ProcFiles, stat: Stat) -> bool | None:
    """Return whether its root directory is another than the host's; None where that cannot be seen."""
    try:
        host = files.read(_HOST_INIT, "mountinfo")
        own = read_living(files, stat, lambda thread: thread.read("mountinfo"))
    except (OSError, ValueError):
        return None
    if not own:
        return None
    at_host, at_own = root_mount(host), root_mount(own)
    return None if at_host is None else at_own != at_host


_UNSET = 2**32 - 1
"""A login uid or audit session that nothing has set: AUDIT_UID_UNSET and AUDIT_SID_UNSET of linux/audit.h."""
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
    """Whether it has a controlling terminal."""
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
        identity = parse_status(status)
        namespaces = len(identity.namespace_pids)
        if not namespaces:
            raise MissingFact(f"pid {pid}: its pid namespaces are unknown")
        return Credentials(
            pid=pid,
            start_ticks=parsed.start_ticks,
            uids=_uids(files, pid, identity.uids),
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
    """Read a number of audit: a kernel without it has no such file, which says nothing about logins."""
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
    """Read field 7, the device number of the controlling terminal, of a text in which `parse_stat` found a process.

    The name in front of the fields may contain anything, hence the last parenthesis.
    """
    return int(stat[stat.rfind(b") ") + 2 :].split()[_TERMINAL_FIELD - 3])


_UNKNOWN = "it cannot be told whether all of its threads run in one place"


def thread_elsewhere(files: ProcFiles, pid: int, cgroups: bytes) -> str:
    """Return that a thread is in another unit, container or job than `cgroups` say, or may be; "" where none is.

    A thread that is about to exit is in no cgroup any more, and counts for nothing.
    """
    place = _place(cgroups)
    try:
        threads = files.threads(pid)
        if len(threads) > MOST_THREADS:
            return f"{_UNKNOWN}: it has more than {MOST_THREADS}"
        for thread in threads:
            try:
                found = files.read(pid, f"task/{thread}/cgroup")
                if found == cgroups or _place(found) == place:
                    continue
                if not parse_stat(files.read(pid, f"task/{thread}/stat")).exiting:
                    return f"its thread {thread} runs in another unit, container or job than the process is told to"
            except _GONE:
                continue
    except _GONE:
        return ""
    except (OSError, ValueError) as error:
        return f"{_UNKNOWN}: {error}"
    return ""


def _place(cgroups: bytes) -> tuple[str, ...]:
    found = parse_cgroup(cgroups)
    return found.unit, found.container_id, found.pod_uid, found.slurm_job
