"""What /proc tells of a process just now, for the decision to act on it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gpuagent.acting import namespaces
from gpuagent.identity import ProcessId
from gpuagent.procfs.files import READ_LIMIT_BYTES, ProcFiles
from gpuagent.procfs.reader import Record
from gpuagent.procfs.stat import Stat, parse_stat, parse_status
from gpuagent_alerts.remedies.target import Facts, Identity

_KERNEL_THREAD = 0x0020_0000  # PF_KTHREAD, include/linux/sched.h
_FLAGS_FIELD = 9
_DIGEST_DIGITS = 16
_HOST_INIT = 1
"""The agent acts in the host's pid namespace alone, where this is the host's init."""
_UID_MAP_FIELDS = 3
_MOUNT_DEVICE, _MOUNT_ROOT, _MOUNT_POINT = 2, 3, 4


class Reader(namespaces.Reader, Protocol):
    """Reads a process in the way in which it was measured, so that both can be compared."""

    def read(self, pid: int) -> Record: ...

    def user_now(self, uid: int) -> str:
        """Return the name that the user database has for this user at this moment."""
        ...


def read_facts(files: ProcFiles, reader: Reader, pid: int, handle_inode: int) -> Facts:
    """Read a process; the caller holds a pidfd, and asks it afterwards whether the process has ended meanwhile.

    Raises FileNotFoundError or ProcessLookupError (gone), other OSErrors and ValueError (not to be read).
    """
    info = reader.read(pid).info
    data = files.read(pid, "stat")
    stat = parse_stat(data)
    status = files.read(pid, "status")
    told = parse_status(status)
    facts = Facts(
        identity=Identity(
            id=ProcessId(info.id.boot_id, pid, stat.start_ticks),
            uid=info.uid,
            name=info.name,
            command_digest=_command_digest(files, pid, stat.state),
            cgroup=info.cgroup,
            executable=_link(files, pid, "exe"),
            proven_names=info.proven_names,
            handle_inode=handle_inode,
        ),
        state=stat.state,
        threads=stat.threads,
        parent_pid=stat.parent_pid,
        user=reader.user_now(info.uid),
        kernel_thread=bool(_flags(data) & _KERNEL_THREAD),
        oom_score_adjust=_number(_text(files, pid, "oom_score_adj")),
        uids=told.uids,
        root_user_namespace=_has_the_hosts_uids(files, pid),
        own_root=_has_own_root(files, pid, stat),
        namespace_pids=told.namespace_pids,
        ignored_signals=_mask(status, b"SigIgn"),
        caught_signals=_mask(status, b"SigCgt"),
        pending_signals=_mask(status, b"SigPnd") | _mask(status, b"ShdPnd"),
        wait_channel=_text(files, pid, "wchan"),
    )
    if not facts.is_namespace_init:
        return facts
    others = namespaces.read_namespace_others(files, reader, info, len(facts.namespace_pids))
    return replace(facts, namespace_others=others)


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


def _has_the_hosts_uids(files: ProcFiles, pid: int) -> bool | None:
    """Return whether the process is in the host's user namespace: that of the host's init (user_namespaces(7))."""
    try:
        host, own = (files.read(each, "uid_map").split() for each in (_HOST_INIT, pid))
    except OSError:
        return None
    return own == host and len(own) == _UID_MAP_FIELDS


def _has_own_root(files: ProcFiles, pid: int, stat: Stat) -> bool | None:
    # A leader that has ended has no root any more, but its threads have.
    thread = _living_thread(pid) if stat.state == "Z" and stat.threads > 1 else None
    try:
        host = files.read(_HOST_INIT, "mountinfo")
        own = files.read(pid, "mountinfo" if thread is None else f"task/{thread}/mountinfo")
    except OSError:
        return None
    at_host, at_own = root_mount(host), root_mount(own)
    if at_host is None or not own or (at_own is None and len(own) >= READ_LIMIT_BYTES):
        return None
    return at_own != at_host


def stuck_thread(pid: int, root: Path = Path("/proc")) -> str:
    """Where in the kernel a thread in state D waits; "" where none does.

    A killed process whose leader has ended already is held up by another of its threads.
    """
    try:
        for folder in (root / str(pid) / "task").iterdir():
            if parse_stat((folder / "stat").read_bytes()).state == "D":
                return (folder / "wchan").read_text(encoding="ascii", errors="replace").strip()
    except (OSError, ValueError):  # they come and go
        pass
    return ""


def _living_thread(pid: int, root: Path = Path("/proc")) -> int | None:
    """Return a thread of the process that has not ended."""
    try:
        threads = [int(folder.name) for folder in (root / str(pid) / "task").iterdir()]
    except OSError:
        return None
    return next((thread for thread in threads if thread != pid), None)


def _command_digest(files: ProcFiles, pid: int, state: str) -> str:
    """Not of one in state D: its command line lies in its memory, and a read could wait with it for ever."""
    if state == "D":
        return ""
    return hashlib.sha256(files.read(pid, "cmdline")).hexdigest()[:_DIGEST_DIGITS]


def _flags(stat: bytes) -> int:
    """Field 9 of proc_pid_stat(5), which `parse_stat` has found to be one."""
    return int(stat[stat.rfind(b") ") + 2 :].split()[_FLAGS_FIELD - 3])


def _mask(status: bytes, name: bytes) -> int:
    for line in status.split(b"\n"):
        key, _, value = line.partition(b":")
        if key == name:
            return int(value.strip() or b"0", 16)
    return 0


def _text(files: ProcFiles, pid: int, name: str) -> str:
    try:
        return files.read(pid, name).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _link(files: ProcFiles, pid: int, name: str) -> str | None:
    try:
        return files.link(pid, name)
    except OSError:
        return None


def _number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdigit() else None
