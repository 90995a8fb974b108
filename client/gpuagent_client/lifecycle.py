"""The client of this process: started once, stopped at exit, and started anew in every forked child."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable
from typing import Callable

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.connection import Connection
from gpuagent_client.guard import harmless, log
from gpuagent_client.link import Link
from gpuagent_client.remedies import Limits, Pause, Remedies
from gpuagent_client.reporter import Reporter
from gpuagent_client.session import BlameContext, Commands, Session
from gpuagent_client.settings import Notice, Told, disabled, settle, socket_path

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
        """Let go, in a forked child, of what is the parent's. Its threads and locks are not touched."""
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


FORK_PAUSE_SECONDS = 0.1
"""A child that only lives to call exec, or for a moment, never connects."""

told: Told = Told()
torch = Torch()
allocator = Allocator(torch)
limits = Limits(told, torch, allocator)


class _Process:
    """What there is once in each process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: Client | None = None
        self.arguments: dict[str, object] = {}
        self.hooks_registered = False


_process = _Process()


def start(
    app: str | None = None,
    *,
    socket: str | None = None,
    allow: Iterable[str] | None = None,
    interval: float | None = None,
    on_notice: Callable[[Notice], None] | None = None,
) -> None:
    """Begin to tell the agent on this node about the GPU memory of this process, from a thread of its own.

    Call it as early as you like, and as often: what a later call gives replaces what an earlier one gave, the rest
    stays. Forked children begin by themselves. Without an agent nothing happens. Never raises, except under pytest.

    Args:
        app: the app's name in metrics and alerts; else $GPUAGENT_APP, else the script's name.
        socket: where the agent listens; else $GPUAGENT_SOCKET, else /run/gpuagent-client/client.sock.
        allow: the commands that are obeyed, of census, limit, lines, notice, rate, release, reset; else all. Only root,
            this user, and the agent's user can give any.
        interval: seconds between two figures, 0.2 to 60; else as the agent asks, usually 1.
        on_notice: called when the agent is about to act on this process, such as to end it.

    Raises:
        ValueError: an argument is not what it must be; only under pytest or with GPUAGENT_STRICT=1.
    """
    with harmless("start"):
        commands = None if allow is None else frozenset([allow] if isinstance(allow, str) else allow)
        given = {"app": app, "socket": socket, "allow": commands, "interval": interval, "on_notice": on_notice}
        with _process.lock:
            _start({name: value for name, value in given.items() if value is not None})


def stop() -> None:
    """End what `start` began. Happens by itself when the app ends."""
    with harmless("stop"), _process.lock:
        if _process.client is not None and _process.client.pid == os.getpid():
            _process.client.stop()
        _process.client = None
        _process.arguments = {}


def _start(given: dict[str, object]) -> None:
    if disabled(os.environ):
        return
    arguments = {**_process.arguments, **given}
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    settings = settle(os.environ, program, **arguments)  # type: ignore[arg-type]
    _process.arguments = arguments
    running = _process.client
    same_socket = settings.socket == told.settings.socket
    told.settings = settings  # the agent hears of a new name with the next figures
    if running is not None and running.pid == os.getpid():
        if same_socket:
            return
        running.stop()
    _run()
    if not _process.hooks_registered:
        _process.hooks_registered = True
        # Only after the fork, in the child: hooks before it would hold up the app's fork, and what they close is
        # missed if the fork fails. Hooks cannot be taken back, so this one looks whether there is anything to do.
        os.register_at_fork(after_in_child=_after_fork_in_child)
        atexit.register(_at_exit)


def _run(first_pause_seconds: float = 0.0) -> None:
    _process.client = Client(told, torch, allocator, limits)
    _process.client.start(first_pause_seconds)


def _after_fork_in_child() -> None:
    """Begin anew in a forked child: the parent's threads are not here, and its locks may be held for ever."""
    with harmless("start in a forked child"):
        _process.lock = threading.Lock()
        parents = _process.client
        if parents is None or _is_census():
            return
        parents.abandon()
        told.level = None
        told.drain = None  # a child of a worker is none: nobody would start a successor
        told.events.clear()
        _run(FORK_PAUSE_SECONDS)


def _is_census() -> bool:
    """Whether the child was made to look at the app's objects: it lives for a moment, and cleans up by itself."""
    fork = sys.modules.get("gpuagent_client.blame.fork")
    return fork is not None and bool(fork.is_census_fork())


def _at_exit() -> None:
    """Stop before the interpreter ends: a daemon thread must not be inside torch then."""
    stop()
