"""Read what a process runs: its names, program, script, and the paths in its arguments.

The kernel cuts a name (`comm`) to 15 bytes and tells the file of the interpreter for the file of a script, so none of
these is enough alone. All but the program's file are written by the process itself: they may withhold an act, and
permit none. Read only where somebody is judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpuagent.procfs.files import (
    READ_LIMIT_BYTES,
    LivingThread,
    ProcFiles,
    decode,
    parse_stat,
    read_living,
)
from gpuagent.procfs.hanging import READS

_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(:.*)?", re.DOTALL)
SCRIPT_SUFFIXES = frozenset({
    "awk", "bash", "cjs", "clj", "cts", "exp", "ipynb", "jar", "jl", "js", "jsx", "ksh", "lua", "mjs", "mts", "php",
    "pl", "pm", "py", "pyc", "pyw", "pyz", "r", "rb", "scm", "sh", "tcl", "ts", "tsx", "zsh",
})  # fmt: skip
"""Suffixes, in lower case, of files that interpreters and their launchers run."""


def is_script(argument: str) -> bool:
    """Return whether an argument ends as a file does that an interpreter runs, or names a module and what is in it."""
    stem, dot, suffix = argument.rpartition("/")[2].rpartition(".")
    if stem and dot and suffix.lower() in SCRIPT_SUFFIXES:
        return True
    found = _MODULE.fullmatch(argument)
    return found is not None and found[2] is not None


def module_names(argument: str, *, may_be_plain: bool = False) -> Iterator[str]:
    """Yield the module, the packages that it is in, and its file below where modules are looked for.

    Nothing of the name of a file, and of a plain word only where that `may_be_plain`.
    """
    found = _MODULE.fullmatch(argument)
    if found is None or (found[2] is None and is_script(argument)):
        return
    if found[2] is None and "." not in argument and not may_be_plain:
        return
    parts = found[1].split(".")
    for number in range(len(parts), 0, -1):
        yield ".".join(parts[:number])
    path = "/".join(parts)
    yield f"{path}.py"
    yield f"{path}/__init__.py"
    yield f"{path}/__main__.py"


INTERPRETER = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|lua|luajit|php|tclsh|expect|[gmn]?awk|R|Rscript|julia|java|guile"
    r"|(?:ba|da|a|z|k|mk|fi|c|tc|ya)?sh)[0-9.]*t?"
)
_LAUNCHES_BY_WORDS = re.compile(r"deno|bun|java")
"""Interpreters that take a command first (`deno run x.ts`), or a class in the place of a file."""
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_PYTHON_OPTION = re.compile(r"-[^-WXQmc]*([WXQmc])(.*)", re.DOTALL)
"""Options of Python that have a value, in the same argument or in the next one. Of other interpreters any may."""
_PYTHON_LONG_OPTION = "--check-hash-based-pycs"
_VALUE = re.compile(r"(?:--[^=]+=|-[A-Za-z])([^=]*[./][^=]*|(?<=--file=).+)", re.DOTALL)
"""An option with its value in the same argument, where that may be a file: `-fprod.awk`, `--file=train.R`."""
_CODE_OPTIONS = tuple(
    (re.compile(program), re.compile(option))
    for program, option in (
        (r"(?:ba|da|a|z|k|mk|fi|c|tc|ya)?sh[0-9.]*", r"-[a-zA-Z]*c[a-zA-Z]*"),
        (r"perl[0-9.]*", r"-[acflnpsStTuUvwWX0-9]*[eE]"),
        (r"ruby[0-9.]*", r"-[acdhlnpsSvwy]*e"),
        (r"(?:node|nodejs)[0-9.]*", r"-p?e|-p|--eval|--print"),
        (r"php[0-9.]*", r"-[rBRE]|--run"),
        (r"(?:lua|luajit|R|Rscript|julia)[0-9.]*", r"-[eE]|--eval|--print"),
        (r"(?:guile|expect)[0-9.]*", r"-c"),
    )
)
"""Options whose value is code: no path, whatever is in it."""
_LONGEST_WORD = 4096
"""PATH_MAX (linux/limits.h): no path is longer."""
_PIECE = re.compile(r"""[^\s:,;=@|&<>()'"`]+""")
"""What stands between the signs by which paths are listed, named, or put into code."""
MOST_MENTIONED = 4096
_OWN_PATH = re.compile(r"(?:/dev/fd|/proc/(?:self|thread-self)/fd)/([0-9]+)|/dev/std(in)")
_OWN_FOLDER = re.compile(r"/proc/(?:self|thread-self)/(cwd|root)(?=/|$)")
"""Paths that each process has for itself: open files, its working directory, its root."""
_PYTHON_SUFFIXES = (".py", ".pyc", ".pyz")


def is_interpreter(program: str) -> bool:
    """Return whether a program, by its name or path, is an interpreter that is known here."""
    return INTERPRETER.fullmatch(_name(program)) is not None


def scripts(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what an interpreter may run by its arguments: the first that is no option, or the module after `-m`.

    Where an option may have the argument behind it as its value, both that and the next one may be the script. Code in
    the place of a script (`-c`, `-e`) is none.
    """
    for _, argument in _scripts(arguments):
        yield argument


def launched(arguments: Sequence[str], *, interprets: bool) -> Iterator[str]:
    """Yield every further argument that may name a path, a module or a program that the process runs.

    `interprets` says that the program is an interpreter. Of one whose arguments are known, these are the arguments of a
    module (`python3 -m debugpy serve.py`) and of a script without a suffix, as installed commands are (`ipython x.py`):
    such a script may be a launcher. Of one with a suffix (`node bin.js serve.ts`) those count that look like a script.
    Of any other program every argument counts.
    """
    first, plain = 1, False
    if interprets and not any(_LAUNCHES_BY_WORDS.fullmatch(_name(each)) for each in arguments[:1]):
        found = list(_scripts(arguments))
        last = next(reversed(found), None)
        if last is None:
            return
        first, plain = last[0] + 1, _is_plain_script(last[1], is_python=_is_python(arguments))
    for argument in arguments[first:]:
        for word in _values(argument):
            if 0 < len(word) <= _LONGEST_WORD and not word.startswith("-") and (not plain or is_script(word)):
                yield word


def _values(argument: str) -> Iterator[str]:
    """Yield the argument, or of an option each value that it may have: `--app=prod`, `-Aprod`, `-vAprod`."""
    if not argument.startswith("-"):
        yield argument
        return
    _, equals, value = argument.partition("=")
    if equals:
        yield value
    if not argument.startswith("--"):
        yield argument[2:]
        yield argument[3:]


def paths_in(arguments: Sequence[str]) -> Iterator[str]:
    """Yield every text in arguments that may be a path, or the name of a file: whole, and split where lists are.

    `--path=/usr,/opt/prod`, `-cp a.jar:b.jar`, `file:/opt/x.py:app`, `@/opt/conf`, `-C/opt/prod`, and what is in code
    (`bash -c '. x.sh'`). A name may have such a sign in it, so the whole is one of them.
    """
    for argument in arguments:
        if len(argument) <= _LONGEST_WORD:
            yield from _values(argument)
        for piece in _PIECE.findall(argument):
            text = piece[2:] if piece.startswith("-") and not piece.startswith("--") else piece
            if 0 < len(text) <= _LONGEST_WORD and not text.startswith("-"):
                yield text


def _is_plain_script(script: str, *, is_python: bool) -> bool:
    """Return whether a script is a file with a suffix: a module, or an installed command, may run another one."""
    return script.endswith(_PYTHON_SUFFIXES) if is_python else "." in _name(script)


def _scripts(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield as `scripts`, each with its place among the arguments."""
    if _is_python(arguments):
        yield from _python_script(arguments)
        return
    code_option = _code_option(arguments)
    waiting = iter(enumerate(arguments[1:], 1))
    may_be_value = False
    for number, argument in waiting:
        if argument == "--":
            yield from _next(waiting)
            return
        if code_option is not None and code_option.fullmatch(argument):
            return
        if argument.startswith("-"):
            if value := _VALUE.fullmatch(argument):
                yield number, value[1]
            may_be_value = "=" not in argument
        else:
            yield number, argument
            if not may_be_value:
                return
            may_be_value = False


def _python_script(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    waiting = iter(enumerate(arguments[1:], 1))
    may_be_value = False
    for number, argument in waiting:
        if argument == "--":
            yield from _next(waiting)
            return
        if not argument.startswith("-"):
            yield number, argument
            if not may_be_value:
                return
            may_be_value = False
            continue
        option = _PYTHON_OPTION.fullmatch(argument)
        if option and option[1] == "m":
            yield from [(number, option[2])] if option[2] else _next(waiting)
        if option and option[1] in "mc":
            return
        may_be_value = argument == _PYTHON_LONG_OPTION or (option is not None and not option[2])


def _next(waiting: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    found = next(waiting, None)
    if found is not None:
        yield found


def _is_python(arguments: Sequence[str]) -> bool:
    return any(_PYTHON.fullmatch(_name(each)) for each in arguments[:1])


def _code_option(arguments: Sequence[str]) -> re.Pattern[str] | None:
    name = _name(arguments[0]) if arguments else ""
    return next((option for program, option in _CODE_OPTIONS if program.fullmatch(name)), None)


def _name(path: str) -> str:
    """Return the last part of a path; a login shell has a dash in front."""
    return path.rpartition("/")[2].removeprefix("-")


_DELETED = " (deleted)"
_MOST_OPEN_FILES = 64
_MOST_ARGUMENTS_BYTES = 8 * 1024 * 1024
"""The kernel takes at most 6 MiB of arguments and environment (`bprm_stack_limits`, fs/exec.c)."""


class ProcessProgram(NamedTuple):
    """Program of a process, as /proc shows it."""

    names: tuple[str, ...]
    """Names: its `comm` first, then its program, the first argument and the script, in all spellings."""
    words: tuple[str, ...] = ()
    """Further arguments that may name a path, a module or a program that it runs."""
    first_argument: str = ""
    """First argument that it was started with; it may have written another one over it."""
    executable: str = ""
    """Path of its program; "" where it may not be read (CAP_SYS_PTRACE)."""
    scripts: tuple[str, ...] = ()
    """Scripts that an interpreter runs."""
    folder: str = ""
    """Working directory; "" where it may not be read."""
    python_home: str = ""
    """PYTHONHOME at its start; "" for none, or where that may not be read."""
    python_path: str = ""
    """PYTHONPATH at its start, likewise."""
    mentioned: tuple[str, ...] = ()
    """Texts in its arguments that may be paths: see `paths_in`. More than `MOST_MENTIONED` are not all of them."""
    root: str = ""
    """Where its files are found, if its mounts are not the agent's own and may be seen: `/proc/PID/root`."""
    unseen_script: str = ""
    """Why it cannot be told what an interpreter runs, where it reads that from an open file; "" where it does not."""


def read_program(files: ProcFiles, pid: int) -> ProcessProgram:
    """Return the names and paths of what a process runs.

    The path of the program is missing where it may not be read (CAP_SYS_PTRACE), as a relative path of a script is
    resolved only where the working directory may be. Raises FileNotFoundError or ProcessLookupError (gone), and other
    OSErrors and ValueError: not to be read, as in state D, where a read of the command line could hang.
    """
    stat = parse_stat(files.read(pid, "stat"))
    if stat.state == "D":
        raise ValueError("it is in uninterruptible sleep: its command line cannot be read")
    living = read_living(files, stat, _read_thread)  # none of a zombie
    read = living or _Read()
    program, folder = read.program, read.folder
    arguments = [decode(each) for each in read.line.removesuffix(b"\0").split(b"\0")]
    names = [decode(stat.name), program, arguments[0]]
    # A title that was written over the first argument tells nothing of what the others mean.
    interpreter = next((each for each in (arguments[0], program, names[0]) if is_interpreter(each)), None)
    command_line = _with_own_paths([arguments[0] if interpreter is None else interpreter, *arguments[1:]], read)
    run = tuple(scripts(command_line)) if interpreter is not None else ()
    if interpreter is not None and not run and _reads_standard_input(command_line):
        standard_input = read.open_files.get("0", "")
        run = (standard_input,) if standard_input.startswith("/") and not standard_input.startswith("/dev/") else ()
    names += run
    relative = names[3:] if program and " " in names[2] else names[2:]  # a title that was written over it is no path
    in_folder = [f"{folder}/{each}" for each in relative if folder and _is_relative(each) and _is_file(each, names[2])]
    names += [os.path.normpath(each) for each in (*names, *in_folder) if "/" in each]
    words = list(launched(command_line, interprets=interpreter is not None))
    words += [name for each in words for name in module_names(each)]
    words += [name for each in run for name in module_names(each, may_be_plain=True)]
    named = tuple(dict.fromkeys(each for each in names if each))
    return ProcessProgram(
        named, tuple(dict.fromkeys(words)), arguments[0], program, run, folder, read.python_home, read.python_path,
        _first_different(paths_in(command_line[1:])), read.root, _unseen_script(run, read),
    )  # fmt: skip


def _first_different(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the different ones, up to one beyond `MOST_MENTIONED`."""
    found: dict[str, None] = {}
    for text in texts:
        found[text] = None
        if len(found) > MOST_MENTIONED:
            break
    return tuple(found)


def _with_own_paths(command_line: Sequence[str], read: _Read) -> list[str]:
    """Return the command line with what the process's own paths lead to, where that is a file and may be seen.

    `/dev/fd/9` is the open file 9 of whoever asks; so it is asked for that process.
    """
    found = []
    for argument in command_line:
        own = _OWN_PATH.fullmatch(argument)
        if own is None:
            found.append(_OWN_FOLDER.sub(lambda part: read.folder if part[1] == "cwd" else "", argument))
        else:
            target = read.open_files.get(own[1] or "0", "")
            found.append(target if target.startswith("/") else argument)
    return found


def _unseen_script(run: Sequence[str], read: _Read) -> str:
    """Return why it cannot be told what script an interpreter has read from an open file; "" where it has not."""
    for script in run:
        if own := _OWN_PATH.fullmatch(script):
            target = read.open_files.get(own[1] or "0", "")
            return f"it runs what it reads from {script}" + (f" ({target})" if target else ", which may not be seen")
    return ""


def _reads_standard_input(command_line: Sequence[str]) -> bool:
    """Return whether an interpreter without a script is given one on its standard input: no code, no `--version`."""
    code = _code_option(command_line)
    python_code = _is_python(command_line) and any(
        (option := _PYTHON_OPTION.fullmatch(each)) is not None and option[1] in "mc" for each in command_line[1:]
    )
    return not python_code and not (code is not None and any(map(code.fullmatch, command_line[1:])))


def _is_file(name: str, first_argument: str) -> bool:
    """Return whether it may be a file: without a slash it was looked for in PATH, not in the working directory."""
    return "/" in name or name != first_argument


def _is_relative(name: str) -> bool:
    return bool(name) and not name.startswith("/")


class _Read(NamedTuple):
    """What a living thread of a process tells of it."""

    program: str = ""
    line: bytes = b""
    folder: str = ""
    python_home: str = ""
    python_path: str = ""
    open_files: Mapping[str, str] = MappingProxyType({})
    """Where its standard input leads, and each open file that its command line names."""
    root: str = ""
    """As of `ProcessProgram`."""


def _read_thread(thread: LivingThread) -> _Read:
    """Read the path of the program, the command line, the working directory, and what Python is told at its start."""
    program = _link(thread, "exe").removesuffix(_DELETED)
    try:
        environment = _read_whole(thread, "environ")
    except OSError:
        environment = b""
    home, path = (_variable(environment, each) for each in (b"PYTHONHOME", b"PYTHONPATH"))
    line = read_command_line(thread)
    named = [own[1] or "0" for each in line.split(b"\0") if (own := _OWN_PATH.fullmatch(decode(each)))]
    numbers = dict.fromkeys(["0", *named][:_MOST_OPEN_FILES])
    open_files = {number: _link(thread, f"fd/{number}").removesuffix(_DELETED) for number in numbers}
    mounts = _link(thread, "ns/mnt")
    root = f"/proc/{thread.stat.pid}/root" if mounts and mounts != _own_mounts() else ""
    return _Read(program, line, _link(thread, "cwd"), home, path, open_files, root)


def read_command_line(thread: LivingThread) -> bytes:
    """Return the whole command line; what `ProcFiles` reads of it is cut."""
    return _read_whole(thread, "cmdline")


def _read_whole(thread: LivingThread, name: str) -> bytes:
    found = thread.read(name)
    if len(found) < READ_LIMIT_BYTES:
        return found
    with READS.reading(thread.pid, name), Path(f"/proc/{thread.pid}/{thread.folder}{name}").open("rb") as file:
        return file.read(_MOST_ARGUMENTS_BYTES)


def _own_mounts() -> str:
    try:
        return os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
    except OSError:
        return ""


def _variable(environment: bytes, name: bytes) -> str:
    values = (each.partition(b"=")[2] for each in environment.split(b"\0") if each.startswith(name + b"="))
    return decode(next(values, b""))


def _link(thread: LivingThread, name: str) -> str:
    try:
        return thread.link(name)
    except OSError:
        return ""
