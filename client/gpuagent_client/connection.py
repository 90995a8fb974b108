"""Connect to the agent: send and receive whole lines, and decide whether its commands may be obeyed.

Only the uid counts. Seen from a child pid namespace the agent's pid is 0, and from a user namespace that does not map
its user, the uid is the overflow uid (user_namespaces(7)): every stranger looks the same then, so the directory has to
vouch for it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from pathlib import Path
from typing import NamedTuple

from gpuagent_client.protocol import LineReader, Message

MAX_UNSENT_BYTES = 256 * 1024
"""Answers that an agent does not fetch end the connection; figures are dropped long before."""
_RECEIVE_BYTES = 64 * 1024
_FLOOD_MESSAGES = 100
"""In one second. Beyond that, the client reads little at a time and with pauses: the app's time is not the agent's."""
_FLOOD_BYTES = 4096
_FLOOD_PAUSE_SECONDS = 0.05
_CONNECT_TIMEOUT = struct.pack("@ll", 2, 0)
"""struct timeval. connect(2) on a Unix socket waits so long for a place in the queue (socket(7), SO_SNDTIMEO)."""


class ConnectionLost(OSError):
    """Raised when the connection is over."""


class Connection:
    """A Unix stream socket. One thread uses it; `interrupt` and `close_in_child` may be called from another."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._identity = self._stat()
        self._reader = LineReader()
        self._unsent = bytearray()
        self._second_began = time.monotonic()
        self._received = 0
        self._flooded_before = False
        self._poll = select.poll()  # not select: an app may have more than 1024 descriptors

    def open(self, path: str) -> None:
        """Connect. A Unix socket answers at once, unless the agent's queue is full: then wait for a place in it.

        A socket that does not wait would seldom find a place while somebody floods the agent with connects.

        Raises:
            OSError: nobody listens there, or the queue has been full for too long.
        """
        self._socket.setblocking(True)  # whatever socket.setdefaulttimeout(3) says
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _CONNECT_TIMEOUT)
        self._socket.connect(path)
        self._socket.setblocking(False)
        self._poll.register(self._socket.fileno(), select.POLLIN)

    @property
    def socket(self) -> socket.socket:
        """Socket of the connection, to ask for the peer's credentials."""
        return self._socket

    @property
    def has_unsent(self) -> bool:
        """Whether the agent has not fetched all that was said."""
        return bool(self._unsent)

    def send(self, line: bytes) -> None:
        """Send a line, now or as soon as the agent reads.

        Raises:
            OSError: the connection is over.
        """
        if len(self._unsent) + len(line) > MAX_UNSENT_BYTES:
            raise ConnectionLost("the agent does not read")
        self._unsent += line
        self.flush()

    def flush(self) -> None:
        """Send what can be sent without waiting.

        Raises:
            OSError: the connection is over.
        """
        self._check()
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent, socket.MSG_NOSIGNAL)
                del self._unsent[:sent]
        except BlockingIOError:
            pass

    def receive(self, timeout_seconds: float) -> list[Message]:
        """Return what the agent says within this time; an empty list if that is nothing.

        Raises:
            OSError: the connection is over.
            Malformed: the agent speaks another language.
        """
        if not self._poll.poll(max(0.0, timeout_seconds) * 1000):
            return []
        self._check()
        flooded = self._is_flooded()
        if flooded:
            time.sleep(_FLOOD_PAUSE_SECONDS)
        try:
            data = self._socket.recv(_FLOOD_BYTES if flooded else _RECEIVE_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionLost("the agent has hung up")
        messages = self._reader.feed(data)
        self._received += len(messages)
        return messages

    def _is_flooded(self) -> bool:
        """Return whether more has come than an agent has to say, in this second or the one before."""
        now = time.monotonic()
        if now - self._second_began >= 1.0:
            self._flooded_before = now - self._second_began < 2.0 and self._received > _FLOOD_MESSAGES
            self._second_began, self._received = now, 0
        return self._flooded_before or self._received > _FLOOD_MESSAGES

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self._socket.fileno())
        return status.st_dev, status.st_ino

    def _check(self) -> None:
        """Check the descriptor: daemonizing code closes all it finds, and the number may be the app's by now."""
        try:
            if self._stat() == self._identity:
                return
        except (OSError, ValueError):
            pass
        self._socket.detach()
        raise ConnectionLost("the app has closed the connection's descriptor")

    def interrupt(self) -> None:
        """End the connection from another thread: the one that waits in `receive` wakes."""
        try:
            self._check()
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected, or over already

    def close(self) -> None:
        """Close the descriptor, if it is still ours."""
        try:
            self._check()
            self._socket.close()
        except OSError:
            pass

    def close_in_child(self) -> None:
        """Close a forked child's copy, and leave the parent's connection as it is."""
        try:
            self._check()
            os.close(self._socket.detach())
        except OSError:
            pass


_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)
_WHOLE_RANGE = 2**32 - 1


class Directory(NamedTuple):
    """Directory of the socket."""

    owner_uid: int
    writable: bool
    """Whether this process may write to it: then it, or anyone with its rights, could have planted the socket."""


def peer_uid(connection: socket.socket) -> int:
    """Return the user who listens, at the time of listen(2).

    Raises:
        OSError: the kernel does not report it.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)


def socket_directory(socket_path: str) -> Directory:
    """Return who owns the socket's folder, and whether it is writable.

    Raises:
        OSError: it cannot be looked at.
    """
    folder = Path(socket_path).absolute().parent
    return Directory(folder.stat().st_uid, os.access(folder, os.W_OK))


def in_user_namespace(proc: Path = Path("/proc")) -> bool:
    """Return whether uids here are not those of the node."""
    try:
        fields = (proc / "self/uid_map").read_text().split()
    except OSError:
        return False
    return fields != ["0", "0", str(_WHOLE_RANGE)]


def overflow_uid(proc: Path = Path("/proc")) -> int:
    """Return the uid that stands for all who have none in this namespace."""
    try:
        return int((proc / "sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


def may_command(uid: int, own_uid: int, directory: Directory, *, foreign_namespace: bool, overflow: int) -> bool:
    """Return whether commands of a server under `uid` are obeyed.

    Root and the own user may do with this process what they like anyway. Another user may, where that user owns a
    directory that this process cannot write to: somebody with the right to do so gave it to the agent.
    """
    if uid == overflow and foreign_namespace:
        return not directory.writable
    if uid in {0, own_uid}:
        return True
    return uid == directory.owner_uid and not directory.writable


def trusted(connection: socket.socket, socket_path: str) -> bool:
    """Return whether the server at the other end of this connection may send commands."""
    try:
        return may_command(
            peer_uid(connection),
            os.geteuid(),
            socket_directory(socket_path),
            foreign_namespace=in_user_namespace(),
            overflow=overflow_uid(),
        )
    except OSError:
        return False
