"""Ending a uvicorn server without losing a request. Apart from `recycling`, because it needs asyncio.

At SIGTERM uvicorn finishes the requests that it has begun to read, and closes all other connections, also one that was
accepted a moment ago and whose request is on its way: under load some clients see a reset. So the server stops to
accept first, what was accepted has the time to be read, and only then the signal is sent.
https://github.com/Kludex/uvicorn/blob/main/uvicorn/server.py (`Server.shutdown`)
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Collection
from typing import Any, NamedTuple

SETTLE_SECONDS = 0.25


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the one that runs here; None under another library's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Listening(NamedTuple):
    """A socket of somebody else's: known by its descriptor, never closed here."""

    descriptor: int
    name: object

    def fileno(self) -> int:
        """Return the descriptor, as a socket does."""
        return self.descriptor

    def getsockname(self) -> object:
        """Return the address, as a socket does."""
        return self.name


def listening_here() -> list[Listening]:
    """Return the sockets on which this process accepts connections, where no server hands them out."""
    found = []
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a name is all that is needed
        try:
            one = socket.socket(fileno=int(entry))
        except OSError:  # no socket, or the listing's own descriptor, closed by now
            continue
        try:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(Listening(int(entry), one.getsockname()))
        finally:
            one.detach()
    return found


def drain(listening: Collection[Any]) -> None:
    """Accept nothing more on these sockets, and end soon; called in the event loop."""
    loop = asyncio.get_running_loop()
    if type(loop).__module__.startswith("uvloop"):
        _close_uvloops_servers({each.getsockname() for each in listening})
    else:
        # Not the server's close(): what it has accepted in the same turn of the loop would be lost, for a transport
        # cannot attach itself to a server that is closed (asyncio.base_events.Server._attach).
        for each in listening:
            loop.remove_reader(each.fileno())
    loop.call_later(SETTLE_SECONDS, os.kill, os.getpid(), signal.SIGTERM)


def _close_uvloops_servers(addresses: Collection[object]) -> None:
    """Close listening sockets of uvloop, which hands no servers out and attaches connections once accepted."""
    for item in gc.get_objects():
        kind = type(item)
        if (kind.__module__, kind.__name__) == ("uvloop.loop", "Server") and any(
            each.getsockname() in addresses for each in item.sockets or ()
        ):
            item.close()
