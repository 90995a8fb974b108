"""What tells a process, and the program that it runs, from every other one: read in one way wherever it is compared."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpuagent.acting.digests import CommandDigests
from gpuagent.acting.namespaces import Reader
from gpuagent.identity import ProcessId
from gpuagent.procfs.files import READ_LIMIT_BYTES, ProcFiles
from gpuagent.procfs.stat import parse_stat, parse_status
from gpuagent.reading import ProcessInfo
from gpuagent_alerts.remedies.target import Identity

_TEXT_SIZE = re.compile(rb"^VmExe:\s*(\d+)", re.MULTILINE)
_MOST_ARGUMENTS_BYTES = 8 * 1024 * 1024
"""The kernel takes at most 6 MiB of arguments and environment (`bprm_stack_limits`, fs/exec.c)."""


def read_identity(
    files: ProcFiles, reader: Reader, pid: int, handle_inode: int, digests: CommandDigests
) -> tuple[Identity, ProcessInfo]:
    """Return what is compared of a process, and what is shown of it.

    What is shown is read last: where it runs another program in between, what is compared is of the one before, and
    differs later.

    Raises:
        FileNotFoundError, ProcessLookupError: it has gone.
        OSError, ValueError: it cannot be read.
    """
    stat = parse_stat(files.read(pid, "stat"))
    status = files.read(pid, "status")
    executable, file = _executable(files, pid), _executable_file(pid)
    command_digest = "" if stat.state == "D" else digests(_command_line(files, pid))
    record = reader.read(pid)
    info = record.info
    identity = Identity(
        id=ProcessId(info.id.boot_id, pid, stat.start_ticks),
        uid=info.uid,
        name=info.name,
        command_digest=command_digest,
        cgroup=info.cgroup,
        executable=executable,
        proven_names=info.proven_names,
        handle_inode=handle_inode,
        process_group=stat.process_group,
        uids=parse_status(status).uids,
        pid_namespace=info.pid_namespace,
        cgroups=record.cgroup,
        executable_file=file,
        image=(*stat.image[1:], _text_size(status)),
    )
    return identity, info


def _command_line(files: ProcFiles, pid: int) -> bytes:
    """Return all of it, however long. Not to be asked in state D: it lies in the memory of the process."""
    found = files.read(pid, "cmdline")
    if len(found) < READ_LIMIT_BYTES:
        return found
    with Path(f"/proc/{pid}/cmdline").open("rb") as file:
        return file.read(_MOST_ARGUMENTS_BYTES)


def _executable(files: ProcFiles, pid: int) -> str | None:
    try:
        return files.link(pid, "exe")
    except OSError:
        return None


def _executable_file(pid: int) -> tuple[int, ...]:
    """Return mount and inode of what it runs, () where they may not be read.

    By fdinfo of a descriptor that opens nothing (O_PATH), and not by stat(2), which asks the file system: where a user
    runs a program from a file system in user space, it would wait for them. Before Linux 5.14 the mount alone.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/exe", os.O_PATH | os.O_CLOEXEC)
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
