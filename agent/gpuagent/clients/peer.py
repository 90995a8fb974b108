"""Who is at the other end: the kernel's word, never the app's.

SO_PEERCRED names the pid, uid and gid at the time of connect(2), in the agent's own namespaces (unix(7)). A pid may be
given away again, so the process is held by a pidfd; Linux 6.5 hands out the pidfd of the very peer (SO_PEERPIDFD). All
of these are of the process that connected, also when a child has inherited the connection: who sent a message is asked
of each message (`wire.py`). A process that calls execve(2) with the connection open stays the same process, by pid and
start time: what it says is still about itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.stat import parse_status
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


class Reader(Protocol):
    """What /proc tells; `gpuagent.procfs.reader.ProcessReader` has it."""

    def read(self, pid: int) -> _Record:
        """Return everything of a process. Raises OSError, ValueError."""
        ...


class _Record(Protocol):
    @property
    def info(self) -> ProcessInfo: ...


def hold_peer(sock: HasSocketOptions, open_pidfd: Callable[[HasSocketOptions, int], int] | None = None) -> Peer:
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


def identify(peer: Peer, claimed_pid: int, reader: Reader, files: ProcFiles) -> ProcessInfo:
    """Return the process behind a peer, after it has said which pid it thinks it has.

    Raises:
        RefusedPeer: it claims another's pid, or is gone.
    """
    try:
        info = reader.read(peer.pid).info
        own_pids = parse_status(files.read(peer.pid, "status")).namespace_pids or (peer.pid,)
    except (OSError, ValueError):
        raise RefusedPeer("gone", "/proc does not know it") from None
    if peer.ended:  # what was read may be of another that was given the number
        raise RefusedPeer("gone", "it has ended already")
    if claimed_pid != own_pids[-1]:
        raise RefusedPeer("pid", f"pid {peer.pid} says that it is {claimed_pid}, and calls itself {own_pids[-1]}")
    return info


class Accounts:
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
