"""Who is at the other end of a unix socket, and whether they live in the same namespaces as we do.

The kernel tells the pid, uid and gid of whoever called connect(2) (SO_PEERCRED, unix(7)). A uid
alone proves little: root in a container is uid 0 too. So the control socket also asks for the
agent's own pid and user namespace, which nobody inside a container shares.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

PROC = Path("/proc")
_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid
_EXTENSION = "gpuagent.peer"


class PeerCredentials(NamedTuple):
    """The process that connected, as the kernel saw it, in the agent's own namespaces.

    `pid` is 0 where the peer lives in a pid namespace that the agent's does not contain.
    """

    pid: int
    uid: int
    gid: int


class HasSocketOptions(Protocol):
    """A socket, or asyncio's read-only view of one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Tell the value of an option; socket(7) has them."""
        ...


def peer_credentials(sock: HasSocketOptions) -> PeerCredentials:
    """Return the peer of a connected AF_UNIX socket. Raises OSError where the kernel does not tell."""
    answer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return PeerCredentials(*_UCRED.unpack(answer))


def set_peer(scope: MutableMapping[str, Any], peer: PeerCredentials) -> None:
    """Note the caller in an ASGI scope; the server does this for every request on a unix socket."""
    scope.setdefault("extensions", {})[_EXTENSION] = peer._asdict()


def peer_of(scope: Mapping[str, Any]) -> PeerCredentials | None:
    """Return the caller of an ASGI request, or None where it did not come over a unix socket."""
    noted = scope.get("extensions", {}).get(_EXTENSION)
    return PeerCredentials(**noted) if noted else None


def same_namespaces(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process lives in the agent's own pid and user namespace; when in doubt it does not.

    The links in /proc/<pid>/ns need the right to ptrace (namespaces(7)), which a hardened service
    lacks even against its own uid. Then what everybody may read has to do: `NSpid` names one pid
    for each namespace between ours and the process's own, and a user namespace has another id map.
    """
    if pid <= 0:
        return False
    try:
        return all(_namespace(proc / str(pid), kind) == _namespace(proc / "self", kind) for kind in _NAMESPACES)
    except PermissionError:
        return _same_by_status(proc / str(pid), proc / "self")
    except OSError:
        return False


_NAMESPACES = ("pid", "user")


def _namespace(process: Path, kind: str) -> tuple[int, int]:
    """Return device and inode, which together name a namespace (ioctl_ns(2))."""
    found = (process / "ns" / kind).stat()
    return found.st_dev, found.st_ino


def _same_by_status(process: Path, ours: Path) -> bool:
    try:
        depth, our_depth = _pid_depth(process), _pid_depth(ours)
        id_maps = [(each / "uid_map").read_text().split() for each in (process, ours)]
    except OSError:
        return False
    return depth == our_depth > 0 and id_maps[0] == id_maps[1]


def _pid_depth(process: Path) -> int:
    """Return how many pid namespaces a process is in, from that of /proc inwards; 0 if untold."""
    # A name may have any line break but \n in it, which the kernel escapes.
    for line in (process / "status").read_bytes().split(b"\n"):
        if line.startswith(b"NSpid:"):
            return len(line.split()) - 1
    return 0
