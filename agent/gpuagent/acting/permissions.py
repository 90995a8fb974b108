"""Whoever can write the configuration can make the agent kill: so nobody else may.

Checking a path and reading it are one thing here. What is used is the content of the very file that was checked, as
the agent has it open; what is put in its place meanwhile is not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from gpuagent.acting.entries import entry_faults
from gpuagent.acting.leases import is_open_for_writing
from gpuagent.acting.path_walk import PathFault, Walk, replacement, walk
from gpuagent.config.load import MAX_FILE_BYTES, read_file
from gpuagent.core.regular_files import not_regular, open_regular_file, read_at_most


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
        """Check a directory and the agent's own files in it, whose names begin with one of the `stems`.

        It need not exist if nobody else can make it.
        """
        with walk(_absolute(path), self._owners) as walked:
            self._add(walked.faults)
            if walked.is_directory():
                self._add(entry_faults(walked, self._owners, stems))

    def _read(self, path: Path) -> bytes:
        self._begun(path)
        with walk(_absolute(path), self._owners) as walked:
            self._add(walked.faults)
            self._checked(path)
            if walked.status is None:
                content = read_file(path)  # a fault that is told as such
                self._tell(path, "was not there when it was checked", "reload again")
                return content
            if not walked.is_regular_file():
                raise not_regular(path, walked.status.st_mode)
            content, before, after, is_open = _content_of(walked)
        if is_open:
            self._tell(path, "is open for writing in some process", replacement(_absolute(path)))
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
