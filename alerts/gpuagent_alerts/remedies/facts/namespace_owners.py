"""Ask the kernel who made the namespaces that a process is in: see ioctl_nsfs(2) and user_namespaces(7).

A user without privileges makes a pid or mount namespace only in a user namespace of the same user. To open the files
below `/proc/PID/ns` takes the right to trace the process.
"""

from __future__ import annotations

import array
import fcntl
import os
from pathlib import Path

from gpuagent.procfs.hanging import READS

_NS_GET_USERNS = 0xB701
_NS_GET_PARENT = 0xB702
_NS_GET_OWNER_UID = 0xB704


def maker_of_namespaces(pid: int, root: Path = Path("/proc")) -> int | None:
    """Return who made the user namespace of a process, with its mount namespace and its pid namespace.

    None where that cannot be seen, where the user namespace does not lie directly in the agent's own, which is the
    host's wherever the agent may act, or where one of the two others belongs to another user namespace; a pid namespace
    that is the agent's own counts for nothing. The caller sees to it that the pid is still that of the same process.
    """
    host, own = root / "self" / "ns", root / str(pid) / "ns"
    opened: list[int] = []

    def keep(descriptor: int) -> int:
        opened.append(descriptor)
        return descriptor

    def open_file(path: Path) -> int:
        with READS.reading(pid, "ns"):
            return keep(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    try:
        user = open_file(own / "user")
        if not _is_same(keep(fcntl.ioctl(user, _NS_GET_PARENT)), open_file(host / "user")):
            return None
        for name in ("mnt", "pid"):
            namespace = open_file(own / name)
            if name == "pid" and _is_same(namespace, open_file(host / name)):
                continue
            if not _is_same(keep(fcntl.ioctl(namespace, _NS_GET_USERNS)), user):
                return None
        owner = array.array("I", [0])
        fcntl.ioctl(user, _NS_GET_OWNER_UID, owner)
        return owner[0]
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _is_same(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
