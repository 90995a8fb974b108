"""What a process may be called by people: its name, its program, and the script that an interpreter runs.

The kernel cuts a name (`comm`) to 15 bytes and tells the file of the interpreter for the file of a script, so none of
these is enough alone. All but the program's file are written by the process itself: they may withhold an act, and
permit none. Read only where somebody is judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.living import LivingThread, read_living
from gpuagent.procfs.printable import decode
from gpuagent.procfs.stat import parse_stat

_DELETED = " (deleted)"
_INTERPRETER = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|lua|luajit|php|tclsh|expect|[gmn]?awk|R|Rscript|julia|java|guile"
    r"|(?:ba|da|a|z|k|mk|fi|c|tc|ya)?sh)[0-9.]*t?"
)
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_PYTHON_OPTION = re.compile(r"-[^-WXQmc]*([WXQmc])(.*)", re.DOTALL)
"""Options of Python that have a value, in the same argument or in the next one. Of other interpreters any may."""
_PYTHON_LONG_OPTION = "--check-hash-based-pycs"
_FILE = re.compile(r"--file=(.+)")


def read_program_names(files: ProcFiles, pid: int) -> tuple[str, ...]:
    """Return the names and paths of what a process runs: its `comm` first, paths as they are.

    The path of the program is missing where it may not be read (CAP_SYS_PTRACE), as a relative path of a script is
    resolved only where the working directory may be. Raises FileNotFoundError or ProcessLookupError (gone), and other
    OSErrors and ValueError: not to be read, as in state D, where a read of the command line could hang.
    """
    stat = parse_stat(files.read(pid, "stat"))
    if stat.state == "D":
        raise ValueError("it is in uninterruptible sleep: its command line cannot be read")
    living = read_living(files, stat, _read_thread)  # none of a zombie
    program, line, folder = living or ("", b"", "")
    names = [decode(stat.name), program]
    arguments = [decode(each) for each in line.removesuffix(b"\0").split(b"\0")]
    names.append(arguments[0])
    if any(_INTERPRETER.fullmatch(each.rpartition("/")[2]) for each in names):
        names += scripts(arguments)
    in_folder = [f"{folder}/{each}" for each in names[2:] if folder and _is_relative(each) and _is_file(each, names[2])]
    names += [os.path.normpath(each) for each in (*names, *in_folder) if "/" in each]
    return tuple(dict.fromkeys(each for each in names if each))


def scripts(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what an interpreter may run by its arguments: the first that is no option, or the module after `-m`.

    Where an option may have the argument behind it as its value, both that and the next one may be the script.
    """
    is_python = any(_PYTHON.fullmatch(each.rpartition("/")[2]) for each in arguments[:1])
    waiting = iter(arguments[1:])
    may_be_value = False
    for argument in waiting:
        if argument == "--":
            yield next(waiting, "")
            return
        if argument.startswith("-"):
            option = _PYTHON_OPTION.fullmatch(argument) if is_python else None
            if option and option[1] in "mc":
                if option[1] == "m":
                    yield option[2] or next(waiting, "")
                return
            if file := _FILE.fullmatch(argument):  # R
                yield file[1]
            if is_python:
                may_be_value = argument == _PYTHON_LONG_OPTION or (option is not None and not option[2])
            else:
                may_be_value = "=" not in argument
        else:
            yield argument
            if not may_be_value:
                return
            may_be_value = False


def _is_file(name: str, first_argument: str) -> bool:
    """A first argument without a slash was looked for in PATH, and is no file of the working directory."""
    return "/" in name or name != first_argument


def _is_relative(name: str) -> bool:
    return bool(name) and not name.startswith("/")


def _read_thread(thread: LivingThread) -> tuple[str, bytes, str]:
    """Return the path of the program, the command line, and the working directory."""
    return _link(thread, "exe").removesuffix(_DELETED), thread.read("cmdline"), _link(thread, "cwd")


def _link(thread: LivingThread, name: str) -> str:
    try:
        return thread.link(name)
    except OSError:
        return ""
