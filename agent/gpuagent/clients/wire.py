"""Read and write one app's socket, and tell who is at the other end: the kernel's word, never the app's.

SO_PEERCRED names the pid, uid and gid at the time of connect(2), in the agent's own namespaces (unix(7)). A pid may be
given away again, so the process is held by a pidfd; Linux 6.5 hands out the pidfd of the very peer (SO_PEERPIDFD). A
process that calls execve(2) with the connection open stays the same process, by pid and start time: what it says is
still about itself.

A forked child inherits the descriptor, and SCM_RIGHTS passes it to any process, so every read also asks who sent the
data: with SO_PASSCRED the kernel attaches SCM_CREDENTIALS to it (unix(7)), and one read never returns data of two
senders (`unix_skb_scm_eq` in net/unix/af_unix.c). Only a process with CAP_SYS_ADMIN over its pid namespace can name
another sender, and only one inside that namespace (`scm_check_creds` in net/core/scm.c).

The option is set on the listening socket, before listen(2). Measured on Linux 6.18: accepted sockets inherit it, and
what was sent before accept(2) has its sender in any case; what is sent between accept(2) and a later setsockopt(2)
reads pid 0. Pid 0 is nobody's, so such data would cost the connection.

asyncio's transports read without ancillary data, so this one registers the descriptor with the loop itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from gpuagent.clients.disposal import CREDENTIALS_BYTES, peek_descriptors
from gpuagent.procfs.files import ProcFiles
from gpuagent_exporters.http.listeners import descriptors_refused
from gpuagent_exporters.http.peers import HasSocketOptions, peer_credentials

_SO_PEERPIDFD = 77
"""include/uapi/asm-generic/socket.h; Python 3.11 has no name for it."""
_INT = struct.Struct("i")
_FOREIGN = "users of other user namespaces"


class RefusedPeer(Exception):
    """A connection that is not taken: `reason` is one word for the counter, the text is for the log."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Peer(NamedTuple):
    """A connected process, held by its pidfd: whoever gets this closes it."""

    pid: int
    uid: int
    gid: int
    pidfd: int

    @property
    def ended(self) -> bool:
        """Whether the process is over, be it a zombie still."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(OSError):
            os.close(self.pidfd)


def open_peer(sock: HasSocketOptions, open_pidfd: Callable[[HasSocketOptions, int], int] | None = None) -> Peer:
    """Return the process that connected, held.

    Raises:
        RefusedPeer: it is in no namespace of ours, or gone already.
    """
    try:
        credentials = peer_credentials(sock)
    except OSError as error:
        raise RefusedPeer("unknown", f"the kernel does not tell who it is: {error.strerror}") from None
    if credentials.pid <= 0:
        raise RefusedPeer("unknown", "it lives in a pid namespace that the agent cannot see into")
    try:
        pidfd = (open_pidfd or _open_pidfd)(sock, credentials.pid)
    except OSError:
        raise RefusedPeer("gone", "it has ended already") from None
    return Peer(*credentials, pidfd)


def _open_pidfd(sock: HasSocketOptions, pid: int) -> int:
    try:
        (descriptor,) = _INT.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _INT.size))
    except OSError:  # a kernel before 6.5; then the pid may, in theory, be another's by now
        return os.pidfd_open(pid)
    return int(descriptor)


class PeerQuotas:
    """On whose account a process connects: what it costs, and how many places it takes, is counted there."""

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._own_map = self._uid_map(os.getpid())

    def of(self, peer: Peer) -> str:
        """Return the user, if the process lives in the agent's user namespace; else one account for all that do not.

        Anybody may make a user namespace and be 65536 users in it (subuid(5)). In there, /proc shows another uid_map.
        """
        uid_map = self._uid_map(peer.pid)
        return f"user {peer.uid}" if uid_map is not None and uid_map == self._own_map else _FOREIGN

    def _uid_map(self, pid: int) -> bytes | None:
        try:
            return self._files.read(pid, "uid_map")
        except OSError:
            return None


_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Received(NamedTuple):
    """What one read returned; its bytes are in the buffer."""

    size_bytes: int
    """0: the other end has closed the connection."""
    pid: int
    """The process that sent it, in the agent's pid namespace; 0 where the kernel does not report it."""
    passes_more: bool
    """Whether descriptors come with it. Then it was not taken from the kernel's queue: see `disposal`."""


class Wire:
    """A connected, non-blocking AF_UNIX stream socket in an event loop. Whoever makes it closes it."""

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, dispose: Callable[[socket.socket], None]
    ) -> None:
        """`dispose` closes the socket in the end."""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # Else the kernel drops a byte that was sent with MSG_OOB, and its descriptors, while it reads what is behind.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self._descriptors_refused = descriptors_refused(sock)
        self._dispose = dispose
        self._sock = sock
        self._loop = loop
        self._unsent = bytearray()
        self._on_readable: Callable[[], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._reading = False
        self.closed = False

    def open(self, on_readable: Callable[[], None], on_lost: Callable[[], None]) -> None:
        """Begin to read.

        Args:
            on_readable: called while there is something to receive, and nobody has paused reading.
            on_lost: called when what was left to send cannot be sent any more.
        """
        self._on_readable, self._on_lost = on_readable, on_lost
        self.resume_reading()

    def pause_reading(self) -> None:
        """Leave what comes to the kernel's buffer: then the sender waits."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if not self._reading and not self.closed and self._on_readable is not None:
            self._reading = True
            self._loop.add_reader(self._sock, self._on_readable)

    def receive(self, buffer: memoryview) -> Received:
        """Read once, into `buffer`: data of one sender.

        Raises:
            BlockingIOError: there is nothing to read.
            OSError: the connection is over.
        """
        if not self._descriptors_refused:
            size_bytes, passes_descriptors = peek_descriptors(self._sock, buffer, CREDENTIALS_BYTES)
            if passes_descriptors:
                return Received(size_bytes, 0, passes_more=True)
            buffer = buffer[:size_bytes]  # what has come since was not peeked at
        size_bytes, ancillary, flags, _ = self._sock.recvmsg_into([buffer], CREDENTIALS_BYTES)
        return Received(size_bytes, sender_pid(ancillary), bool(flags & socket.MSG_CTRUNC))

    def send(self, data: bytes) -> None:
        """Send now what the kernel takes, and the rest when it takes more.

        Raises:
            OSError: the connection is over.
        """
        if self.closed:
            return
        if not self._unsent:
            data = data[self._send(data) :]
            if data:
                self._loop.add_writer(self._sock, self._flush)
        self._unsent += data

    @property
    def unsent_bytes(self) -> int:
        """What waits for the other end to read."""
        return len(self._unsent)

    def close(self) -> None:
        """Close the socket, and forget what was not sent."""
        if self.closed:
            return
        self.closed = True
        self.pause_reading()
        self._loop.remove_writer(self._sock)
        self._unsent.clear()
        self._on_readable = self._on_lost = None
        self._dispose(self._sock)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def _flush(self) -> None:
        try:
            del self._unsent[: self._send(self._unsent)]
        except OSError:
            if self._on_lost is not None:
                self._on_lost()
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock)


def sender_pid(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the pid in the SCM_CREDENTIALS of a read; 0 if there are none, or they are cut off."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _UCRED.size:
            return int(_UCRED.unpack(data)[0])
    return 0
