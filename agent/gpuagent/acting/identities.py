"""What tells a process, and the program that it runs, from every other one: read in one way wherever it is compared."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from gpuagent.acting.digests import CommandDigests
from gpuagent.acting.members import Reader
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.files import READ_LIMIT_BYTES, LivingThread, ProcFiles, Stat, parse_stat, parse_status, read_living
from gpuagent_alerts.remedies.target import Identity

_TEXT_SIZE = re.compile(rb"^VmExe:\s*(\d+)", re.MULTILINE)
_MOST_ARGUMENTS_BYTES = 8 * 1024 * 1024
"""The kernel takes at most 6 MiB of arguments and environment (`bprm_stack_limits`, fs/exec.c)."""


class Seen(NamedTuple):
    """A process as it was read."""

    identity: Identity
    """What is compared of it, read before `info`."""
    info: ProcessInfo
    """What is shown of it."""
    stat: Stat
    """Of its first thread."""
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


def read_identity(files: ProcFiles, reader: Reader, pid: int, handle_inode: int, digests: CommandDigests) -> Seen:
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
    return Seen(identity, info, stat, status, living is None or record.ending)


def _read_thread(thread: LivingThread, digests: CommandDigests) -> _Living:
    """In state D there is no digest: the command line lies in memory, and a read could wait with it for ever."""
    status = thread.read("status")
    try:
        executable = thread.link("exe")
    except OSError:
        executable = None
    return _Living(
        command_digest="" if thread.stat.state == "D" else digests(_command_line(thread)),
        executable=executable,
        executable_file=_executable_file(f"/proc/{thread.pid}/{thread.folder}exe"),
        image=(*thread.stat.image[1:], _text_size(status)),
        status=status,
    )


def _command_line(thread: LivingThread) -> bytes:
    """Return all of it, however long."""
    found = thread.read("cmdline")
    if len(found) < READ_LIMIT_BYTES:
        return found
    with Path(f"/proc/{thread.pid}/{thread.folder}cmdline").open("rb") as file:
        return file.read(_MOST_ARGUMENTS_BYTES)


def _executable_file(path: str) -> tuple[int, ...]:
    """Return mount and inode of what it runs, () where they may not be read.

    By fdinfo of a descriptor that opens nothing (O_PATH), and not by stat(2), which asks the file system: where a user
    runs a program from a file system in user space, it would wait for them. Before Linux 5.14 the mount alone.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
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
