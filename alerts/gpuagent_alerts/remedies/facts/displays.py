"""Which processes serve a display: whoever works on one loses the session when it ends, whatever the server is called.

An X server listens on `/tmp/.X11-unix/X1` or its abstract twin, and writes its pid into `/tmp/.X1-lock`; a Wayland
compositor listens on `wayland-1` in a runtime directory. /proc/PID/net/unix tells everybody which sockets there are in
a network namespace; whose they are takes the right to trace a process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_DISPLAY = re.compile(r"(?:^|/)(?:\.X11-unix/X(\d+)|((?:wayland|gamescope)-\d+))")
_LISTENS = 0x10000
"""__SO_ACCEPTCON, include/uapi/linux/net.h: the fourth column, net/unix/af_unix.c."""
_MOST_BYTES = 16 * 1024 * 1024
_MOST_DESCRIPTORS = 65536
_LOCK_BYTES = 11
"""A pid of ten digits and an end of line: WriteLock() in X.Org's os/utils.c."""


class Displays:
    """The displays at one moment, and who serves them. It may block: call it in a thread."""

    def __init__(self, root: str = "/proc", temporary: str = "/tmp") -> None:  # noqa: S108  where X servers lock
        self._root = root
        self._temporary = temporary
        self._sockets: dict[int, Mapping[str, str]] = {}
        """By network namespace: names of displays by the link of a descriptor."""

    def served_by(self, pid: int) -> str:
        """Return the display that a process serves, in words; "" for none, or where that cannot be seen."""
        try:
            sockets = self._listening(pid)
            return self._held(pid, sockets) if sockets else ""
        except PermissionError:
            return self._locked(pid)
        except OSError:  # it has gone
            return ""

    def _held(self, pid: int, sockets: Mapping[str, str]) -> str:
        folder = f"{self._root}/{pid}/fd"
        with os.scandir(folder) as descriptors:
            for seen, each in enumerate(descriptors):
                if seen > _MOST_DESCRIPTORS:
                    return ""
                try:
                    found = sockets.get(os.readlink(each.path))  # noqa: PTH115  no file is made of it
                except FileNotFoundError:  # closed meanwhile
                    continue
                if found:
                    return found
        return ""

    def _listening(self, pid: int) -> Mapping[str, str]:
        path = Path(self._root, str(pid), "net", "unix")
        with path.open("rb") as file:
            namespace = os.fstat(file.fileno()).st_ino
            if namespace not in self._sockets:
                self._sockets[namespace] = _displays(file.read(_MOST_BYTES))
            return self._sockets[namespace]

    def _locked(self, pid: int) -> str:
        """Return the X display that is locked with this pid, by a file of the process's own user, or of root."""
        try:
            owners = {0, Path(self._root, str(pid)).stat().st_uid}
            locks = list(Path(self._temporary).glob(".X*-lock"))
        except OSError:
            return ""
        for lock in locks:
            try:
                descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                if os.fstat(descriptor).st_uid in owners and os.read(descriptor, _LOCK_BYTES).split() == [b"%d" % pid]:
                    return f"the X display :{lock.name[2:].removesuffix('-lock')}"
            except OSError:
                continue
            finally:
                os.close(descriptor)
        return ""


def _displays(sockets: bytes) -> Mapping[str, str]:
    """Return the displays among the sockets that somebody listens on, by the link of a descriptor."""
    found = {}
    for line in os.fsdecode(sockets).split("\n")[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and (name := _DISPLAY.search(fields[7])) and int(fields[3], 16) & _LISTENS:
            found[f"socket:[{fields[6]}]"] = f"the X display :{name[1]}" if name[1] else f"the display {name[2]}"
    return found
