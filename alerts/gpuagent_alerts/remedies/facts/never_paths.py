"""What a process runs, or may run, with its paths looked up: what entries of the never-list are compared with.

Everything here asks file systems, which may hang: it is called in a thread that nobody has to wait for.

The path of an entry may lead to another release by now than the one that a process still runs. A deployment turns a
link (`current`), or lays files into a new directory, before what runs is restarted; a launcher's link (`/snap/bin/x`)
leads to the launcher. The process is meant all the same, and its own path says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuagent.core.identity import COMM_BYTES
from gpuagent.procfs.programs import INTERPRETER, ProcessProgram, is_interpreter, module_names
from gpuagent_alerts.remedies.facts.symlinks import SearchLimitExceeded, SymbolicLink, spellings
from gpuagent_alerts.remedies.safeguards.never_list import find_listed, is_pattern, matches, show_name

_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(:.*)?")
"""A module of Python, alone (`-m app`) or with what is taken from it (`uvicorn app:main`)."""
_MOST_FOLDERS = 64
_MOST_MODULE_FILES = 50_000
"""Files of modules that are looked for: modules by directories."""
COMMON_NAMES = frozenset({
    "__init__", "__main__", "agent", "api", "app", "application", "asgi", "batch", "bench", "benchmark", "bot",
    "cli", "client", "daemon", "demo", "download", "entry", "entrypoint", "env", "eval", "evaluate", "example",
    "exec", "experiment", "finetune", "generate", "hello", "index", "infer", "inference", "init", "job", "jobs",
    "launch", "launcher", "learn", "main", "manage", "model", "models", "notebook", "predict", "process", "prog",
    "program", "python", "run", "runner", "sample", "script", "serve", "server", "service", "setup", "start",
    "submit", "sudo", "task", "tasks", "test", "tests", "tool", "tools", "train", "trainer", "training", "tune",
    "validate", "web", "worker", "workers", "wsgi",
})  # fmt: skip
"""What everybody calls a program, without a suffix: such a name alone means nobody's."""
_SHORTEST_NAME = 3
UNSEEN_FOLDER = "its working directory may not be read, which takes CAP_SYS_PTRACE"
UNSEEN_PROGRAM = "its program may not be read, which takes CAP_SYS_PTRACE"
"""Why it is only known that an entry may mean a process."""


class ProgramPath(NamedTuple):
    """A path of a process: as it is written, and what it leads to."""

    written: str
    spellings: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.spellings[-1]


class ProgramPaths:
    """What a process runs, with the paths looked up."""

    def __init__(self, program: ProcessProgram, *, guess: bool) -> None:
        """Look all of it up. Raises SearchLimitExceeded where that is more than can be looked up."""
        self._program = program
        self._guess = guess
        self.places: list[ProgramPath] = []
        self.folders: list[ProgramPath] = []
        """Its working directory and those among its arguments, each as a file in there: it may run any of them."""
        self.unplaced: list[str] = []
        """Relative paths, where the working directory is unknown."""
        self.mentioned: list[ProgramPath] = []
        """Paths anywhere in its arguments, which it may run or load; relative ones where there is such a file."""
        self.mentioned_unplaced: list[str] = []
        """Relative paths anywhere in its arguments, where the working directory is unknown."""
        if program.executable:
            self.places.append(ProgramPath(program.executable, (program.executable,)))
        self._start: ProgramPath | None = None
        if "/" in program.first_argument:
            self._start = self._place(program.first_argument)
        for each in program.scripts:
            self._place(each)
        for each in program.words:
            if "/" in each or os.path.lexists(os.path.join(program.folder, each)):  # noqa: PTH118
                self._place(each)
        self._place_mentioned()
        self._place_folders()
        self._place_modules()
        if self._start is not None and program.executable and self._start.file != program.executable:
            # An argument that has been written over, or the program has been replaced: a title is no relative path.
            self.places = [each for each in self.places if each is not self._start or each.written.startswith("/")]
            self._start = None

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called."""
        return self._program.names

    @property
    def files(self) -> Iterator[tuple[ProgramPath, str]]:
        """Each path, and where the file is found that the process has there: by its own mounts, if they are others."""
        for place in (*self.places, *self.mentioned):
            yield place, f"{self._program.root}{place.spellings[0]}" if self._program.root else place.file

    @property
    def has_own_mounts(self) -> bool:
        return bool(self._program.root)

    def works_in(self, folder: str) -> str:
        """Return which of its directories is this one by its own mounts; "" for none, or where they are the agent's."""
        for place in self.folders if self._program.root else ():
            path = f"{self._program.root}{os.path.dirname(place.spellings[0])}"  # noqa: PTH120
            if same_file(path, folder):
                return place.written
        return ""

    @property
    def texts(self) -> Iterator[str]:
        """Everything that a relative entry may be the end of: names, paths as written and as they lead on, modules."""
        yield from (*self._program.names, *self._program.words, *self._program.mentioned)
        for each in self._program.mentioned:
            yield from module_names(each)
        for place in (*self.places, *self.mentioned, *self.folders):
            yield from place.spellings

    @property
    def spellings(self) -> list[str]:
        """Its paths, as they are written and as they lead on."""
        return [each for place in self.places for each in place.spellings]

    def _place(self, path: str) -> ProgramPath | None:
        if not (path.startswith("/") or self._program.folder):
            self.unplaced.append(path)
            return None
        whole = os.path.join(self._program.folder, path)  # noqa: PTH118  an absolute path stays one
        place = ProgramPath(path, spellings(whole))
        self.places.append(place)
        return place

    def _place_mentioned(self) -> None:
        """Take note of every path in the arguments, wherever it stands."""
        folder, known = self._program.folder, {each.written for each in self.places}
        for each in self._program.mentioned:
            if each in known:
                continue
            if not (each.startswith("/") or folder):
                self.mentioned_unplaced.append(each)
                continue
            whole = os.path.join(folder, each)  # noqa: PTH118  an absolute path stays one
            if each.startswith("/") or os.path.lexists(whole):
                self.mentioned.append(ProgramPath(each, spellings(os.path.normpath(whole))))

    def _place_folders(self) -> None:
        """Take note of directories; one that an interpreter is given is run by its `__main__.py`."""
        named = [each for each in self.places if os.path.isdir(each.file)]  # noqa: PTH112
        for each in named:
            self._place(f"{each.written}/__main__.py")
        named += [each for each in self.mentioned if os.path.isdir(each.file)]  # noqa: PTH112
        folders = dict.fromkeys([self._program.folder, *(each.written for each in named)])
        if len(folders) > _MOST_FOLDERS or self._program.python_path.count(":") >= _MOST_FOLDERS:
            raise SearchLimitExceeded(f"it is given more than {_MOST_FOLDERS} directories")
        for written in folders:
            if written:
                whole = os.path.join(self._program.folder, written, "_")  # noqa: PTH118
                self.folders.append(ProgramPath(written, spellings(whole)))

    def _place_modules(self) -> None:
        """Find the files of modules that it may run: below its directories, and those of PYTHONPATH."""
        program = self._program
        words = dict.fromkeys((*program.scripts, *program.words, *program.mentioned))
        found = [_MODULE.fullmatch(each) for each in words]
        modules = [each for each in found if each is not None]
        folders = [each.written for each in self.folders] + program.python_path.split(":")
        if len(modules) * len(folders) > _MOST_MODULE_FILES:
            raise SearchLimitExceeded(f"its arguments may name more than {_MOST_MODULE_FILES} files of modules")
        for module in modules:
            path = module[1].replace(".", "/")
            for folder in folders:
                for file in (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"):
                    written = os.path.join(folder, file)  # noqa: PTH118
                    if os.path.lexists(os.path.join(program.folder, written)):  # noqa: PTH118
                        self._place(written)
            if not program.folder and (module[2] or module[0] in program.scripts):
                self.unplaced.append(f"{path}.py")

    def runs_in(self, folder: str, names: set[str], interpreter: str) -> bool:
        """Return whether it runs, or may run, the interpreter of the virtual environment with this `bin` directory.

        The interpreter itself is the same file for all of them: what counts is the path by which it was started.
        """
        home = self._program.python_home
        if home and os.path.realpath(home) == os.path.dirname(folder):  # noqa: PTH120
            return True
        if self._start is not None:
            return any(os.path.dirname(each) == folder for each in self._start.spellings)  # noqa: PTH120
        if self._program.executable:  # started by its name alone, which may be found in any directory
            return self._program.executable == interpreter
        return self.may_run(interpreter, names)

    def may_run(self, file: str, names: set[str]) -> bool:
        """Return whether it may run this file, where its program cannot be read and its first argument has no place.

        The name that the kernel knows and the first argument are the process's own: where they differ, neither tells.
        """
        program = self._program
        if program.executable or self._start is not None or not self._guess:
            return False
        called = {program.names[0] if program.names else "", os.path.basename(program.first_argument)}  # noqa: PTH119
        known = {_cut(each) for each in (*names, os.path.basename(file))}  # noqa: PTH119
        cut = {_cut(each) for each in called}
        return len(cut) > 1 or not cut.isdisjoint(known)

    def started_words(self, entry: str, target: str) -> str:
        """Return the refusal of one that runs what an entry leads to, or may do so."""
        program = self._program
        if self._start is not None:
            return match_text(program.first_argument, entry, target)
        name = program.executable or program.first_argument or program.names[0]
        return match_text(name, entry, target, may_be=True, unseen="" if program.executable else UNSEEN_PROGRAM)


def same_file(one: str, other: str) -> bool:
    """Return whether two paths name one file: by a hard link, or a directory that is mounted in two places."""
    try:
        return os.path.samefile(one, other)  # noqa: PTH121
    except (OSError, ValueError):
        return False


def environment_of(path: str, target: str) -> str:
    """Return the `bin` directory of the virtual environment of which a link is the interpreter; "" for any other.

    https://docs.python.org/3/library/site.html: pyvenv.cfg lies beside the interpreter as called, or one above.
    """
    folder = os.path.realpath(os.path.dirname(path))  # noqa: PTH120
    if target.startswith(f"{folder}/") or not INTERPRETER.fullmatch(os.path.basename(target)):  # noqa: PTH119
        return ""
    for place in (folder, os.path.dirname(folder)):  # noqa: PTH120
        if os.path.exists(os.path.join(place, "pyvenv.cfg")):  # noqa: PTH110, PTH118
            return folder
    return ""


def match_text(name: str, entry: str, target: str, *, may_be: bool = False, by: str = "", unseen: str = "") -> str:
    """Return the refusal of what is called `name`, by an entry that leads to `target`.

    `unseen` says why that cannot be told for certain.
    """
    verb = "may be" if may_be else "is"
    leads = f", which leads to {show_name(target)}" if target and target != entry else ""
    way = f" by {show_name(by)}" if by else ""
    return (
        f"{show_name(name)} {verb} on the never-list ({show_name(entry)}{leads}{way}){f': {unseen}' if unseen else ''}"
    )


def _cut(name: str) -> str:
    return name.encode("utf-8", "surrogateescape")[:COMM_BYTES].decode("utf-8", "surrogateescape")


def is_common(name: str) -> bool:
    """Return whether a file name alone does not tell one program from those of others."""
    stem = name.partition(".")[0]
    return len(stem) < _SHORTEST_NAME or stem.lower() in COMMON_NAMES or is_interpreter(name) or is_pattern(name)


def same_name(entry: str, names: Iterable[str]) -> str:
    """Return which of the names or paths has the file name of an entry, where that name is nobody else's; else ""."""
    wanted = entry.rpartition("/")[2]
    listed = None if is_common(wanted) else find_listed(names, (wanted,))
    return "" if listed is None else listed.name


def other_release(entry: str, link: SymbolicLink, files: Iterable[str]) -> str:
    """Return which file an entry would mean, had its link not been turned since; "" for none.

    Releases lie beside one another: the link leads to one, and the file lies in another one at the same place.
    """
    beside = os.path.dirname(link.target).rstrip("/")  # noqa: PTH120
    for file in files:
        if not beside or not file.startswith(f"{beside}/"):
            continue
        _, _, inside = file.removeprefix(f"{beside}/").partition("/")
        if inside and matches(f"{link.name}/{inside}", entry):
            return file
    return ""


def links_in_path(path: str) -> Iterator[SymbolicLink]:
    """Yield each directory on the way to a file that is a link, and where it leads."""
    folder = os.path.dirname(path)  # noqa: PTH120
    while folder not in {"", "/"}:
        if os.path.islink(folder):  # noqa: PTH114
            yield SymbolicLink(folder, os.path.realpath(folder))
        folder = os.path.dirname(folder)  # noqa: PTH120
