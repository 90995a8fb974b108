"""Find out whether a process can be attached to: which one it is, whose, and what Python it runs.

All facts but the version of an interpreter that is named `python3` are read from /proc; nothing is run for them. What
is not known here is found out by `sys.remote_exec`, which refuses by itself: https://peps.python.org/pep-0768/
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpuagent.procfs.files import ProcFiles, RealProc, parse_stat, parse_status

OLDEST_MINOR = 14
NEXT_START = "At its next start: `python -m gpuagent_client`, or `gpuagent-client enable` (docs/blame.md)."
_PYTHON = re.compile(r"python(3(\.(\d+)t?)?)?")
_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_DISABLING = "disable-remote-debug"
_VARIABLE = b"PYTHON_DISABLE_REMOTE_DEBUG="


class NotAttachable(Exception):
    """The process cannot be attached to; the text says why, and what to do."""


class Target(NamedTuple):
    """A process that can be attached to, as far as /proc tells."""

    pid: int
    start_ticks: int
    """Start time since boot in clock ticks: with the pid it tells this process from every other one."""
    uid: int
    gid: int
    executable: str
    """Path of the interpreter, as the kernel names it."""


def read_target(pid: int, *, own_uid: int, proc: ProcFiles | None = None, root: str = "/proc") -> Target:
    """Read a process and check what can be checked from outside. `root` is where /proc is.

    Raises:
        NotAttachable: there is no such process, it belongs to somebody else, or it runs no Python >= 3.14.
    """
    files = proc or RealProc(root)
    try:
        stat = parse_stat(files.read(pid, "stat"))
        uids = parse_status(files.read(pid, "status")).uids
    except (FileNotFoundError, ProcessLookupError):
        raise NotAttachable(f"There is no process {pid}.") from None
    except (OSError, ValueError) as error:
        raise NotAttachable(f"Process {pid} cannot be read: {error}.") from None
    if stat.exiting:
        raise NotAttachable(f"Process {pid} has ended.")
    if len(set(uids)) != 1:
        raise NotAttachable(f"Process {pid} runs with the rights of more than one user, or of an unknown one.")
    if own_uid not in {0, uids[0]}:
        raise NotAttachable(f"Process {pid} belongs to user id {uids[0]}: run this as that user, or as root.")
    try:
        executable = files.link(pid, "exe")
        arguments = [os.fsdecode(word) for word in files.read(pid, "cmdline").split(b"\0")]
        environment = files.read(pid, "environ").split(b"\0")
        gid = Path(root, str(pid)).stat().st_gid
    except OSError as error:
        raise NotAttachable(f"Process {pid} cannot be looked into: {error.strerror or error}.") from None
    check_python(pid, executable)
    if _disables(arguments) or any(line.startswith(_VARIABLE) and line != _VARIABLE for line in environment):
        raise NotAttachable(
            f"Process {pid} was started with remote debugging disabled (-X {_DISABLING} or"
            f" PYTHON_DISABLE_REMOTE_DEBUG). {NEXT_START}"
        )
    return Target(pid, stat.start_ticks, uids[0], gid, executable)


def check_python(pid: int, executable: str) -> None:
    """Check that a path is that of a Python which may have `sys.remote_exec`.

    Raises:
        NotAttachable: it is none, too old, or not on the disk any more.
    """
    if executable.endswith(" (deleted)"):
        raise NotAttachable(
            f"The interpreter of process {pid} was replaced after its start, as an upgrade does: restart the app."
        )
    name = _PYTHON.fullmatch(Path(executable).name)
    if name is None:
        raise NotAttachable(f"Process {pid} runs {executable}, which is no Python interpreter by its name.")
    if name[3] is not None and int(name[3]) < OLDEST_MINOR:
        raise NotAttachable(f"Process {pid} runs Python 3.{name[3]}; attaching takes 3.{OLDEST_MINOR}. {NEXT_START}")


def _disables(arguments: Sequence[str]) -> bool:
    """Return whether an option of the interpreter disables it; what follows the script is the app's."""
    words = iter(arguments[1:])
    for word in words:
        if not word.startswith("-") or word[:2] in {"-c", "-m"}:
            return False
        value = next(words, "") if word in _WITH_VALUE else word
        if word.startswith("-X") and value.removeprefix("-X") == _DISABLING:
            return True
    return False


def is_same(target: Target, proc: ProcFiles | None = None) -> bool:
    """Return whether the pid still belongs to the process that was read."""
    try:
        return parse_stat((proc or RealProc()).read(target.pid, "stat")).start_ticks == target.start_ticks
    except (OSError, ValueError):
        return False


def is_visible(pid: int, path: str, root: str = "/proc") -> bool:
    """Return whether a path leads the process to the same file: it may be in another mount namespace."""
    try:
        here, there = Path(path).stat(), Path(root, str(pid), "root", path.lstrip("/")).stat()
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
