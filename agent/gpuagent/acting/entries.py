"""What lies in a directory: each entry may be changed by nobody but its owners either.

A directory that is clean today may hold what others put there when it was not.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Collection, Iterator

from gpuagent.acting.path_walk import PathFault, Walk, replacement, shown_path, walk

MAX_ENTRIES = 4096
"""More than a directory of programs has; a walk takes less than 0.1 ms for each."""
_CACHE = "__pycache__"
MAX_BELOW = 20_000
"""More than a virtual environment of the usual tools has."""


def entry_faults(
    directory: Walk, owners: Collection[int], stems: Collection[str], limit: int = MAX_ENTRIES
) -> list[PathFault]:
    """Return the faults of the agent's own files in a directory: no link, no second name, writable by no others.

    `stems` are their names up to the first dot: `state` for `state.db`, its log and its leftovers. What else lies there
    is never read.
    """
    path = directory.path.rstrip("/")
    names, faults = _names(directory, limit)
    for name in (name for name in names if name.partition(".")[0] in stems):
        element = f"{path}/{name}"
        try:
            status = os.lstat(name, dir_fd=directory.descriptor)
        except FileNotFoundError:  # SQLite's log goes with its last user
            continue
        if stat.S_ISLNK(status.st_mode):
            faults.append(PathFault(element, "is a symbolic link", f"remove it: rm {shown_path(shlex.quote(element))}"))
            continue
        with walk(element, owners) as walked:
            status = walked.status or status
            found = [fault for fault in walked.faults if fault not in directory.faults]
        if stat.S_ISREG(status.st_mode):
            found = [fault._replace(remedy=_removal(element)) for fault in found]
        faults += found
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            faults.append(PathFault(element, f"has {status.st_nlink} names (hard links)", _removal(element)))
        elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            faults.append(
                PathFault(
                    element, "is neither a file nor a directory", f"remove it: rm {shown_path(shlex.quote(element))}"
                )
            )
    return faults


def _removal(element: str) -> str:
    """Return what to do with a file of the agent's that others may have written: its content may be forged."""
    return f"remove it (rm {shown_path(shlex.quote(element))}), or if you trust what it says, {replacement(element)}"


def listed_faults(directory: Walk, owners: Collection[int], limit: int = MAX_ENTRIES) -> Iterator[str]:
    """Yield the faults of what a program may take from a directory: its entries, links followed, and Python's cache."""
    path = directory.path.rstrip("/")
    names, faults = _names(directory, limit)
    yield from map(str, faults)
    for name in names:
        with walk(f"{path}/{name}", owners) as walked:
            yield from (str(fault) for fault in walked.faults if fault not in directory.faults)
            if name == _CACHE and walked.is_directory():
                yield from listed_faults(walked, owners, limit)


def tree_faults(directory: Walk, owners: Collection[int], limit: int = MAX_BELOW) -> Iterator[str]:
    """Yield the faults of everything below a directory; a link is followed, and what it leads to is not searched."""
    places, seen = [directory.path.rstrip("/")], 0
    while places:
        with walk(places.pop(), owners) as place:
            names, faults = _names(place, limit) if place.is_directory() else ([], [])
            yield from map(str, faults)
            seen += len(names)
            if seen > limit:
                yield f"{shown_path(directory.path)} has more than {limit} files below it: put the script elsewhere"
                return
            for name in names:
                element = f"{place.path}/{name}"
                try:
                    status = os.lstat(name, dir_fd=place.descriptor)
                except FileNotFoundError:
                    continue
                if _needs_a_walk(status, place, owners):
                    with walk(element, owners) as entry:
                        found = [fault for fault in entry.faults if fault not in place.faults]
                    yield from map(str, found)
                    if found:
                        continue
                if stat.S_ISDIR(status.st_mode):
                    places.append(element)


def _needs_a_walk(status: os.stat_result, place: Walk, owners: Collection[int]) -> bool:
    """Whether owner and mode do not yet say that nobody else can write: of an ACL the mode has the widest (acl(5))."""
    other_file_system = place.status is None or status.st_dev != place.status.st_dev
    return (
        stat.S_ISLNK(status.st_mode) or other_file_system or status.st_uid not in owners or bool(status.st_mode & 0o022)
    )


def _names(directory: Walk, limit: int) -> tuple[list[str], list[PathFault]]:
    """Return the names in a directory, and why there are none."""
    try:
        with os.scandir(f"/proc/self/fd/{directory.descriptor}") as entries:
            names = sorted(entry.name for entry, _ in zip(entries, range(limit + 1), strict=False))
    except OSError as error:
        reason = f"cannot be listed ({error.strerror})"
        return [], [PathFault(directory.path, reason, "let the agent's user read it")]
    if len(names) > limit:
        return [], [PathFault(directory.path, f"has more than {limit} entries, which are not examined", "remove some")]
    return names, []
