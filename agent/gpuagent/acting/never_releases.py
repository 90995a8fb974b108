"""Entries of the never-list whose path leads to another release by now than the one that a process still runs.

A deployment turns a link (`current`), or lays files into a new directory, before what runs is restarted; a launcher's
link (`/snap/bin/x`) leads to the launcher. The process is meant all the same, and its own path says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from gpuagent.acting.links import Link, is_pattern
from gpuagent.procfs.programs import is_interpreter
from gpuagent_alerts.remedies.never_list import find_listed

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


def is_common(name: str) -> bool:
    """Return whether a file name alone does not tell one program from those of others."""
    stem = name.partition(".")[0]
    return len(stem) < _SHORTEST_NAME or stem.lower() in COMMON_NAMES or is_interpreter(name) or is_pattern(name)


def same_name(entry: str, names: Iterable[str]) -> str:
    """Return which of the names or paths has the file name of an entry, where that name is nobody else's; else ""."""
    wanted = entry.rpartition("/")[2]
    listed = None if is_common(wanted) else find_listed(names, (wanted,))
    return "" if listed is None else listed.name


def other_release(entry: str, link: Link, files: Iterable[str]) -> str:
    """Return which file an entry would mean, had its link not been turned since; "" for none.

    Releases lie beside one another: the link leads to one, and the file lies in another one at the same place.
    """
    beside = os.path.dirname(link.target).rstrip("/")  # noqa: PTH120
    for file in files:
        if not beside or not file.startswith(f"{beside}/"):
            continue
        _, _, inside = file.removeprefix(f"{beside}/").partition("/")
        if inside and fnmatchcase(f"{link.name}/{inside}", entry):
            return file
    return ""


def links_on(path: str) -> Iterator[Link]:
    """Yield each directory on the way to a file that is a link, and where it leads."""
    folder = os.path.dirname(path)  # noqa: PTH120
    while folder not in {"", "/"}:
        if os.path.islink(folder):  # noqa: PTH114
            yield Link(folder, os.path.realpath(folder))
        folder = os.path.dirname(folder)  # noqa: PTH120
