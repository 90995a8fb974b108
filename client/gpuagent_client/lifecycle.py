"""The client of this process: started once, stopped at exit, and started anew in every forked child.

A connection that stands is the sign of life; nothing else is sent for it. Without an agent the thread tries to connect
now and then: soon at first, then less and less often, and never all apps at the same moment.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any, Callable, Protocol

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.commands import AllocatorCommands, BlameContext, CommandRunner, InterruptibleSleep, Limits
from gpuagent_client.connection import Connection, trusted
from gpuagent_client.errors import log, suppress_errors, warn_once
from gpuagent_client.protocol import Malformed
from gpuagent_client.session import Reporter, Session
from gpuagent_client.settings import ClientState, Notice, disabled, load_settings, socket_path

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 10.0


class Backoff:
    """Double the delay from 0.2 s to 10 s, each time by a random factor of 0.5 to 1.5."""

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


class Reconnector:
    """Keep a connection to the agent; a forked child needs its own. `run` is the thread's function."""

    def __init__(
        self,
        state: ClientState,
        find_socket: Callable[[], str],
        new_session: Callable[[Connection, bool], Session],
        stopping: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
        trusted: Callable[..., bool] = trusted,
        backoff: Backoff | None = None,
    ) -> None:
        self._state = state
        self._find_socket = find_socket
        self._new_session = new_session
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
            with suppress_errors("talk to the agent"):
                try:
                    self._connect()
                except Malformed as error:
                    warn_once("understand the agent", str(error))
                except OSError as error:
                    log.debug("no agent: %s", error)
            self._state.level = None
            if self._clock() >= started + SETTLED_SECONDS:
                self._backoff.succeeded()
            if not self._stopping.is_set():
                self._stopping.wait(self._backoff.failed())
        self._close()

    def interrupt(self) -> None:
        """End, from another thread and after `stopping` was set, the wait for the agent's next word."""
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close_in_child(self) -> None:
        """Close the copy of the parent's connection in a forked child, where the thread does not exist."""
        connection = self._connection
        if connection is not None:
            connection.close_in_child()

    def _connect(self) -> None:
        path = self._find_socket()
        connection = self._connection = self._connection or Connection()
        try:
            connection.open(path)
            trusted = self._trusts(connection.socket, path)
            if not trusted:
                warn_once("obey the server", f"{path} is not the agent's, so it gets figures only")
            self._new_session(connection, trusted).serve()
        finally:
            self._close()

    def _close(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.close()
        self._connection = None  # last: whoever forks in between finds it, closed


JOIN_SECONDS = 0.2
COMMAND_JOIN_SECONDS = 2.0
"""A thread inside torch's C++ while the interpreter ends aborts the whole process ("terminate called without an active
exception"), so a cache that is being emptied is waited for a little longer."""


class Client:
    """Client of the process that made it. Call `start` and `stop` once each."""

    def __init__(self, state: ClientState, torch: Torch, allocator: Allocator, limits: Limits) -> None:
        self.pid = os.getpid()
        self._state = state
        self._torch = torch
        self._stopping = threading.Event()
        allocator_commands = AllocatorCommands(state, torch, allocator, limits, InterruptibleSleep(self._stopping.wait))
        self._reporter = Reporter(state, torch, allocator, limits)
        self._commands = CommandRunner(state, allocator_commands, self._blame_context)
        self._reconnector = Reconnector(state, self._find_socket, self._new_session, self._stopping)
        self._thread: threading.Thread | None = None

    def start(self, first_pause_seconds: float = 0.0) -> None:
        """Begin, in a thread that does not keep the app alive."""
        thread = threading.Thread(
            target=self._reconnector.run, args=(first_pause_seconds,), name="gpuagent-client", daemon=True
        )
        self._reconnector.prepare()
        try:
            thread.start()
        except RuntimeError as error:  # out of threads, or the interpreter is about to end
            log.debug("no thread for the client: %s", error)
            self._reconnector.close_in_child()
            return
        self._thread = thread

    def stop(self) -> None:
        """Tell all parts to end, and wait for them, but not for long."""
        self._stopping.set()
        self._reconnector.interrupt()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)
        self._commands.join(COMMAND_JOIN_SECONDS)

    def close_in_child(self) -> None:
        """Close, in a forked child, what is the parent's. Its threads and locks are not touched."""
        self._reconnector.close_in_child()

    def _find_socket(self) -> str:
        return socket_path(self._state.settings, os.environ, os.geteuid())

    def _new_session(self, connection: Connection, trusted: bool) -> Session:
        return Session(
            connection,
            self._state,
            self._reporter,
            self._commands,
            trusted=trusted,
            stopping=self._stopping.is_set,
        )

    def _blame_context(self) -> BlameContext:
        thread_id = self._thread.ident if self._thread is not None else None
        return BlameContext(thread_id or 0, self._state, self._torch, self._stopping.wait)


class ClientProcess(Protocol):
    """What serving needs of the client: the app's torch, and the state shared with the agent."""

    @property
    def state(self) -> ClientState:
        """State set by the app and by the agent."""
        ...

    @property
    def torch(self) -> Torch:
        """Access to the app's torch."""
        ...

    @property
    def allocator(self) -> Allocator:
        """Reader of the allocator's figures."""
        ...

    @property
    def limits(self) -> Limits:
        """Limits of the allocator."""
        ...


_resets: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_registered = False


def reset_after_fork(owner: object, reset: Callable[[Any], None]) -> None:
    """Call `reset(owner)` in each forked child, as long as the owner lives."""
    global _registered  # noqa: PLW0603 - hooks cannot be taken back, so there is one for all
    _resets[owner] = reset
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_reset_all)


def _reset_all() -> None:
    for owner, reset in list(_resets.items()):
        reset(owner)


FORK_PAUSE_SECONDS = 0.1
"""A child that only lives to call exec, or for a moment, never connects."""

state: ClientState = ClientState()
torch = Torch()
allocator = Allocator(torch)
limits = Limits(state, torch, allocator)


class _Process:
    """State of which there is one in each process."""

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
    with suppress_errors("start"):
        commands = None if allow is None else frozenset([allow] if isinstance(allow, str) else allow)
        given = {"app": app, "socket": socket, "allow": commands, "interval": interval, "on_notice": on_notice}
        with _process.lock:
            _start({name: value for name, value in given.items() if value is not None})


def stop() -> None:
    """End what `start` began. Happens by itself when the app ends."""
    with suppress_errors("stop"), _process.lock:
        if _process.client is not None and _process.client.pid == os.getpid():
            _process.client.stop()
        _process.client = None
        _process.arguments = {}


def is_running() -> bool:
    """Return whether this process has a client that was started and not stopped."""
    running = _process.client
    return running is not None and running.pid == os.getpid()


def omit_hooks() -> None:
    """Register no hooks for fork and exit: the caller stops the client itself, and forked children get none.

    Hooks of `os.register_at_fork` cannot be removed, and would keep the client in a process that it is to leave.
    """
    _process.hooks_registered = True


def _start(given: dict[str, object]) -> None:
    if disabled(os.environ):
        return
    arguments = {**_process.arguments, **given}
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    settings = load_settings(os.environ, program, **arguments)  # type: ignore[arg-type]
    _process.arguments = arguments
    running = _process.client
    same_socket = settings.socket == state.settings.socket
    state.settings = settings  # the agent hears of a new name with the next figures
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
        atexit.register(stop)  # before the interpreter ends: a daemon thread must not be inside torch then


def _run(first_pause_seconds: float = 0.0) -> None:
    _process.client = Client(state, torch, allocator, limits)
    _process.client.start(first_pause_seconds)


def _after_fork_in_child() -> None:
    """Begin anew in a forked child: the parent's threads are not here, and its locks may be held for ever."""
    with suppress_errors("start in a forked child"):
        _process.lock = threading.Lock()
        parents = _process.client
        if parents is None or _is_census():
            return
        parents.close_in_child()
        state.level = None
        state.drain = None  # a child of a worker is none: nobody would start a successor
        state.events.clear()
        _run(FORK_PAUSE_SECONDS)


def _is_census() -> bool:
    """Return whether the child was forked for a census: it lives for a moment, and cleans up by itself."""
    fork = sys.modules.get("gpuagent_client.blame.fork")
    return fork is not None and bool(fork.is_census_fork())
