"""Read files that only root and the agent's user may write: whoever can write them can make the agent kill.

Checking a path and reading it are one thing here. What is used is the content of the very file that was checked, as
the agent has it open; what is put in its place meanwhile is not read. A file that is open for writing somewhere counts
as writable: who opened it before a chown or a chmod writes on after it.

In a directory each entry may be changed by nobody but its owners either. One that is clean today may hold what others
put there when it was not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import signal
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from gpuagent.core.regular_files import MAX_FILE_BYTES, not_regular, open_regular_file, read_at_most, read_regular_file
from gpuagent_alerts.remedies.files.path_walk import PathFault, Walk, how_to_replace, show_path, walk

MAX_ENTRIES = 4096
"""More than a directory of programs has; a walk takes less than 0.1 ms for each."""
_CACHE = "__pycache__"
MAX_BELOW = 20_000
"""More than a virtual environment of the usual tools has."""


class CheckedFiles:
    """Reads files, and remembers what others than root and the agent's user can change of them or of their paths.

    It does not refuse anything: whether that matters depends on what is read. Each file is read once, and later calls
    return the same bytes. Not for use by several threads.
    """

    def __init__(
        self,
        own_uid: int | None = None,
        *,
        begun: Callable[[Path], object] = lambda _: None,
        checked: Callable[[Path], object] = lambda _: None,
    ) -> None:
        """`own_uid` is the agent's user, by default of this process.

        `begun` is called with each path before anything of it is looked at, `checked` once it was checked, before it
        is read.
        """
        self.own_uid = os.geteuid() if own_uid is None else own_uid
        self._owners = frozenset({0, self.own_uid})
        self._begun, self._checked = begun, checked
        self._contents: dict[Path, bytes | OSError] = {}
        self._faults: dict[str, None] = {}

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything that is wrong so far, in words that name the element and what to do."""
        return tuple(self._faults)

    def read(self, path: Path) -> bytes:
        """Return the content, of a larger file the first `MAX_FILE_BYTES` + 1 bytes. Raises OSError."""
        if path not in self._contents:
            try:
                self._contents[path] = self._read(path)
            except OSError as error:
                self._contents[path] = error
        content = self._contents[path]
        if isinstance(content, OSError):
            raise content
        return content

    def check(self, path: Path) -> None:
        """Check a file or a directory that is not read here. It need not exist if nobody else can make it."""
        self._begun(path)
        with walk(_absolute(path), self._owners) as walked:
            self._add(walked.faults)

    def check_contents(self, path: Path, stems: Collection[str]) -> None:
        """Check a directory of the agent's and its own files in it, whose names begin with one of the `stems`.

        It need not exist if nobody else can make it. What mends a fault leaves the directory and its files to the
        agent's user, and deletes nothing.
        """
        with walk(_absolute(path), self._owners) as walked:
            here = str(path).rstrip("/")
            self._add([_given_back(fault, self.own_uid) if fault.element == here else fault for fault in walked.faults])
            if walked.is_directory():
                self._add(entry_faults(walked, self._owners, stems, self.own_uid))

    def _read(self, path: Path) -> bytes:
        self._begun(path)
        with walk(_absolute(path), self._owners) as walked:
            self._add(walked.faults)
            self._checked(path)
            if walked.status is None:
                content = read_regular_file(path)  # a fault that is told as such
                self._tell(path, "was not there when it was checked", "reload again")
                return content
            if not walked.is_regular_file():
                raise not_regular(path, walked.status.st_mode)
            content, before, after, is_open = _content_of(walked)
        if is_open:
            self._tell(path, "is open for writing in some process", how_to_replace(_absolute(path)))
        with walk(_absolute(path), self._owners) as again:
            self._add(again.faults)
            if again.status is None or not os.path.samestat(again.status, before):
                self._tell(path, "was replaced while it was read", "reload again")
            elif _stamp(before) != _stamp(after):
                self._tell(path, "was changed while it was read", "reload again")
        return content

    def _tell(self, path: Path, problem: str, remedy: str) -> None:
        self._add([PathFault(_absolute(path), problem, remedy)])

    def _add(self, faults: list[PathFault]) -> None:
        self._faults.update(dict.fromkeys(map(str, faults)))


def _absolute(path: Path) -> str:
    """Return an absolute path with `..` and links left in: the walk resolves them in the kernel's order."""
    return str(path if path.is_absolute() else Path.cwd() / path)


def _content_of(walked: Walk) -> tuple[bytes, os.stat_result, os.stat_result, bool]:
    """Return the content of the file that was checked, its status when it was checked, and after it was read.

    And whether somebody had it open for writing: who owned it before keeps a descriptor over any chown and chmod.
    """
    if walked.descriptor is None or walked.status is None:
        raise FileNotFoundError(walked.path)
    # The link leads to the open file itself, whatever has become of its path (proc(5)).
    descriptor = open_regular_file(f"/proc/self/fd/{walked.descriptor}")
    try:
        is_open = is_open_for_writing(descriptor)
        content = read_at_most(descriptor, MAX_FILE_BYTES + 1)
        return content, walked.status, os.fstat(descriptor), is_open
    finally:
        os.close(descriptor)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """Return what every change of content, owner, mode or ACL moves: ctime, which nobody can set."""
    return (status.st_ctime_ns, status.st_mtime_ns, status.st_size)


def _given_back(fault: PathFault, own_uid: int) -> PathFault:
    """Return the fault of the agent's own directory with it as the owner, and not root."""
    return fault._replace(remedy=fault.remedy.replace("chown root ", f"chown {own_uid} ", 1))


def entry_faults(
    directory: Walk, owners: Collection[int], stems: Collection[str], own_uid: int, limit: int = MAX_ENTRIES
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
            faults.append(PathFault(element, "is a symbolic link", _move_aside(path, name)))
            continue
        with walk(element, owners) as walked:
            status = walked.status or status
            found = [fault for fault in walked.faults if fault not in directory.faults]
        if stat.S_ISREG(status.st_mode):
            found = [fault._replace(remedy=_keep_or_move(path, name, own_uid)) for fault in found]
        faults += [_given_back(fault, own_uid) for fault in found]
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            problem = f"has {status.st_nlink} names (hard links)"
            faults.append(PathFault(element, problem, _keep_or_move(path, name, own_uid)))
        elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            faults.append(PathFault(element, "is neither a file nor a directory", _move_aside(path, name)))
    return faults


def _move_aside(folder: str, name: str) -> str:
    """Return what takes a name out of the agent's way and deletes nothing: no file of its own begins with `aside-`."""
    element, aside = shlex.quote(f"{folder}/{name}"), shlex.quote(f"{folder}/aside-{name}")
    return f"move it aside: mv {show_path(element)} {show_path(aside)}"


def _keep_or_move(folder: str, name: str, own_uid: int) -> str:
    """Return what to do with a file of the agent's that others may have written: its content may be forged.

    A copy is nobody else's: who has the file open for writing keeps that over any chown and chmod.
    """
    file, new = shlex.quote(f"{folder}/{name}"), shlex.quote(f"{folder}/{name}.new")
    keep = show_path(f"install -o {own_uid} -m 600 {file} {new} && mv {new} {file}")
    return f"if you trust what it says, {keep}; if not, {_move_aside(folder, name)}"


def directory_faults(directory: Walk, owners: Collection[int], limit: int = MAX_ENTRIES) -> Iterator[str]:
    """Yield the faults of what a program may take from a directory: its entries, links followed, and Python's cache."""
    path = directory.path.rstrip("/")
    names, faults = _names(directory, limit)
    yield from map(str, faults)
    for name in names:
        with walk(f"{path}/{name}", owners) as walked:
            yield from (str(fault) for fault in walked.faults if fault not in directory.faults)
            if name == _CACHE and walked.is_directory():
                yield from directory_faults(walked, owners, limit)


def directory_tree_faults(directory: Walk, owners: Collection[int], limit: int = MAX_BELOW) -> Iterator[str]:
    """Yield the faults of everything below a directory; a link is followed, and what it leads to is not searched."""
    places, seen = [directory.path.rstrip("/")], 0
    while places:
        with walk(places.pop(), owners) as place:
            names, faults = _names(place, limit) if place.is_directory() else ([], [])
            yield from map(str, faults)
            seen += len(names)
            if seen > limit:
                yield f"{show_path(directory.path)} has more than {limit} files below it: put the script elsewhere"
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
    """Return whether owner and mode leave open if others can write: of an ACL the mode has the widest (acl(5))."""
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


def is_open_for_writing(descriptor: int) -> bool:
    """Ask for a read lease, which the kernel grants on no file that is open, or mapped, for writing (fcntl(2)).

    False where that cannot be asked: the file belongs to another user and CAP_LEASE is missing, or its file system
    has no leases.
    """
    try:
        # Who opens it for writing meanwhile has the lease broken by a signal: one that does nothing by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    with suppress(OSError):  # closing it gives it back as well
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
