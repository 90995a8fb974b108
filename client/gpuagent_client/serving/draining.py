"""Ending a uvicorn server without losing a request. Apart from `recycling`, because it needs asyncio.

At SIGTERM uvicorn finishes the requests that it has begun to read, and closes all other connections, also one that was
accepted a moment ago and whose request is on its way: under load some clients see a reset. So the listening sockets are
closed first, what was accepted has the time to be read, and only then the signal is sent.
https://github.com/Kludex/uvicorn/blob/main/uvicorn/server.py (`Server.shutdown`)
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Collection
from typing import Any

SETTLE_SECONDS = 0.25


def drain(addresses: Collection[object]) -> None:
    """Listen at these no more, and end soon; called in the event loop."""
    loop = asyncio.get_running_loop()
    for server in _servers():
        if any(each.getsockname() in addresses for each in server.sockets or ()):
            server.close()
    loop.call_later(SETTLE_SECONDS, os.kill, os.getpid(), signal.SIGTERM)


def _servers() -> list[Any]:
    """Nobody hands them out: uvicorn has them in a local variable. uvloop's are of a class of its own."""
    found = []
    for item in gc.get_objects():
        kind = type(item)
        if issubclass(kind, asyncio.AbstractServer) or (kind.__module__, kind.__name__) == ("uvloop.loop", "Server"):
            found.append(item)
    return found
