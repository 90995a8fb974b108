"""When to look for the agent again: soon at first, then less and less often, and never all apps at the same moment.

That the connection stands is the sign of life; nothing else is sent for it. Without an agent the thread looks for one
now and then, and is otherwise silent.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Callable

from gpuagent_client.connection import Connection, trusted
from gpuagent_client.guard import harmless, log, tell_once
from gpuagent_client.protocol import Malformed
from gpuagent_client.session import Session
from gpuagent_client.settings import Told

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 10.0


class Backoff:
    """Doubles from 0.2 s to 10 s, each time by a random factor of 0.5 to 1.5."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._next = FIRST_SECONDS

    def failed(self) -> float:
        """Return the seconds to wait now."""
        delay = self._next
        self._next = min(2 * delay, LONGEST_SECONDS)
        return delay * self._uniform(0.5, 1.5)

    def succeeded(self) -> None:
        """Start over."""
        self._next = FIRST_SECONDS


SETTLED_SECONDS = 5.0
"""A connection that held so long was a success. One that ends at once must not be made anew five times a second."""


class Link:
    """One for each process: a forked child needs its own. `run` is the thread's function."""

    def __init__(
        self,
        told: Told,
        find_socket: Callable[[], str],
        converse: Callable[[Connection, bool], Session],
        stopping: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
        trusted: Callable[..., bool] = trusted,
        backoff: Backoff | None = None,
    ) -> None:
        self._told = told
        self._find_socket = find_socket
        self._converse = converse
        self._stopping = stopping
        self._clock = clock
        self._trusts = trusted
        self._backoff = backoff or Backoff()
        self._connection: Connection | None = None

    def prepare(self) -> None:
        """Make the first descriptor, in the thread that starts the client.

        Were it made in the link's own thread, an app that forks right after the start could do so while the descriptor
        is known to nobody, and the child would keep it. At a reconnect that remains possible; the agent then still sees
        the parent's end, by its pidfd.
        """
        with contextlib.suppress(OSError):  # no descriptor left: maybe later
            self._connection = Connection()

    def run(self, first_pause_seconds: float = 0.0) -> None:
        """Keep a connection until `stopping` is set. No error leaves here, except under pytest."""
        self._stopping.wait(first_pause_seconds)
        while not self._stopping.is_set():
            started = self._clock()
            with harmless("talk to the agent"):
                try:
                    self._connect()
                except Malformed as error:
                    tell_once("understand the agent", str(error))
                except OSError as error:
                    log.debug("no agent: %s", error)
            self._told.level = None
            if self._clock() >= started + SETTLED_SECONDS:
                self._backoff.succeeded()
            if not self._stopping.is_set():
                self._stopping.wait(self._backoff.failed())
        self._close()

    def hang_up(self) -> None:
        """End, from another thread and after `stopping` was set, the wait for the agent's next word."""
        connection = self._connection
        if connection is not None:
            connection.hang_up()

    def abandon(self) -> None:
        """Let go of the copy of the parent's connection in a forked child, where the thread does not exist."""
        connection = self._connection
        if connection is not None:
            connection.abandon()

    def _connect(self) -> None:
        path = self._find_socket()
        connection = self._connection = self._connection or Connection()
        try:
            connection.open(path)
            trusted = self._trusts(connection.socket, path)
            if not trusted:
                tell_once("obey the server", f"{path} is not the agent's, so it gets figures only")
            self._converse(connection, trusted).serve()
        finally:
            self._close()

    def _close(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.close()
        self._connection = None  # last: whoever forks in between finds it, closed
