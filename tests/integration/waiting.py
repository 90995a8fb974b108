"""Waiting for something outside this process, with a deadline and the reason when it does not come."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""Far more than anything takes on a machine that has other things to do."""
_BETWEEN_SECONDS = 0.05


def until(look: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """What `look` returns once that is true. Raises AssertionError when the time is over."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; last seen: {found!r}"
        time.sleep(_BETWEEN_SECONDS)
    return found


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def alongside(work: Callable[[], None], ended: threading.Event, name: str) -> Iterator[None]:
    """`work` in a thread of its own, until the block is left; it has to look at `ended`."""
    thread = threading.Thread(target=work, name=name)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
