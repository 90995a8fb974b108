"""Load the client in the process that `gpuagent attach` has reached, start it, and remove it again.

The text of this file is what `sys.remote_exec` runs there, with one call of `attach` below it: standard library only.
The main thread does no more than start a thread. That thread keeps a connection to the command; when the connection
ends, for whatever reason, so does the client. A lost command therefore leaves nothing behind.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

CLIENT = "gpuagent_client"
THREAD = "gpuagent-attach"
ALLOWED = ("census", "lines")
"""What the agent may ask of a client that was brought in: to look, and not to act."""
_THREADS_END_SECONDS = 15.0


def attach(client_directory: str, rendezvous: str) -> None:
    """Start the thread that does it all. Never raises: this is the main thread of somebody's app."""
    with contextlib.suppress(Exception):
        threading.Thread(target=_run, args=(client_directory, rendezvous), name=THREAD, daemon=True).start()


def _run(client_directory: str, rendezvous: str) -> None:
    """Connect, tell what was done, and undo it once the other side hangs up."""
    with contextlib.suppress(Exception), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(rendezvous)
        try:
            _serve(connection, client_directory)
        finally:
            # A child that the app forked meanwhile may have a copy, so that closing alone would not end it.
            connection.shutdown(socket.SHUT_RDWR)


def _serve(connection: socket.socket, client_directory: str) -> None:
    before = _modules()
    if os.environ.get("GPUAGENT_DISABLE", "").strip().lower() in {"1", "true", "yes", "on", "all"}:
        _tell(connection, "refused", why="GPUAGENT_DISABLE is set in its environment")
        return
    try:
        lifecycle = _load(client_directory) if not before else importlib.import_module(f"{CLIENT}.lifecycle")
        if before and getattr(lifecycle, "is_running", lambda: True)():  # an older client does not say
            _tell(connection, "started", own=True)
            _wait(connection)
        else:
            _start(connection, lifecycle, own=bool(before))
    except Exception as error:  # noqa: BLE001 - a failure is an answer
        _tell(connection, "refused", why=f"{type(error).__name__}: {error}"[:400])
    finally:
        if not before:
            _forget()
    with contextlib.suppress(OSError):
        _tell(connection, "detached", threads=_client_threads(), modules=sorted(_modules() - before))


def _start(connection: socket.socket, lifecycle: ModuleType, *, own: bool) -> None:
    """Run the client until the other side hangs up."""
    if not own:
        lifecycle.omit_hooks()  # a hook of fork cannot be taken back, so there must be none
        atexit.register(lifecycle.stop)  # a thread inside torch while the interpreter ends would abort the process
    try:
        lifecycle.start(allow=ALLOWED)
        if not lifecycle.is_running():
            raise RuntimeError("the client gave up: see the app's log")
        _tell(connection, "started", own=own)
        _wait(connection)
    finally:
        lifecycle.stop()
        _await_threads()
        if not own:
            atexit.unregister(lifecycle.stop)


def _load(client_directory: str) -> ModuleType:
    """Import the client from the directory, which is put on no path: the app's imports stay as they are."""
    folder = Path(client_directory, CLIENT)
    spec = importlib.util.spec_from_file_location(
        CLIENT, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no client in {client_directory}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[CLIENT] = module
    spec.loader.exec_module(module)
    return importlib.import_module(f"{CLIENT}.lifecycle")


def _wait(connection: socket.socket) -> None:
    """Return when the other side hangs up."""
    with contextlib.suppress(OSError):
        while connection.recv(64):
            pass


def _tell(connection: socket.socket, state: str, **facts: object) -> None:
    connection.sendall(json.dumps({"state": state, **facts}).encode() + b"\n")


def _modules() -> set[str]:
    return {name for name in list(sys.modules) if name.partition(".")[0] == CLIENT}


def _client_threads() -> list[str]:
    """Return the names of the client's threads that live."""
    return [thread.name for thread in _find_threads()]


def _find_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpuagent-") and thread.name != THREAD]


def _await_threads() -> None:
    """Wait for the client's threads: a census may have a child to wait for."""
    until = time.monotonic() + _THREADS_END_SECONDS
    for thread in _find_threads():
        thread.join(max(0.0, until - time.monotonic()))


def _forget() -> None:
    """Remove the client's modules and loggers. What it loaded of the standard library stays."""
    for name in _modules():
        sys.modules.pop(name, None)
    loggers = logging.root.manager.loggerDict
    for name in [name for name in list(loggers) if name.partition(".")[0] == CLIENT]:
        loggers.pop(name, None)
