"""Find whether the main process of a unit is a program that starts the work of others and goes on when that ends.

A name (`comm`) is that of a script as well, and anybody's script may be called `containerd-web`. So it goes by the file
of the program, in the directories of programs, by exact names; of a program that Python runs, by the script. The agent
may not see the file of another's program without CAP_SYS_PTRACE: then the first argument has to name it, which of a
script is the interpreter.

Only root's processes are asked. Whoever starts a setuid program (sudo, su) chooses its arguments, the first one too,
and it runs as root. So arguments are believed only of a process that no login has started: it and all above it have the
user ids of root alone, and neither a login uid nor an audit session, which take a right to change once they are set.
Where the kernel does not tell (no audit), they are not believed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import PurePosixPath

from gpuagent.core.identity import COMM_BYTES
from gpuagent.procfs.files import ProcFiles, decode, parse_stat, parse_status
from gpuagent.procfs.programs import scripts
from gpuagent_alerts.remedies.facts.process_scan import ProcessRow
from gpuagent_alerts.remedies.safeguards.never_list import JOB_STARTER_SCRIPTS, JOB_STARTERS

_DIRECTORIES = (
    "/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/snap/", "/var/lib/snapd/snap/", "/var/lib/rancher/",
    "/nix/store/", "/gnu/store/", "/cm/local/", "/cm/shared/",
)  # fmt: skip
"""Where distributions, vendors and cluster managers put programs."""
_PYTHON = re.compile(r"python[0-9.]*")
_DELETED = " (deleted)"
_UNINTERRUPTIBLE = "D"
_UNSET = b"4294967295"  # AUDIT_UID_UNSET and AUDIT_SID_UNSET, linux/audit.h
_INIT = 1
_DEEPEST = 64
"""Generations above a process that are looked at."""


class SupervisorUnits:
    """The units that root's configuration names as such, while it is in force; a reload exchanges them."""

    def __init__(self, units: Collection[str] = ()) -> None:
        self._units = frozenset(units)

    def use(self, units: Collection[str]) -> None:
        """Put other units in force."""
        self._units = frozenset(units)

    def __contains__(self, unit: object) -> bool:
        """Return whether the main process of this unit starts the work of others, by root's word."""
        return unit in self._units


def goes_on(files: ProcFiles, row: ProcessRow) -> bool:
    """Return whether it starts the jobs of others, and outlives them; False where that cannot be seen."""
    try:
        return row.uids == {0} and _is_known(files, row)
    except (OSError, ValueError):
        return False


def runs_program(files: ProcFiles, pid: int, state: str, names: Collection[str]) -> bool:
    """Return whether a process of root's runs a program with one of these file names, from a directory of programs.

    `state` is that of proc_pid_stat(5). Raises OSError, ValueError.
    """
    if executable := _executable(files, pid):
        return _is_program(executable, names)
    if state == _UNINTERRUPTIBLE or not _is_started_by_root(files, pid):
        return False
    return _is_program(decode(files.read(pid, "cmdline").partition(b"\0")[0]), names)


def _executable(files: ProcFiles, pid: int) -> str:
    """Return the file of a program, "" where that may not be read."""
    with suppress(PermissionError):
        return files.link(pid, "exe").removesuffix(_DELETED)
    return ""


def _is_known(files: ProcFiles, row: ProcessRow) -> bool:
    executable = _executable(files, row.pid)
    if executable and not _is_python(executable):
        return _is_program(executable, JOB_STARTERS)
    if row.state == _UNINTERRUPTIBLE:  # a read of the command line could hang
        return False
    if not _is_started_by_root(files, row.pid):
        return False
    line = files.read(row.pid, "cmdline")
    arguments = [decode(each) for each in line.removesuffix(b"\0").split(b"\0")]
    if _is_python(executable or arguments[0]):
        # A title that was written over the first argument does not say who runs it.
        run = list(scripts(["python", *arguments[1:]]))
        return len(run) == 1 and PurePosixPath(run[0]).name in JOB_STARTER_SCRIPTS
    return _is_program(arguments[0].partition(" ")[0], JOB_STARTERS) or _has_title(arguments[0], row.name)


def _is_started_by_root(files: ProcFiles, pid: int) -> bool:
    """Return whether no login has started it, and all above it are root's. Raises OSError, ValueError."""
    for _ in range(_DEEPEST):
        if set(parse_status(files.read(pid, "status")).uids) != {0}:
            return False
        if any(files.read(pid, name).strip() != _UNSET for name in ("loginuid", "sessionid")):
            return False
        if pid == _INIT:
            return True
        pid = parse_stat(files.read(pid, "stat")).parent_pid
    return False


def _is_program(path: str, names: Collection[str]) -> bool:
    program = PurePosixPath(path)
    return path.startswith(_DIRECTORIES) and ".." not in program.parts and program.name in names


def _has_title(argument: str, name: str) -> bool:
    """Return whether a program has written what it does behind its name: `sshd: /usr/sbin/sshd -D [listener]`."""
    program, colon, _ = argument.partition(": ")
    return bool(colon) and program in JOB_STARTERS and program[:COMM_BYTES] == name


def _is_python(path: str) -> bool:
    return _PYTHON.fullmatch(PurePosixPath(path).name) is not None
