"""Close clients' sockets without waiting for the files that a peer has put into them.

Whoever sends a descriptor by SCM_RIGHTS and closes its own copy leaves the last reference in the receiver's queue. Then
the kernel closes that file in the task that receives the message, or that closes the socket with the message unread.
The close of a TCP connection may wait for as long as SO_LINGER says (socket(7), `inet_release` in net/ipv4/af_inet.c),
that of a file with a lock may wait for its file system (`locks_remove_file` in fs/locks.c). In the event loop that
would stop the agent.

Linux 6.16 refuses descriptors for a socket (SO_PASSRIGHTS): the sender gets EPERM. Before that nothing is received
that was not peeked at. MSG_PEEK copies the references of a message and leaves those in the queue, so it drops no last
one. A socket is shut down before it is closed, so that nobody can send any more, and what is left is peeked at and
received until the queue is empty, or until a message has descriptors. Such a socket alone is closed in a thread.

A user has one such thread at a time, and connects no more until it is done. All users have a few; when these are used
up and many sockets wait, no client is accepted until one comes back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from gpuagent_exporters.http.listeners import descriptors_refused

MOST_THREADS = 8
"""Threads that close sockets at the same time."""
MOST_HELD = 64
"""Sockets that wait to be closed. Each is a descriptor."""
SLOW_SECONDS = 2.0
"""A close that takes longer is logged."""
_DRAIN_BYTES = 64 * 1024
_MOST_READS = 4096
"""Reads until a queue is taken for one that has descriptors: an AF_UNIX socket has fewer messages in its buffer."""


def peek_descriptors(sock: socket.socket, buffer: bytearray | memoryview, ancillary_bytes: int) -> tuple[int, bool]:
    """Return how many bytes one read would return, and whether descriptors would come with them.

    The socket has SO_PASSCRED set. Of several messages that one read would join, those in front of one with descriptors
    are not told apart from it. Raises OSError where a read would.
    """
    size_bytes, _, flags, _ = sock.recvmsg_into([buffer], ancillary_bytes, socket.MSG_PEEK)
    return size_bytes, bool(flags & socket.MSG_CTRUNC)


CREDENTIALS_BYTES = socket.CMSG_LEN(3 * 4)
"""Room for struct ucred alone. The kernel writes it first, and says MSG_CTRUNC of descriptors that have no room."""


class SocketDisposer:
    """For one event loop, whose thread calls all methods."""

    def __init__(self, *, close: Callable[[int], None] = os.close, now: Callable[[], float] = time.monotonic) -> None:
        """`close` closes a descriptor, and may wait for ever."""
        self._close = close
        self._now = now
        self._lock = threading.Lock()
        self._held: dict[str, deque[int]] = {}
        """Descriptors to close by account, the one that is being closed first."""
        self._since: dict[str, float] = {}
        """When the thread of an account has begun with the descriptor it is closing."""
        self._told: set[str] = set()
        self._buffer = bytearray(_DRAIN_BYTES)

    def dispose(self, sock: socket.socket, account: str) -> None:
        """Close a connected socket; at once, unless it has descriptors that were sent to it."""
        if descriptors_refused(sock) or self._drain(sock):
            sock.close()
        else:
            self.close_in_thread(sock.detach(), account)

    def close_in_thread(self, descriptor: int, account: str) -> None:
        """Close a descriptor in the thread of an account, after those that wait there already."""
        os.set_inheritable(descriptor, True)  # execve(2), of a renewal, would close it and wait
        with self._lock:
            self._held.setdefault(account, deque()).append(descriptor)
        self._start_threads()

    def is_busy(self, account: str) -> bool:
        """Return whether descriptors that this account has sent are not closed yet."""
        with self._lock:
            return account in self._held

    @property
    def is_full(self) -> bool:
        """Whether so many sockets wait to be closed that none may be accepted."""
        with self._lock:
            return sum(map(len, self._held.values())) >= MOST_HELD

    def hanging(self) -> list[str]:
        """Return the accounts whose descriptors have not closed for a while and were not returned before."""
        self._start_threads()
        with self._lock:
            now = self._now()
            found = [each for each, since in self._since.items() if now - since >= SLOW_SECONDS]
            new = [each for each in found if each not in self._told]
            self._told = set(found)
        return new

    def _drain(self, sock: socket.socket) -> bool:
        """Shut a socket down and empty its queue; return False where something in it has descriptors."""
        with contextlib.suppress(OSError):  # ENOTCONN: its peer has gone
            sock.shutdown(socket.SHUT_RDWR)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # fills the ancillary room: descriptors have none
        for _ in range(_MOST_READS):
            try:
                size_bytes, passes_descriptors = peek_descriptors(sock, self._buffer, CREDENTIALS_BYTES)
                if passes_descriptors:
                    return False
                if size_bytes == 0:
                    return True
                sock.recv_into(self._buffer, size_bytes)
            except InterruptedError:
                continue
            except OSError:  # nothing is left; an error of the connection is told after the queue alone
                return True
        return False

    def _start_threads(self) -> None:
        with self._lock:
            waiting = [each for each in self._held if each not in self._since]
            for account in waiting[: max(0, MOST_THREADS - len(self._since))]:
                self._since[account] = self._now()
                # A daemon: the end of the agent does not wait for it.
                threading.Thread(target=self._close_all, args=(account,), name="close descriptors", daemon=True).start()

    def _close_all(self, account: str) -> None:
        while True:
            with self._lock:
                held = self._held[account]
                if not held:
                    del self._held[account], self._since[account]
                    return
                self._since[account] = self._now()
                descriptor = held[0]
            with contextlib.suppress(OSError):
                self._close(descriptor)
            with self._lock:
                held.popleft()
