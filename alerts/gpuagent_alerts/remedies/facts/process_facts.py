"""What /proc tells of a process just now, for the decision to act on it.

What tells a process, and the program that it runs, from every other one is read in one way wherever it is compared
(`read_identity`). All of its threads, and its script, are read only where somebody decides about it.

A process that the freezer of cgroups of version 2 holds looks asleep (state S), and a signal stays pending until it is
thawed. Only SIGKILL ends it at once (Documentation/admin-guide/cgroup-v2.rst, `cgroup.freeze`). The freezer of version
1 puts it into state D. `docker pause`, `systemctl freeze` and a user's own cgroup do so.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.cgroup import path_in_hierarchy, systemd_hierarchies, version_1_roots
from gpuagent.procfs.credentials import has_host_uids, has_own_root, read_uids, thread_elsewhere
from gpuagent.procfs.files import LivingThread, ProcFiles, Stat, parse_stat, parse_status, read_living
from gpuagent.procfs.hanging import READS
from gpuagent.procfs.programs import read_command_line, read_program
from gpuagent_alerts.remedies.facts.checkpoints import find_checkpointing, find_restore
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.never_entries import NO_ENTRIES, NeverListSnapshot
from gpuagent_alerts.remedies.facts.own_work import ProcessInfoReader
from gpuagent_alerts.remedies.facts.user_containers import is_in_users_container
from gpuagent_alerts.remedies.target import Facts, Identity

_KERNEL_THREAD = 0x0020_0000  # PF_KTHREAD, include/linux/sched.h
_MOUNTINFO = Path("/proc/self/mountinfo")
_TRAP = "do_freezer_trap"
"""Where in the kernel a frozen process waits (kernel/signal.c)."""
_REFRIGERATOR = "__refrigerator"
"""Where it waits when a freezer of version 1 has frozen it, and while the machine goes to sleep (kernel/freezer.c)."""
_TEXT_SIZE = re.compile(rb"^VmExe:\s*(\d+)", re.MULTILINE)


def read_facts(
    files: ProcFiles,
    reader: ProcessInfoReader,
    pid: int,
    handle_inode: int,
    digests: CommandDigests,
    never: NeverListSnapshot = NO_ENTRIES,
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
        held_by=held_by(seen.identity.cgroups, wait_channel),
        switches=_switches(status),
        restored=find_restore(files, stat),
        checkpointing=find_checkpointing(files, stat),
    )
    return with_program_facts(facts, files, pid, never)


def stuck_thread(pid: int, root: Path = Path("/proc")) -> str:
    """Return where in the kernel a thread in state D waits; "" where none does.

    A killed process whose leader has ended already is held up by another of its threads.
    """
    try:
        for folder in (root / str(pid) / "task").iterdir():
            with READS.reading(pid, "task"):
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


def with_program_facts(facts: Facts, files: ProcFiles, pid: int, never: NeverListSnapshot) -> Facts:
    """Return the facts with users and places of all threads, the program's names, and which entry of `never` means it.

    Raises FileNotFoundError or ProcessLookupError (gone).
    """
    names: tuple[str, ...] | None
    never_listed = ""
    try:
        program = read_program(files, pid)
        names, never_listed = program.names, never.reason(files, pid, program)
    except (FileNotFoundError, ProcessLookupError):
        raise
    except (OSError, ValueError):
        names = None
    uids = read_uids(files, pid, facts.uids) if facts.uids else ()
    return replace(
        facts,
        uids=uids,
        users_container=is_in_users_container(files, pid, uids, facts.identity.proven_names),
        thread_elsewhere=thread_elsewhere(files, pid, facts.identity.cgroups) if facts.identity.cgroups else "",
        program_names=names,
        never_listed=never_listed,
    )


def frozen_by(cgroups: bytes, wait_channel: str, mountinfo: Path = _MOUNTINFO) -> str:
    """Return the cgroup that freezes a process, or is about to; "" where none does, or that cannot be seen.

    `cgroups` is its /proc/PID/cgroup. The wait channel, which takes the right to trace the process, tells of a cgroup
    that is not mounted here.
    """
    path = path_in_hierarchy(cgroups, "")
    if path is not None and ".." not in path.split("/"):
        for hierarchy in systemd_hierarchies(mountinfo.read_bytes()):
            if not hierarchy.controllers:
                return _frozen_at(hierarchy.root, path) or (path if wait_channel == _TRAP else "")
    return (path or "/") if wait_channel == _TRAP else ""


def _frozen_at(root: Path, path: str) -> str:
    """Return the outermost cgroup that is frozen; one that is being frozen counts, as it may be done any moment."""
    names = path.strip("/").split("/")
    for depth in range(1, len(names) + 1):
        cgroup = "/" + "/".join(names[:depth])
        folder = root / cgroup.lstrip("/")
        if (
            _content(folder / "cgroup.freeze").strip() == "1"
            or "frozen 1" in _content(folder / "cgroup.events").splitlines()
        ):
            return cgroup
    return ""


def held_by(cgroups: bytes, wait_channel: str, mountinfo: Path = _MOUNTINFO) -> str:
    """Return the cgroup of version 1 that freezes a process, or is about to: no signal reaches it, SIGKILL neither.

    "" where none does, or that cannot be seen. Arguments are as of `frozen_by`.
    """
    names = next((each for each in _controllers(cgroups) if "freezer" in each.split(",")), "")
    path = path_in_hierarchy(cgroups, names) if names else None
    if path and ".." not in path.split("/"):
        for root in version_1_roots(mountinfo.read_bytes(), "freezer"):
            state = _content(root / path.lstrip("/") / "freezer.state").strip()
            if state in {"FROZEN", "FREEZING"}:  # of one above it too: it says so of all below
                return path
    return (path or "/") if wait_channel == _REFRIGERATOR else ""


def _controllers(cgroups: bytes) -> list[str]:
    return [line.split(":", 2)[1] for line in os.fsdecode(cgroups).split("\n") if line.count(":") >= 2]


def _content(file: Path) -> str:
    """Return "" for what is not there: before Linux 5.2, and in the root of the hierarchy."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


class IdentityReading(NamedTuple):
    """A process as it was read."""

    identity: Identity
    """What is compared of it, read before `info`."""
    info: ProcessInfo
    """What is shown of it."""
    stat: Stat
    """`stat` of its first thread."""
    status: bytes
    """Text of `status` of a thread that lives, where one does."""
    ending: bool
    """No thread of it is seen to live: what only such a thread tells is missing."""


class _Living(NamedTuple):
    """What only a thread that lives can tell of its process."""

    command_digest: str
    executable: str | None
    executable_file: tuple[int, ...]
    image: tuple[bytes, ...]
    status: bytes


def read_identity(
    files: ProcFiles, reader: ProcessInfoReader, pid: int, handle_inode: int, digests: CommandDigests
) -> IdentityReading:
    """Return what is compared of a process, and what is shown of it.

    What is shown is read last: where it runs another program in between, what is compared is of the one before, and
    differs later.

    Raises:
        FileNotFoundError, ProcessLookupError: it has gone.
        OSError, ValueError: it cannot be read.
    """
    stat = parse_stat(files.read(pid, "stat"))
    living = read_living(files, stat, lambda thread: _read_thread(thread, digests))
    status = living.status if living else files.read(pid, "status")
    record = reader.read(pid)
    info = record.info
    identity = Identity(
        id=ProcessId(info.id.boot_id, pid, stat.start_ticks),
        uid=info.uid,
        name=info.name,
        command_digest=living.command_digest if living else "",
        cgroup=info.cgroup,
        executable=living.executable if living else None,
        proven_names=info.proven_names,
        handle_inode=handle_inode,
        process_group=stat.process_group,
        uids=parse_status(status).uids,
        pid_namespace=info.pid_namespace,
        cgroups=record.cgroup,
        executable_file=living.executable_file if living else (),
        image=living.image if living else (),
    )
    return IdentityReading(identity, info, stat, status, living is None or record.ending)


def _read_thread(thread: LivingThread, digests: CommandDigests) -> _Living:
    """In state D there is no digest: the command line lies in memory, and a read could wait with it for ever."""
    status = thread.read("status")
    try:
        executable = thread.link("exe")
    except OSError:
        executable = None
    return _Living(
        command_digest="" if thread.stat.state == "D" else digests(read_command_line(thread)),
        executable=executable,
        executable_file=_executable_file(thread),
        image=(*thread.stat.image[1:], _text_size(status)),
        status=status,
    )


def _executable_file(thread: LivingThread) -> tuple[int, ...]:
    """Return mount and inode of what it runs, () where they may not be read.

    By fdinfo of a descriptor that opens nothing (O_PATH), and not by stat(2), which asks the file system: where a user
    runs a program from a file system in user space, it would wait for them. Before Linux 5.14 the mount alone.
    """
    try:
        with READS.reading(thread.pid, "exe"):
            descriptor = os.open(f"/proc/{thread.pid}/{thread.folder}exe", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return ()
    finally:
        os.close(descriptor)
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return tuple(int(told[name]) for name in ("mnt_id", "ino") if name in told)


def _text_size(status: bytes) -> bytes:
    """Return the size of the program's code, which everybody may read; b"" of a process without memory."""
    found = _TEXT_SIZE.search(status)
    return found[1] if found is not None else b""
