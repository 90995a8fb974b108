"""Which processes serve a display: whoever works on one loses the session when it ends, whatever the server is called.

An X server listens on `/tmp/.X11-unix/X1` or its abstract twin, and writes its pid into `/tmp/.X1-lock`; a Wayland
compositor listens on `wayland-1` in a runtime directory. The kernel tells everybody which sockets somebody listens on
(`unix_sockets`); whose process that is takes the right to trace it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpuagent.procfs.hanging import READS
from gpuagent_alerts.remedies.facts.unix_sockets import (
    ListeningSocket,
    name_of_copy,
    parse_table,
    read_own_namespace,
)

_DISPLAY = re.compile(rb"(?:^[\0@]?|/)(?:\.X11-unix/X([0-9]{1,9})(?![0-9])|((?:wayland|gamescope)-[0-9]{1,9}))")
_MOST_SOCKETS = 65536
"""Sockets of displays that are kept, beside one for each number and user of those whose locks are looked up."""
_MOST_LINES = 65536
"""Lines of a table that are read, in a third of a second."""
_MOST_DESCRIPTORS = 65536
_MOST_LOCKS = 4096
"""Displays of one user whose locks are looked up, those of the lowest numbers."""
_LOCK_BYTES = 11
"""A pid of ten digits and an end of line: WriteLock() in X.Org's os/utils.c."""


class _Display(NamedTuple):
    name: str
    """The display, in words."""
    number: int | None
    """N of the X display `:N`; None for another one."""
    uid: int | None
    """User of its socket; None where that is not told."""


class _Sockets(NamedTuple):
    displays: Mapping[str, _Display]
    """Displays by the link of a descriptor."""
    certain: bool
    """Whether there are those sockets; otherwise they may be a part of another one's name."""
    whole: bool = True
    """Whether no other one is a display; otherwise there were too many sockets to read."""


class Displays:
    """The displays at one moment, and who serves them. It may block: call it in a thread."""

    def __init__(self, root: str = "/proc", temporary: str = "/tmp") -> None:  # noqa: S108  where X servers lock
        self._root = root
        self._temporary = temporary
        self._sockets: dict[int, _Sockets] = {}
        """By network namespace."""

    def served_by(self, pid: int) -> str:
        """Return the display that a process serves, in words; "" for none, or where that cannot be seen."""
        try:
            sockets = self._listening(pid)
        except OSError:  # it has gone, or all are hidden
            return ""
        if not sockets.displays and sockets.whole:
            return ""
        try:
            return self._held(pid, sockets)
        except PermissionError:
            return self._locked(pid, sockets.displays.values() if sockets.whole else None)
        except OSError:  # it has gone
            return ""

    def _held(self, pid: int, sockets: _Sockets) -> str:
        folder = f"{self._root}/{pid}/fd"
        with os.scandir(folder) as descriptors:
            for seen, each in enumerate(descriptors):
                if seen > _MOST_DESCRIPTORS:
                    return ""
                try:
                    with READS.reading(pid, "fd"):
                        link = os.readlink(each.path)  # noqa: PTH115  no file is made of it
                except FileNotFoundError:  # closed meanwhile
                    continue
                found = sockets.displays.get(link)
                if found is None and (sockets.whole or not link.startswith("socket:")):
                    continue
                if sockets.certain or _is_display(pid, int(each.name)):
                    return found.name if found else "a display"
        return ""

    def _listening(self, pid: int) -> _Sockets:
        path = Path(self._root, str(pid), "net", "unix")
        with path.open("rb") as file:
            namespace = os.fstat(file.fileno()).st_ino
            if namespace not in self._sockets:
                self._sockets[namespace] = _read_own(namespace, self._root) or _read_table(file)
            return self._sockets[namespace]

    def _locked(self, pid: int, displays: Collection[_Display] | None) -> str:
        """Return the X display that is locked with this pid, by a file of the process's own user, or of root.

        Looked up are the locks of displays that listen on a socket of such a user, or of the lowest numbers where it is
        unknown who listens (None): a directory that all may write has as many files as they like.
        """
        try:
            owners = {0, Path(self._root, str(pid)).stat().st_uid}
        except OSError:
            return ""
        numbers: Iterable[int] = range(_MOST_LOCKS)
        if displays is not None:
            own = (each.number for each in displays if each.uid is None or each.uid in owners)
            numbers = sorted({each for each in own if each is not None})[:_MOST_LOCKS]
        for number in numbers:
            try:
                descriptor = os.open(f"{self._temporary}/.X{number}-lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                if os.fstat(descriptor).st_uid in owners and os.read(descriptor, _LOCK_BYTES).split() == [b"%d" % pid]:
                    return f"the X display :{number}"
            except OSError:
                continue
            finally:
                os.close(descriptor)
        return ""


def _read_own(namespace: int, root: str) -> _Sockets | None:
    """Return the displays of this network namespace by the kernel's own answer; None for another, or without one."""
    try:
        if Path(root, "self", "net", "unix").stat().st_ino != namespace:
            return None
        return _Sockets(_displays(read_own_namespace()), certain=True)
    except OSError:
        return None


def _read_table(file: Iterator[bytes]) -> _Sockets:
    """Return the displays in the first lines of a `net/unix`: one user may have half a million sockets."""
    displays = _displays(parse_table(islice(file, _MOST_LINES)))
    return _Sockets(displays, certain=False, whole=next(file, None) is None)


def _displays(sockets: Iterator[ListeningSocket]) -> Mapping[str, _Display]:
    """Return the displays among sockets, by the link of a descriptor.

    Anybody may have very many: none of them crowds a display out whose lock is looked up.
    """
    found: dict[str, _Display] = {}
    locked: set[tuple[int | None, int | None]] = set()
    for each in sockets:
        if name := _DISPLAY.search(each.name):
            number = int(name[1]) if name[1] else None
            is_locked = number is not None and number < _MOST_LOCKS and (number, each.uid) not in locked
            if not is_locked and len(found) - len(locked) >= _MOST_SOCKETS:
                continue
            if is_locked:
                locked.add((number, each.uid))
            words = f"the X display :{number}" if number is not None else f"the display {name[2].decode('ascii')}"
            found[f"socket:[{each.inode}]"] = _Display(words, number, each.uid)
    return found


def _is_display(pid: int, descriptor: int) -> bool:
    """Return whether somebody listens on the socket of a descriptor as a display, or that may be so."""
    try:
        name = name_of_copy(pid, descriptor)
    except OSError:
        return True
    return bool(name and _DISPLAY.search(name))
