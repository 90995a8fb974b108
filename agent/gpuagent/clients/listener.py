"""The clients' own socket, and how connections to it are accepted at a bounded cost.

A container that mounted the file itself would keep a dead socket when the agent starts again; so it is the directory
that is mounted, and is never removed.

Apps wait in the kernel's queue until they are accepted, in the order in which they came. Accepting is cheap, so that a
flood does not keep the queue full for long, and it takes a bounded share of a core, so that a flood does not keep the
loop from its other work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuagent.runtime.state_files import check_socket_directory
from gpuagent_exporters.http.listeners import ListenError, UnixListener, open_unix

SOCKET_NAME = "client.sock"
_SOCKET_MODE = 0o666
_DIRECTORY_MODE = 0o755


def open_client_socket(directory: Path) -> UnixListener:
    """Listen there; everybody may connect, nobody but us may put another socket in its place.

    Raises:
        ListenError: the directory cannot be had, or others could tamper with it.
    """
    try:
        _make_directory(directory)
    except OSError as error:
        raise ListenError(f"{directory}: {error.strerror}; set client_dir to a directory this user may write") from None
    return open_unix(directory / SOCKET_NAME, mode=_SOCKET_MODE, group=None, pass_credentials=True)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, mode=_DIRECTORY_MODE)
        path.chmod(_DIRECTORY_MODE)  # whatever the umask: apps of other users have to get in
    except FileExistsError:
        pass
    check_socket_directory(path)


log = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE = 64
"""Then the loop does something else."""
_NO_DESCRIPTOR_SECONDS = 1.0
"""Pause after accept(2) has failed for lack of descriptors or memory; asyncio's servers wait as long."""
_QUIET_SECONDS = 60.0


class CpuShare:
    """A share of one core: what is used beyond it has to be waited for."""

    def __init__(
        self,
        ratio: float,
        burst_seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """`burst_seconds` of work may be done at once; `used` is the time that this thread has computed."""
        self._ratio = ratio
        self._burst_seconds = self._left_seconds = burst_seconds
        self._now = now
        self._used = used
        self._at = now()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the work inside, also where it raises. Not to be nested."""
        self._refill()
        before = self._used()
        try:
            yield
        finally:
            self._left_seconds -= self._used() - before

    def wait_seconds(self) -> float:
        """Return how long to do none of this work; 0.0 while some of the share is left."""
        self._refill()
        return max(0.0, -self._left_seconds / self._ratio)

    def _refill(self) -> None:
        now = self._now()
        self._left_seconds = min(self._left_seconds + (now - self._at) * self._ratio, self._burst_seconds)
        self._at = now


class Acceptor:
    """Gives connections of a listening socket to `take`, which owns them from then on."""

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[socket.socket], None],
        make_room: Callable[[], None],
        share: CpuShare,
    ) -> None:
        """`make_room` is called when there is no descriptor left for a connection."""
        listening.setblocking(False)
        self._listening = listening
        self._take = take
        self._make_room = make_room
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = -_QUIET_SECONDS
        self._resume()

    def close(self) -> None:
        """Accept no more. The listening socket stays open."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listening)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listening, self._accept_some)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._timer = self._loop.call_later(seconds, self._resume)

    def _accept_some(self) -> None:
        wait_seconds = 0.0
        with self._share.spending():
            try:
                for _ in range(_ACCEPTED_AT_ONCE):
                    sock, _ = self._listening.accept()
                    self._take(sock)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                pass
            except OSError as error:  # EMFILE, ENFILE, ENOBUFS, ENOMEM: it would fail again at once
                self._make_room()
                self._complain(error)
                wait_seconds = _NO_DESCRIPTOR_SECONDS
        wait_seconds = max(wait_seconds, self._share.wait_seconds())
        if wait_seconds:
            self._pause(wait_seconds)

    def _complain(self, error: OSError) -> None:
        now = self._loop.time()
        if now - self._told_at >= _QUIET_SECONDS:
            self._told_at = now
            log.warning("an embedded client's connection cannot be accepted: %s", error.strerror)
