"""The client of this process: started once, stopped at exit, and started anew in every forked child."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable
from typing import Callable

from gpuagent_client.allocator import Allocator
from gpuagent_client.client import Client
from gpuagent_client.guard import harmless
from gpuagent_client.limits import Limits
from gpuagent_client.settings import Notice, disabled, settle
from gpuagent_client.told import Told
from gpuagent_client.torch_door import Torch

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
    """The parent's threads are not here, and its locks may be held for ever: leave them, and begin anew."""
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
    """A daemon thread must not be inside torch when the interpreter ends."""
    stop()
