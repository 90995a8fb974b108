"""One process's client: its parts put together, its thread, and the end of it."""

from __future__ import annotations

import os
import threading

from gpuagent_client.allocator import Allocator
from gpuagent_client.commands import BlameContext, Commands
from gpuagent_client.connection import Connection
from gpuagent_client.guard import log
from gpuagent_client.limits import Limits
from gpuagent_client.link import Link
from gpuagent_client.remedies import Pause, Remedies
from gpuagent_client.reporter import Reporter
from gpuagent_client.session import Session
from gpuagent_client.settings import socket_path
from gpuagent_client.told import Told
from gpuagent_client.torch_door import Torch

JOIN_SECONDS = 0.2
COMMAND_JOIN_SECONDS = 2.0
"""A thread inside torch's C++ while the interpreter ends aborts the whole process ("terminate called without an active
exception"), so a cache that is being emptied is waited for a little longer."""


class Client:
    """Belongs to the process that made it. `start` and `stop` once each."""

    def __init__(self, told: Told, torch: Torch, allocator: Allocator, limits: Limits) -> None:
        self.pid = os.getpid()
        self._told = told
        self._torch = torch
        self._stopping = threading.Event()
        remedies = Remedies(told, torch, allocator, limits, Pause(self._stopping.wait))
        self._reporter = Reporter(told, torch, allocator, limits)
        self._commands = Commands(told, remedies, self._blame_context)
        self._link = Link(told, self._find_socket, self._converse, self._stopping)
        self._thread: threading.Thread | None = None

    def start(self, first_pause_seconds: float = 0.0) -> None:
        """Begin, in a thread that does not keep the app alive."""
        thread = threading.Thread(
            target=self._link.run, args=(first_pause_seconds,), name="gpuagent-client", daemon=True
        )
        self._link.prepare()
        try:
            thread.start()
        except RuntimeError as error:  # out of threads, or the interpreter is about to end
            log.debug("no thread for the client: %s", error)
            self._link.abandon()
            return
        self._thread = thread

    def stop(self) -> None:
        """Tell all parts to end, and wait for them, but not for long."""
        self._stopping.set()
        self._link.hang_up()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)
        self._commands.join(COMMAND_JOIN_SECONDS)

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's. Threads and locks of the parent are not touched."""
        self._link.abandon()

    def _find_socket(self) -> str:
        return socket_path(self._told.settings, os.environ, os.geteuid())

    def _converse(self, connection: Connection, trusted: bool) -> Session:
        return Session(
            connection,
            self._told,
            self._reporter,
            self._commands,
            trusted=trusted,
            stopping=self._stopping.is_set,
        )

    def _blame_context(self) -> BlameContext:
        thread_id = self._thread.ident if self._thread is not None else None
        return BlameContext(thread_id or 0, self._told, self._torch, self._stopping.wait)
