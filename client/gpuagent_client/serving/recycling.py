"""End a gunicorn worker that holds too much memory, between requests, so that the arbiter starts a fresh one.

gunicorn's workers call the hook `post_request`; `worker.alive = False` then lets them finish what they have begun and
exit, as at `max_requests`. uvicorn's worker for gunicorn calls no hooks: there the middleware does, and the worker
stops accepting and sends itself SIGTERM, which uvicorn takes as the wish to end after the open requests. So does a
worker of `uvicorn --workers`, where the middleware was given this.

The agent can ask for it from outside: a notice that something is about to happen to this process (the step `notify` of
a remedy) is then the reason to go, in time and without losing a request.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from gpuagent_client import lifecycle
from gpuagent_client.errors import log, strict, warn_once
from gpuagent_client.lifecycle import ClientProcess
from gpuagent_client.serving.meter import Meter
from gpuagent_client.serving.releases import GIB, CacheReleases

if TYPE_CHECKING:
    import asyncio

SETTLE_SECONDS = 0.25


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs here; None under another library's."""
    import asyncio  # noqa: PLC0415 - an app without a loop does not load it

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class ListeningSocket(NamedTuple):
    """Listening socket of the server, known by its descriptor; never closed here."""

    descriptor: int
    name: object

    def fileno(self) -> int:
        """Return the descriptor, as a socket does."""
        return self.descriptor

    def getsockname(self) -> object:
        """Return the address, as a socket does."""
        return self.name


def listening_here() -> list[ListeningSocket]:
    """Return the sockets on which this process accepts connections, where no server hands them out."""
    found = []
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a name is all that is needed
        try:
            one = socket.socket(fileno=int(entry))
        except OSError:  # no socket, or the listing's own descriptor, closed by now
            continue
        try:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(ListeningSocket(int(entry), one.getsockname()))
        finally:
            one.detach()
    return found


def drain(listening: Collection[Any]) -> None:
    """Stop accepting on these sockets, and send this process SIGTERM soon; called in the event loop.

    At SIGTERM uvicorn finishes the requests that it has begun to read, and closes all other connections, also one that
    was accepted a moment ago and whose request is on its way: under load some clients see a reset. So the server stops
    accepting first, what was accepted has the time to be read, and only then the signal is sent.
    https://github.com/Kludex/uvicorn/blob/main/uvicorn/server.py (`Server.shutdown`)
    """
    import asyncio  # noqa: PLC0415

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


class _RecyclingLock:
    """Lock that lets one worker recycle at a time; it belongs to the process, whose end releases it (fcntl(2))."""

    def __init__(self) -> None:
        self._file = os.memfd_create("gpuagent-recycling")  # open as long as the server runs, in all its workers

    def use_file(self, file: int) -> None:
        """Lock this file instead: workers that were not forked have no other in common."""
        os.close(self._file)
        self._file = file

    def acquire(self) -> bool:
        """Acquire the lock without waiting; return whether it was free."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


class Recycling:
    """Replace a worker by a fresh one: in gunicorn's configuration (see `serving.gunicorn`), or in the ASGI middleware.

    Args:
        above_bytes: of what torch's allocator has reserved in one worker. A cache is given back first.
        after_requests: in one worker.
        on_notice: when the agent announces that it is about to act on the worker.

    Raises:
        ValueError: none is given, or one is no positive number.
    """

    def __init__(
        self,
        *,
        above_bytes: int | None = None,
        after_requests: int | None = None,
        on_notice: bool = False,
        process: ClientProcess = lifecycle,
        stop: Callable[[], object] | None = None,
    ) -> None:
        if above_bytes is None and after_requests is None and not on_notice:
            raise ValueError("give above_bytes, after_requests or on_notice")
        if any(value is not None and value < 1 for value in (above_bytes, after_requests)):
            raise ValueError("above_bytes and after_requests must be above 0")
        self._above_bytes = above_bytes
        self._after_requests = after_requests
        self._on_notice = on_notice
        self._state = process.state
        self._loop: asyncio.AbstractEventLoop | None = None
        self._may_have_loop = True
        self._meter = Meter(process.torch)
        self._given_stop = stop
        self._stop = stop
        self._listening: list[Any] = []
        self._in_app = False
        self._recycling_lock = _RecyclingLock()
        self._releases: CacheReleases | None = None
        self._requests = 0
        self._hooked = False
        self._checking = False
        self._why = ""
        self.ending = False

    def post_worker_init(self, worker: Any) -> None:  # noqa: ANN401 - gunicorn's hook
        """Register in each worker (gunicorn's hook): from now on the middleware calls this after each request."""
        self._listening = list(worker.sockets)
        _current.append(self)
        if self._on_notice:
            self._state.drain = self.drain

    def begin_in_app(self) -> None:
        """Register where the server has no hooks: uvicorn's supervisor starts a successor by itself."""
        self._in_app = True
        _current.append(self)
        if self._on_notice:
            self._state.drain = self.drain

    def post_request(self, worker: Any, req: Any, environ: Any, resp: Any) -> None:  # noqa: ARG002, ANN401 - gunicorn's
        """Check after each request (gunicorn's hook) whether to recycle. Never raises."""
        self._hooked = True

        def stop() -> None:
            worker.alive = False

        self._stop = stop
        self._guarded(None)

    def after_request(self, releases: CacheReleases, *, in_loop: bool) -> None:
        """Check after each request of the middleware whether to recycle, unless gunicorn's own hook does."""
        self._releases = releases
        if not self._hooked:
            if in_loop and self._may_have_loop:
                self._loop, self._may_have_loop = running_loop(), False
            self._stop = self._stop or (self._drain if in_loop else _ask_oneself_to_end)
            self._guarded(releases)

    def drain(self, why: str) -> bool:
        """End this worker, from any thread, after the requests that it has begun; return whether it will.

        Where another worker is ending, this one goes after one of its next requests. gunicorn's own classes end so at
        SIGTERM; uvicorn's would lose what it has accepted and not yet read, if it serves: see `draining`.
        """
        if self.ending or self._why:
            return True
        self._why = f"the agent asks for it: {why}"
        if self._loop is None or self._hooked:
            self._end(self._why, self._given_stop or _ask_oneself_to_end)
            return True
        with contextlib.suppress(RuntimeError):  # the loop is over, and the worker with it
            self._loop.call_soon_threadsafe(self._end, self._why)
        return True

    def _guarded(self, releases: CacheReleases | None) -> None:
        try:
            self._requests += 1
            if not self.ending and not self._checking:
                self._check(releases or self._releases)
        except Exception as error:
            if strict():
                raise
            warn_once("recycle a worker", f"{type(error).__name__}: {error}")

    def _check(self, releases: CacheReleases | None) -> None:
        if self._why:
            self._end(self._why)
            return
        if self._after_requests is not None and self._requests >= self._after_requests:
            self._end(f"after {self._requests} requests")
            return
        figures = self._meter.read() if self._above_bytes is not None else None
        if figures is None or self._above_bytes is None or figures.reserved_bytes <= self._above_bytes:
            return
        if figures.allocated_bytes <= self._above_bytes and releases is not None:
            # What is too much is cache. Giving it back takes longer than an event loop may stand still.
            self._checking = True
            threading.Thread(target=self._release_first, args=(releases,), name="gpuagent-recycle").start()
            return
        self._end(f"{figures.reserved_bytes / GIB:.2f} GiB reserved, above {self._above_bytes / GIB:.2f} GiB")

    def _release_first(self, releases: CacheReleases) -> None:
        try:
            if not releases.release():
                return  # refused, as it is once a minute and between requests: the next request will ask again
            figures = self._meter.read()
            if figures is not None and self._above_bytes is not None and figures.reserved_bytes > self._above_bytes:
                # Said by the next request, in the thread or event loop that it belongs to.
                self._why = f"{figures.reserved_bytes / GIB:.2f} GiB reserved, also after a release"
        except Exception as error:  # noqa: BLE001 - a thread of its own: nobody else hears of it
            warn_once("recycle a worker", f"{type(error).__name__}: {error}")
        finally:
            self._checking = False

    def _end(self, why: str, stop: Callable[[], object] | None = None) -> None:
        if self._in_app and not self._listening:
            self._listening = listening_here()
            if self._listening:
                self._recycling_lock.use_file(self._listening[0].fileno())
        if self.ending or not self._recycling_lock.acquire():
            return  # another worker is ending; the next request will ask again
        self.ending = True
        log.warning("this worker makes room for a fresh one: %s", why)
        stop = stop or self._stop
        if stop is not None:
            stop()

    def _drain(self) -> None:
        drain(self._listening)


_current: list[Recycling] = []


def after_request(releases: CacheReleases, *, in_loop: bool) -> None:
    """Recycle where it is due, at the cost of a check of an empty list where nothing is recycled."""
    for recycling in _current:
        recycling.after_request(releases, in_loop=in_loop)


def _ask_oneself_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
