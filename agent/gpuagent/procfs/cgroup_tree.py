"""The cgroup tree in which systemd tracks its units: where it is mounted, and which processes are in one cgroup.

systemd uses version 2 where it is mounted for it (unified and hybrid set-ups), else a version 1 hierarchy without
controllers that is named `systemd` (https://systemd.io/CGROUP_DELEGATION).
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

MOST_PROCESSES = 4096
MOST_CGROUPS = 1024
_LONGEST_LINE = len("4194304\n")  # PID_MAX_LIMIT, include/linux/threads.h
_OCTAL = re.compile(r"\\([0-7]{3})")
_VANISHED = frozenset({errno.ENOENT, errno.ENODEV})
"""What reading a cgroup that was removed meanwhile fails with: before and after its file was opened."""


class UnreadableTree(Exception):
    """The processes of a cgroup cannot be listed, or are too many to look at."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted cgroup hierarchy."""

    root: Path
    controllers: str
    """The second field of its line in /proc/<pid>/cgroup: "" for version 2, or "name=systemd"."""

    def folder(self, cgroup: str) -> Path:
        """Return the folder of a cgroup, which is named by its path from the root, as in `/system.slice/a.service`."""
        return self.root / cgroup.lstrip("/")


def systemd_hierarchies(mountinfo: bytes) -> tuple[Hierarchy, ...]:
    """Read /proc/<pid>/mountinfo, and return the hierarchies that systemd may use, version 2 first.

    A mount that shows a part of a hierarchy only is left out: paths in /proc/<pid>/cgroup begin at the root.
    """
    found = []
    for line in os.fsdecode(mountinfo).split("\n"):
        mount, _, file_system = line.partition(" - ")
        fields, kind = mount.split(" "), file_system.split(" ")
        if len(fields) < 6 or len(kind) < 3 or fields[3] != "/":  # proc_pid_mountinfo(5)
            continue
        root = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[4]))
        if kind[0] == "cgroup2":
            found.append(Hierarchy(root, ""))
        elif kind[0] == "cgroup" and "name=systemd" in kind[2].split(","):
            found.append(Hierarchy(root, "name=systemd"))
    return tuple(sorted(found, key=lambda hierarchy: hierarchy.controllers))


def path_in_hierarchy(data: bytes, controllers: str) -> str | None:
    """Return the path of a process in one hierarchy from its /proc/<pid>/cgroup; None where it has none."""
    for line in os.fsdecode(data).split("\n"):
        _, _, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        if colon and names == controllers:
            return path
    return None


def is_below(path: str, cgroup: str) -> bool:
    """Return whether a path is that of the cgroup or of one inside of it. Nothing counts as below the root."""
    return len(cgroup) > 1 and (path == cgroup or path.startswith(f"{cgroup}/"))


def processes_in(folder: Path) -> frozenset[int]:
    """List the processes of a cgroup and of all cgroups inside of it.

    A process that moves from one to another meanwhile may be missed. Raises UnreadableTree.
    """
    found: set[int] = set()
    waiting, seen = [folder], 0
    while waiting:
        current, seen = waiting.pop(), seen + 1
        if seen > MOST_CGROUPS:
            raise UnreadableTree(f"it has more than {MOST_CGROUPS} cgroups")
        try:
            found |= _listed_in(current)
            with os.scandir(current) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in _VANISHED and current != folder:
                continue
            raise UnreadableTree(f"{current}: {error.strerror}") from error
        if len(found) > MOST_PROCESSES:
            raise UnreadableTree(f"it has more than {MOST_PROCESSES} processes")
    return frozenset(found)


def _listed_in(folder: Path) -> set[int]:
    """The kernel lists a process of a namespace outside of the reader's as 0: of that one nothing can be known."""
    limit = (MOST_PROCESSES + 1) * _LONGEST_LINE
    with (folder / "cgroup.procs").open("rb") as file:
        text = file.read(limit + 1)
    words = text.split()
    if len(text) > limit:
        raise UnreadableTree(f"it has more than {MOST_PROCESSES} processes")
    if not all(word.isdigit() and int(word) for word in words):
        raise UnreadableTree("it has processes that cannot be seen from this pid namespace")
    return {int(word) for word in words}
