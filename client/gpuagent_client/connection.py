"""One connection to the agent: whole lines in and out, never waiting for a slow peer."""

from __future__ import annotations

import os
import select
import socket
import struct

from gpuagent_client.protocol import LineReader, Message

MAX_UNSENT_BYTES = 256 * 1024
"""Answers that an agent does not fetch end the connection; figures are dropped long before."""
_RECEIVE_BYTES = 64 * 1024
_CONNECT_TIMEOUT = struct.pack("@ll", 2, 0)
"""struct timeval. connect(2) on a Unix socket waits so long for a place in the queue (socket(7), SO_SNDTIMEO)."""


class Lost(OSError):
    """The connection is over."""


class Connection:
    """A Unix stream socket. One thread uses it; `hang_up` and `abandon` may be called from another."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._identity = self._look()
        self._reader = LineReader()
        self._unsent = bytearray()
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
        """To ask for the peer's credentials."""
        return self._socket

    @property
    def behind(self) -> bool:
        """Whether the agent has not fetched all that was said."""
        return bool(self._unsent)

    def send(self, line: bytes) -> None:
        """Say a line, now or as soon as the agent reads.

        Raises:
            OSError: the connection is over.
        """
        if len(self._unsent) + len(line) > MAX_UNSENT_BYTES:
            raise Lost("the agent does not read")
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
        """What the agent says within this time; an empty list if that is nothing.

        Raises:
            OSError: the connection is over.
            Malformed: the agent speaks another language.
        """
        if not self._poll.poll(max(0.0, timeout_seconds) * 1000):
            return []
        self._check()
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise Lost("the agent has hung up")
        return self._reader.feed(data)

    def _look(self) -> tuple[int, int]:
        status = os.fstat(self._socket.fileno())
        return status.st_dev, status.st_ino

    def _check(self) -> None:
        """Daemonising code closes every descriptor it finds: the number may by now belong to a file of the app."""
        try:
            if self._look() == self._identity:
                return
        except (OSError, ValueError):
            pass
        self._socket.detach()
        raise Lost("the app has closed the connection's descriptor")

    def hang_up(self) -> None:
        """End it from another thread: the one that waits in `receive` wakes."""
        try:
            self._check()
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected, or over already

    def close(self) -> None:
        """Give the descriptor back, if it is still ours."""
        try:
            self._check()
            self._socket.close()
        except OSError:
            pass

    def abandon(self) -> None:
        """In a forked child: close the child's copy, and leave the parent's connection as it is."""
        try:
            self._check()
            os.close(self._socket.detach())
        except OSError:
            pass
