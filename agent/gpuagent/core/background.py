"""Work that may hang (a name server that is silent), in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Progress:
    """Where work has come to, for whoever gives it up. Set by the thread that works, read by another."""

    def __init__(self) -> None:
        self.step = ""
        """What is being done now, for people: "reading /etc/gpuagent/rules.yaml"."""

    def at(self, step: str) -> None:
        """Note what is done from now on."""
        self.step = step


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Return what `work` returns, or raise what it raises.

    If the caller is cancelled the thread is left behind, and ends with the process. asyncio's own threads will not do:
    the agent's state is written by them, and they are joined at exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  it is raised where it is awaited
            tell(partial(future.set_exception, error))
        else:
            tell(partial(future.set_result, result))

    def tell(settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else settle())

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
