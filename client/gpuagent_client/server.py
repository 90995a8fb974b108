"""Whether whoever listens on the socket may give orders: the kernel says who called listen(2), nobody else does.

Only the uid counts. Seen from a child pid namespace the agent's pid is 0, and from a user namespace that does not map
its user, the uid is the overflow uid (user_namespaces(7)): every stranger looks the same then, so the directory has to
vouch for it.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)
_WHOLE_RANGE = 2**32 - 1


class Directory(NamedTuple):
    """The folder in which the socket stands."""

    owner_uid: int
    writable: bool
    """By this process: then it could have planted the socket itself, or anyone of its rights."""


def peer_uid(connection: socket.socket) -> int:
    """The user who listens, at the time of listen(2).

    Raises:
        OSError: the kernel does not tell.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)


def look_at_directory(socket_path: str) -> Directory:
    """Who owns the socket's folder, and whether it is writable.

    Raises:
        OSError: it cannot be looked at.
    """
    folder = Path(socket_path).absolute().parent
    return Directory(folder.stat().st_uid, os.access(folder, os.W_OK))


def in_user_namespace(proc: Path = Path("/proc")) -> bool:
    """Whether uids here are not those of the node."""
    try:
        fields = (proc / "self/uid_map").read_text().split()
    except OSError:
        return False
    return fields != ["0", "0", str(_WHOLE_RANGE)]


def overflow_uid(proc: Path = Path("/proc")) -> int:
    """The uid that stands for all who have none in this namespace."""
    try:
        return int((proc / "sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


def may_command(uid: int, own_uid: int, directory: Directory, *, foreign_namespace: bool, overflow: int) -> bool:
    """Whether commands of a server under `uid` are obeyed.

    Root and the own user may do with this process what they like anyway. Another user may, where that user owns a
    directory that this process cannot write to: somebody with the right to do so gave it to the agent.
    """
    if uid == overflow and foreign_namespace:
        return not directory.writable
    if uid in {0, own_uid}:
        return True
    return uid == directory.owner_uid and not directory.writable


def trusted(connection: socket.socket, socket_path: str) -> bool:
    """Whether the server at the other end of this connection may give orders."""
    try:
        return may_command(
            peer_uid(connection),
            os.geteuid(),
            look_at_directory(socket_path),
            foreign_namespace=in_user_namespace(),
            overflow=overflow_uid(),
        )
    except OSError:
        return False
