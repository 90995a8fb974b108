"""What a process may be called by people: its name, its program, and the script that an interpreter runs.

The kernel cuts a name (`comm`) to 15 bytes and tells the file of the interpreter for the file of a script, so none of
these is enough alone. All but the program's file are written by the process itself: they may withhold an act, and
permit none. Read only where somebody is judged.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.living import LivingThread, read_living
from gpuagent.procfs.module_names import module_names
from gpuagent.procfs.printable import decode
from gpuagent.procfs.script_arguments import is_interpreter, launched, scripts
from gpuagent.procfs.stat import parse_stat

_DELETED = " (deleted)"


class Program(NamedTuple):
    """What a process runs, as /proc tells it."""

    names: tuple[str, ...]
    """Its `comm` first, then its program, the first argument and the script, in all spellings."""
    words: tuple[str, ...] = ()
    """Further arguments that may name a path, a module or a program that it runs."""
    first_argument: str = ""
    """What it was started by; it may have written another one over it."""
    executable: str = ""
    """Path of its program; "" where it may not be read (CAP_SYS_PTRACE)."""
    scripts: tuple[str, ...] = ()
    """What an interpreter runs."""
    folder: str = ""
    """Its working directory; "" where it may not be read."""
    python_home: str = ""
    """What it was started with as PYTHONHOME; "" for nothing, or where that may not be read."""
    python_path: str = ""
    """Likewise as PYTHONPATH."""


def read_program(files: ProcFiles, pid: int) -> Program:
    """Return the names and paths of what a process runs.

    The path of the program is missing where it may not be read (CAP_SYS_PTRACE), as a relative path of a script is
    resolved only where the working directory may be. Raises FileNotFoundError or ProcessLookupError (gone), and other
    OSErrors and ValueError: not to be read, as in state D, where a read of the command line could hang.
    """
    stat = parse_stat(files.read(pid, "stat"))
    if stat.state == "D":
        raise ValueError("it is in uninterruptible sleep: its command line cannot be read")
    living = read_living(files, stat, _read_thread)  # none of a zombie
    program, line, folder, home, path = living or ("", b"", "", "", "")
    arguments = [decode(each) for each in line.removesuffix(b"\0").split(b"\0")]
    names = [decode(stat.name), program, arguments[0]]
    # A title that was written over the first argument tells nothing of what the others mean.
    interpreter = next((each for each in (arguments[0], program, names[0]) if is_interpreter(each)), None)
    told = [arguments[0] if interpreter is None else interpreter, *arguments[1:]]
    run = tuple(scripts(told)) if interpreter is not None else ()
    names += run
    relative = names[3:] if program and " " in names[2] else names[2:]  # a title that was written over it is no path
    in_folder = [f"{folder}/{each}" for each in relative if folder and _is_relative(each) and _is_file(each, names[2])]
    names += [os.path.normpath(each) for each in (*names, *in_folder) if "/" in each]
    words = list(launched(told, interprets=interpreter is not None))
    words += [name for each in words for name in module_names(each)]
    words += [name for each in run for name in module_names(each, may_be_plain=True)]
    named = tuple(dict.fromkeys(each for each in names if each))
    return Program(named, tuple(dict.fromkeys(words)), arguments[0], program, run, folder, home, path)


def read_program_names(files: ProcFiles, pid: int) -> tuple[str, ...]:
    """Return the names of `read_program`. Raises as it does."""
    return read_program(files, pid).names


def _is_file(name: str, first_argument: str) -> bool:
    """A first argument without a slash was looked for in PATH, and is no file of the working directory."""
    return "/" in name or name != first_argument


def _is_relative(name: str) -> bool:
    return bool(name) and not name.startswith("/")


def _read_thread(thread: LivingThread) -> tuple[str, bytes, str, str, str]:
    """Return the path of the program, the command line, the working directory, PYTHONHOME and PYTHONPATH."""
    program = _link(thread, "exe").removesuffix(_DELETED)
    try:
        environment = thread.read("environ")
    except OSError:
        environment = b""
    home, path = (_variable(environment, each) for each in (b"PYTHONHOME", b"PYTHONPATH"))
    return program, thread.read("cmdline"), _link(thread, "cwd"), home, path


def _variable(environment: bytes, name: bytes) -> str:
    values = (each.partition(b"=")[2] for each in environment.split(b"\0") if each.startswith(name + b"="))
    return decode(next(values, b""))


def _link(thread: LivingThread, name: str) -> str:
    try:
        return thread.link(name)
    except OSError:
        return ""
