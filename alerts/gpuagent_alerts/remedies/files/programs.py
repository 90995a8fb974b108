"""What a command of the configuration runs: its program, interpreters, and the files that its arguments name.

What a program does by itself (a script that runs another one) cannot be known here. That is for whoever wrote it: root
or the agent's user, as every file that can be known is changeable by nobody else.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gpuagent.core.regular_files import open_regular_file, read_at_most
from gpuagent_alerts.programs.run import SEARCH_PATH, WORKING_DIRECTORY
from gpuagent_alerts.remedies.files.command_rules import (
    LAUNCHERS,
    SHELLS,
    imports,
    interprets,
    may_launch,
    refused_texts,
    script_of,
    takes_names,
)
from gpuagent_alerts.remedies.files.path_walk import Walk, how_to_replace, show_path, walk
from gpuagent_alerts.remedies.files.permissions import directory_faults, directory_tree_faults, is_open_for_writing

_HEAD_BYTES = 256
"""As much of a script as the kernel looks at (BINPRM_BUF_SIZE, linux/binfmts.h)."""
_MAX_DEPTH = 8
"""The kernel follows five interpreters (fs/exec.c); `env` may be among them."""
_INSIDE = re.compile(r"""(?:(?<![\w./~-])|(?<=^-\w))/[^\s=:,;|&<>()'"`]*""")
"""Absolute paths inside an argument: `--config=/a`, `-f/a`, `a=/b:/c`, `@/a`, `+/a`."""
_WORDS = re.compile(r"""[^\s=:,;|&<>()'"`]+""")
_PLACES = re.compile(r"\{(?:pid|container_id|slurm_job)\}")
"""What is filled in by the time that a command runs."""
_HIDDEN = re.compile(
    r"""(?:(?:^|(?<=[\s=:,;|&<>()'"`]))(?:~[^\s;]*|PATH=[^\s;]*|/[^\s=:,;|&<>()'"`]*[*?\[\]{}$][^\s;]*))"""
)
"""What a shell makes other paths of, and another PATH than the one that is searched here."""


class ProgramCheck:
    """Says what others than root and the agent's user can change of what a command runs."""

    def __init__(self, own_uid: int | None = None, search_path: str = SEARCH_PATH) -> None:
        """`search_path` is the PATH that programs are started with."""
        self._owners = frozenset({0, os.geteuid() if own_uid is None else own_uid})
        self._search_path = search_path

    def __call__(self, command: Sequence[str]) -> str:
        """Return every reason why a command must not be run, "" if there is none."""
        return "; ".join(self.faults(command))

    def faults(self, command: Sequence[str]) -> list[str]:
        """Return every reason why a command must not be run, in the order of its words."""
        return list(dict.fromkeys(_Command(self._owners, self._search_path).faults(command)))


class _Command:
    """One command, and those that it leads to; each file is examined once."""

    def __init__(self, owners: Collection[int], search_path: str) -> None:
        self._owners = owners
        self._search_path = search_path
        self._seen: set[str] = set()
        self._listed: set[str] = set()

    def faults(self, command: Sequence[str], depth: int = 0) -> Iterator[str]:
        program, *arguments = command
        if not program.startswith("/"):
            found = "" if "/" in program or "\0" in program else shutil.which(program, path=self._search_path)
            yield f"{show_path(program)} is not an absolute path: write {found or 'where it is, from / on'}"
            names = [Path(program).name]
        else:
            with walk(program, self._owners) as walked:
                names = [Path(program).name, _name_of(walked)]
            yield from self._file(program, depth)
        yield from refused_texts(names, arguments)
        if any(map(interprets, names)):
            yield from self._writers(script_of(arguments))
        yield from self._writers(program)
        runs_others = any(LAUNCHERS.fullmatch(name) or SHELLS.fullmatch(name) for name in names)
        runs_files = any(map(interprets, names))
        for number, argument in enumerate(arguments):
            for path in _paths_in(argument):
                may_be_directory = not (runs_others or runs_files) or path != argument or "find" in names
                yield from self._file(path, depth, may_be_directory=may_be_directory)
            if runs_others:
                yield from self._words(argument, depth)
            elif runs_files or ("/" in argument and not takes_names(names)):
                yield from self._relative(argument.partition("=")[2] if argument.startswith("--") else argument)
            if may_launch(names, argument):
                yield from self._launched(argument, arguments[number + 1 :])
        if any(map(imports, names)):
            yield from self._imported(program, script_of(arguments))

    def _launched(self, word: str, rest: Sequence[str]) -> Iterator[str]:
        """Faults of the command that begins with this word of a launcher's, if it names a program that runs a text."""
        found = (
            word if word.startswith("/") else shutil.which(word, path=self._search_path) if "/" not in word else None
        )
        names = [Path(word).name]
        if found and "\0" not in found:
            with walk(found, self._owners) as walked:
                names.append(_name_of(walked))
        yield from refused_texts(names, rest)
        if any(map(interprets, names)):
            yield from self._writers(script_of(rest))
        if found:
            yield from self._writers(found)
        if any(map(imports, names)):
            yield from self._imported(found or "", script_of(rest))

    def _writers(self, path: str) -> Iterator[str]:
        """Yield the fault of a program or script that somebody has open for writing, whoever may open it now."""
        if path.startswith("/"):
            with walk(path, self._owners) as walked:
                if _has_a_writer(walked):
                    yield f"{show_path(path)} is open for writing in some process: {how_to_replace(path)}"

    def _imported(self, interpreter: str, script: str) -> Iterator[str]:
        """Faults of where modules come from: beside a script, links followed (sys.path[0]), and a venv."""
        beside = (os.path.dirname(script), os.path.dirname(os.path.realpath(script))) if script else ()  # noqa: PTH120
        for directory in dict.fromkeys(beside):
            yield from self._all_below(directory)
        # https://docs.python.org/3/library/site.html: pyvenv.cfg lies beside the interpreter as called, or one above.
        for place in Path(interpreter).parents[:2] if interpreter else ():
            if (place / "pyvenv.cfg").exists():
                yield from self._file(str(place / "pyvenv.cfg"), _MAX_DEPTH)
                for packages in sorted(place.glob("lib*/*/site-packages")):
                    yield from self._all_below(str(packages))

    def _all_below(self, directory: str) -> Iterator[str]:
        """Faults of a directory from which modules are taken, and of the packages in it."""
        if directory not in self._listed:
            self._listed.add(directory)
            with walk(directory, self._owners) as walked:
                yield from map(str, walked.faults)  # of a sticky directory too: anybody may add a module
                if walked.is_directory() and not walked.faults:
                    yield from directory_tree_faults(walked, self._owners)

    def _words(self, argument: str, depth: int) -> Iterator[str]:
        """Yield the faults of what a launcher may make of an argument: programs in PATH, paths, expansions."""
        for hidden in dict.fromkeys(_HIDDEN.findall(_PLACES.sub("", argument))):
            yield f"{show_path(hidden)} in an argument cannot be examined: write whole paths, or a script that has it"
        for word in _WORDS.findall(argument):
            yield from self._relative(word)
            yield from self._searched(word, depth)

    def _file(self, path: str, depth: int, *, may_be_directory: bool = True) -> Iterator[str]:
        """Faults of a file, of its interpreters if it is a script; the kernel takes it for a program in any place."""
        if path in self._seen:
            return
        self._seen.add(path)
        with walk(path, self._owners) as walked:
            yield from map(str, walked.faults)
            if walked.is_directory() and not may_be_directory:
                yield f"{show_path(path)} is a directory, whose files are not examined: name the file to run"
            elif walked.is_directory() and path not in self._listed:
                self._listed.add(path)
                yield from directory_faults(walked, self._owners)
            elif walked.kind() == "a FIFO":
                yield f"{show_path(path)} is a FIFO: name a file"
            try:
                head = _head(walked)
            except OSError as error:
                yield f"{show_path(path)} cannot be read ({error.strerror}), so what runs it is unknown: chmod o+r it"
                return
        if head.startswith(b"#!") and depth < _MAX_DEPTH:
            interpreter, *option = os.fsdecode(head[2:].split(b"\n")[0]).strip(" \t").split(maxsplit=1) or [""]
            if interpreter.startswith("/"):
                yield from self.faults([interpreter, *option, path], depth + 1)
            elif interpreter:
                yield f"{show_path(path)} has the interpreter {show_path(interpreter)}: write an absolute path"

    def _relative(self, argument: str) -> Iterator[str]:
        """Yield the fault of a script with a relative path: it would be searched in a directory that nobody named."""
        if argument.startswith(("/", "-")) or not argument:
            return
        there = str(Path(WORKING_DIRECTORY, argument))
        with suppress(OSError, ValueError):
            if not stat.S_ISDIR(os.lstat(there).st_mode) or "/" in argument:
                yield f"{show_path(argument)} is a relative path to a file: write {show_path(there)}"

    def _searched(self, word: str, depth: int) -> Iterator[str]:
        """Yield the faults of what a launcher finds in PATH, and of every directory in which it looks before."""
        if "/" in word or "=" in word or "\0" in word or word.startswith("-"):
            return
        for directory in self._search_path.split(":"):
            yield from self._file(str(Path(directory, word)), depth)
            if shutil.which(word, path=directory):
                return


def _paths_in(argument: str) -> list[str]:
    """Return every absolute path that an argument may name: all of it, a value of an option, what is inside."""
    whole = [argument, argument.partition("=")[2], argument[2:] if argument.startswith("-") else ""]
    found = [each for each in whole if each.startswith("/")] + _INSIDE.findall(argument)
    return list(dict.fromkeys(each for each in found if "\0" not in each))


def _name_of(walked: Walk) -> str:
    """Return what a program is called once links are followed: `sh` may be `dash`, `pager` anything."""
    if walked.descriptor is None:
        return ""
    return Path(f"/proc/self/fd/{walked.descriptor}").readlink().name


def _head(walked: Walk) -> bytes:
    """Return the begin of a program, nothing of what is none. Raises OSError."""
    if walked.status is None or not walked.is_regular_file() or not walked.status.st_mode & 0o111:
        return b""
    descriptor = open_regular_file(f"/proc/self/fd/{walked.descriptor}")
    try:
        return read_at_most(descriptor, _HEAD_BYTES)
    finally:
        os.close(descriptor)


def _has_a_writer(walked: Walk) -> bool:
    """Return whether what is run is open for writing. False for what cannot be read: that is told elsewhere."""
    if not walked.is_regular_file():
        return False
    try:
        descriptor = open_regular_file(f"/proc/self/fd/{walked.descriptor}")
    except OSError:
        return False
    try:
        return is_open_for_writing(descriptor)
    finally:
        os.close(descriptor)
