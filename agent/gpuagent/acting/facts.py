"""What /proc tells of a process just now, for the decision to act on it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gpuagent.acting import members
from gpuagent.acting.digests import CommandDigests
from gpuagent.acting.freezer import frozen_by
from gpuagent.acting.identities import read_identity
from gpuagent.acting.judged_facts import with_judged
from gpuagent.acting.never_entries import NOTHING, NeverLook
from gpuagent.procfs.containment import has_host_uids, has_own_root
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.stat import parse_stat, parse_status
from gpuagent_alerts.remedies.target import Facts

_KERNEL_THREAD = 0x0020_0000  # PF_KTHREAD, include/linux/sched.h


class Reader(members.Reader, Protocol):
    """Reads a process in the way in which it was measured, so that both can be compared."""

    def user_now(self, uid: int) -> str:
        """Return the name that the user database has for this user at this moment."""
        ...


def read_facts(
    files: ProcFiles,
    reader: Reader,
    pid: int,
    handle_inode: int,
    digests: CommandDigests,
    never: NeverLook = NOTHING,
) -> Facts:
    """Read a process; the caller holds a pidfd, and asks it afterwards whether the process has ended meanwhile.

    Raises FileNotFoundError or ProcessLookupError (gone), other OSErrors and ValueError (not to be read).
    """
    seen = read_identity(files, reader, pid, handle_inode, digests)
    stat, status, info = seen.stat, seen.status, seen.info
    told = parse_status(status)
    wait_channel = _text(files, pid, "wchan")
    facts = Facts(
        identity=seen.identity,
        state=stat.state,
        threads=stat.threads,
        ending=seen.ending,
        parent_pid=stat.parent_pid,
        user=reader.user_now(info.uid),
        kernel_thread=bool(stat.flags & _KERNEL_THREAD),
        oom_score_adjust=_number(_text(files, pid, "oom_score_adj")),
        uids=told.uids,
        root_user_namespace=has_host_uids(files, pid),
        own_root=has_own_root(files, stat),
        namespace_pids=told.namespace_pids,
        ignored_signals=_mask(status, b"SigIgn"),
        caught_signals=_mask(status, b"SigCgt"),
        pending_signals=_mask(status, b"SigPnd") | _mask(status, b"ShdPnd"),
        wait_channel=wait_channel,
        frozen_by=frozen_by(seen.identity.cgroups, wait_channel),
        switches=_switches(status),
    )
    return with_judged(facts, files, pid, never)


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


def _switches(status: bytes) -> int | None:
    """Count how often it began to run; None where the kernel does not tell."""
    found = [
        int(value)
        for key, _, value in (line.partition(b":") for line in status.split(b"\n"))
        if key in {b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches"} and value.strip().isdigit()
    ]
    return sum(found) if len(found) == 2 else None


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


def _number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdigit() else None
