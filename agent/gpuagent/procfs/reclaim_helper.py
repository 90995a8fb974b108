"""The one thing that takes root on a machine whose GPU shares its memory: to have the kernel drop its page cache.

`gpuagent-reclaim.service` runs it, as root without any capability but that of locking its pages. It takes one word on
each connection, `drop_caches` or `compact_memory`, does that at most once in `REST_SECONDS`, and answers `ok` or why
not. Its pages are locked before the first word comes, it starts no process and opens no file but that of the word.

It imports nothing but the standard library, and little of that.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

SOCKET = "/run/gpuagent-reclaim/socket"
FILES = {"drop_caches": "sys/vm/drop_caches", "compact_memory": "sys/vm/compact_memory"}
REST_SECONDS = 10.0
"""Whoever may ask cannot keep the page cache empty."""
_FIRST_DESCRIPTOR = 3
"""sd_listen_fds(3)."""
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_WORD_BYTES = 64
_ASK_SECONDS = 5.0


def write_one(name: str, proc: str | Path = "/proc") -> str:
    """Write 1 into the file of this name; return why that failed, "" if it did not."""
    try:
        descriptor = os.open(f"{proc}/{FILES[name]}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"1\n")
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.strerror or "it cannot be written"
    return ""


def serve(
    listener: socket.socket,
    write: Callable[[str], str] = write_one,
    monotonic: Callable[[], float] = time.monotonic,
    connections: int | None = None,
) -> None:
    """Answer so many connections, None for ever; who may connect is said by the mode of the socket."""
    last: dict[str, float] = {}
    while connections is None or connections > 0:
        connections = None if connections is None else connections - 1
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_ASK_SECONDS)
            try:
                connection.sendall(_answer(connection, write, monotonic, last))
            except OSError:  # it has gone, or says nothing
                continue


def _answer(
    connection: socket.socket, write: Callable[[str], str], monotonic: Callable[[], float], last: dict[str, float]
) -> bytes:
    name = connection.recv(_WORD_BYTES).decode("ascii", "replace").strip()
    if name not in FILES:
        return b"no such word\n"
    now = monotonic()
    if name in last and now - last[name] < REST_SECONDS:
        return b"it was done less than 10 s ago\n"
    last[name] = now
    return (write(name) or "ok").encode("ascii", "replace") + b"\n"


def main() -> int:
    """Serve the socket that systemd hands over; return the exit status."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        sys.stderr.write("gpuagent-reclaim.socket starts this\n")
        return 1
    if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE):
        sys.stderr.write(f"pages are not locked: {os.strerror(ctypes.get_errno())}\n")
    serve(socket.socket(fileno=_FIRST_DESCRIPTOR))
    return 0


if __name__ == "__main__":
    sys.exit(main())
