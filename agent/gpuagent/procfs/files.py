"""The edge to /proc: what the rest of the package needs of it, and the real thing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from gpuagent.procfs.stat import parse_status

READ_LIMIT_BYTES = 16 * 1024
"""Longest text taken from one file. Only a command line can be longer (up to megabytes), and 256
bytes of it are shown; a cgroup file of version 1 in nested containers reaches 5 KiB."""


class ProcFiles(Protocol):
    """The files of processes by pid. A simulated node answers for pids that no kernel gives out.

    Every method but `exists` raises FileNotFoundError or ProcessLookupError (ENOENT, ESRCH: the
    process has gone, the kernel uses both) and PermissionError (hidepid, or a file of another
    user's process).
    """

    def read(self, pid: int, name: str) -> bytes:
        """Text of /proc/<pid>/<name>, bounded."""
        ...

    def link(self, pid: int, name: str) -> str:
        """Target of the symbolic link /proc/<pid>/<name>, such as "ns/pid" or "exe"."""
        ...

    def owner(self, pid: int) -> int:
        """Real user id of the process."""
        ...

    def exists(self, pid: int) -> bool:
        """Whether /proc lists the pid; a zombie is listed."""
        ...

    def threads(self, pid: int) -> list[int]:
        """Return the numbers of its threads, as /proc/<pid>/task lists them."""
        ...


class RealProc:
    """The kernel's /proc, or a tree of the same shape at `root`."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root

    def read(self, pid: int, name: str) -> bytes:
        """Read without Python's file objects: these cost more than the system calls."""
        descriptor = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY)
        try:
            data = chunk = os.read(descriptor, READ_LIMIT_BYTES)
            if name == "stat":  # one line, which the kernel gives in one piece: no need to ask whether there is more
                return data
            while chunk and len(data) < READ_LIMIT_BYTES:
                chunk = os.read(descriptor, READ_LIMIT_BYTES - len(data))
                data += chunk
            return data
        finally:
            os.close(descriptor)

    def link(self, pid: int, name: str) -> str:
        """Read a link; those under ns/ and `exe` ask for the right to trace the process."""
        return str(Path(self._root, str(pid), name).readlink())

    def owner(self, pid: int) -> int:
        """Take `Uid:` of status: the folder of a process that may not be dumped shows root.

        See proc_pid(5), "The files inside each /proc/pid directory are normally owned by ...".
        """
        uid = parse_status(self.read(pid, "status")).uid
        if uid is None:
            message = f"{self._root}/{pid}/status has no Uid line"
            raise PermissionError(message)
        return uid

    def exists(self, pid: int) -> bool:
        """Look for the folder; with hidepid=2 the processes of others are not seen here."""
        return Path(self._root, str(pid)).is_dir()

    def threads(self, pid: int) -> list[int]:
        """List the folder, which needs no right of its own."""
        return [int(name) for name in os.listdir(f"{self._root}/{pid}/task")]  # noqa: PTH208  names are all it takes
