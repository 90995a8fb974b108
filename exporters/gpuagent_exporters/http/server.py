"""The HTTP server: uvicorn's protocol over our own listening sockets, inside the caller's loop.

`uvicorn.Server` is not used: it wakes ten times a second, takes the signal handlers, and cannot say
how many connections are still shaking hands over TLS. What is left of it here is to accept, to
count, and to stop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp

from gpuagent_exporters.http.auth import peer_group
from gpuagent_exporters.http.hosts import CheckHost, HostNames, host_names
from gpuagent_exporters.http.limits import BoundedProtocol, HttpLimits
from gpuagent_exporters.http.listeners import ListenError, UnixListener, open_tcp, open_unix
from gpuagent_exporters.http.slim_imports import Config, ServerState
from gpuagent_exporters.http.web_config import WebConfig

__all__ = ["HttpServer", "ListenError"]

log = logging.getLogger(__name__)

_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_RETRY_SECONDS = 1.0
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\n"
    b"content-type: text/plain\r\ncontent-length: 21\r\n\r\nToo many connections\n"
)


class HttpServer:
    """Serves one app on a TCP address, a unix socket, or both.

    Args:
        app: The ASGI app.
        listen: `HOST:PORT`, or None for no TCP.
        unix_socket: The path of the socket file, or None for none.
        unix_mode: Permissions of the socket file.
        unix_group: The group the socket file is given to.
        limits: What one client may cost.
        web_config: TLS and basic authentication, for the TCP address; a unix socket has its
            permissions.
        names: The names under which the TCP address may be asked, by default those of this machine.
        group_of: What stands for a client's address where connections are shared out.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        listen: str | None = None,
        unix_socket: Path | None = None,
        unix_mode: int = 0o660,
        unix_group: str | None = None,
        limits: HttpLimits = HttpLimits(),  # noqa: B008 - frozen
        web_config: WebConfig | None = None,
        names: HostNames | None = None,
        group_of: Callable[[str], str] = peer_group,
    ) -> None:
        self._listen = listen
        self._unix_socket = unix_socket
        self._unix_mode = unix_mode
        self._unix_group = unix_group
        self._limits = limits
        self._web_config = web_config or WebConfig()
        self._state = ServerState()
        bounded = RequestBodyLimitMiddleware(app, limits.max_body_bytes)
        self._unix_protocol = _uvicorn_config(bounded)
        # Outside of everything: what reaches a TCP address under a stranger's name reaches no route and no password.
        guarded = CheckHost(self._web_config.protect(bounded), names or host_names(), self._is_protected)
        self._tcp_protocol = _uvicorn_config(self._web_config.with_headers(guarded))
        self._tcp: list[socket.socket] = []
        self._unix: UnixListener | None = None
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], BoundedProtocol] = {}
        self._group_of = group_of
        self._open: dict[BoundedProtocol, str] = {}  # with the group of its peer, in the order of connecting
        self._all_lost = asyncio.Event()

    @property
    def port(self) -> int:
        """The TCP port that is listened on; raises RuntimeError where there is none."""
        if not self._tcp:
            raise RuntimeError("not listening on TCP")
        port: int = self._tcp[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """How many clients are connected or connecting."""
        return len(self._open)

    async def start(self) -> None:
        """Open the sockets and serve from now on. Raises ListenError; then nothing is left open."""
        try:
            if self._listen is not None:
                self._tcp = await open_tcp(self._listen)
            if self._unix_socket is not None:
                self._unix = await asyncio.to_thread(  # it asks whoever may still be listening there
                    open_unix, self._unix_socket, mode=self._unix_mode, group=self._unix_group
                )
        except BaseException:
            self._close_listeners()
            raise
        for each in self._tcp:
            each.setblocking(False)
            self._begin(self._accept(each, self._tcp_protocol, self._web_config.ssl_context))
        if self._unix is not None:
            self._unix.socket.setblocking(False)
            self._begin(self._accept(self._unix.socket, self._unix_protocol, lambda: None))

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Take no more connections, let answers finish within `grace_seconds`, cut the rest."""
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self._accepting.clear()
        self._close_listeners()
        await asyncio.sleep(0)  # a handshake that has not begun does not yet own its socket
        for handshake in list(self._handshakes):
            handshake.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        for connection in list(self._open):
            connection.shutdown()
        await self._wait_until_all_lost(grace_seconds)
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # now every answer in progress knows that nobody waits for it
        for answering in list(self._state.tasks):
            answering.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
        await self._wait_until_all_lost(grace_seconds)

    def _begin(self, accept: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(accept)
        task.add_done_callback(_report)
        self._accepting.append(task)

    def _close_listeners(self) -> None:
        for each in self._tcp:
            each.close()
        self._tcp = []
        if self._unix is not None:
            self._unix.close()
            self._unix = None

    async def _wait_until_all_lost(self, seconds: float) -> None:
        self._all_lost.clear()
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_lost.wait(), seconds)

    def _is_protected(self) -> bool:
        return self._web_config.encrypts or self._web_config.authenticates

    # Accepting

    async def _accept(
        self,
        listener: socket.socket,
        config: Config,
        ssl_context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """Take connections for ever, one at each turn of the loop: a flood leaves others theirs."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                await self._recover(error)
                continue
            group = self._group_of(address[0]) if isinstance(address, tuple) else ""
            if len(self._open) >= self._limits.max_connections and not self._make_room(group):
                _refuse(accepted, in_words=ssl_context() is None)
            else:
                self._connect(accepted, group, config, ssl_context())
            await asyncio.sleep(0)

    async def _recover(self, error: OSError) -> None:
        """Go on after most errors, which are the next client's (accept(2)); without descriptors, wait a little."""
        if error.errno in _OUT_OF_RESOURCES:
            log.warning("cannot accept a connection: %s", error.strerror)
            self._close_idle(self._open)
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            await asyncio.sleep(0)

    def _make_room(self, newcomer: str) -> bool:
        """End a connection of a peer that has the most of them, for a peer of the group `newcomer`; False for none.

        The one that has been idle longest goes. Then, for a peer with no fewer connections one of its own, the one
        that has kept the agent waiting longest: who sends a request at once is served, whoever floods from the same
        address. A connection that is being answered goes, the newest, only for a peer with fewer connections. So one
        peer's flood neither shuts others out nor ends a scraper's connection.
        """
        counts = Counter(self._open.values())
        most = max(counts.values())
        victims = [each for each, group in self._open.items() if counts[group] == most]
        if self._close_idle(victims):
            return True
        has_fewer = most > counts[newcomer] + 1
        if not has_fewer:
            victims = [each for each, group in self._open.items() if group == newcomer]
        slowest = _slowest(victims)
        if slowest is None and has_fewer:
            slowest = victims[-1]
        if slowest is not None:
            self._cut(slowest)
        return slowest is not None

    def _close_idle(self, connections: Iterable[BoundedProtocol]) -> bool:
        """Close the connection that has been idle longest; False where all of them are busy."""
        idle = [(each.idle_since, each) for each in connections if each.idle_since is not None]
        if not idle:
            return False
        _, oldest = min(idle, key=lambda pair: pair[0])
        oldest.shutdown()
        self._forget(oldest)
        return True

    def _cut(self, connection: BoundedProtocol) -> None:
        """End a connection in the middle of what it does, a TLS handshake included."""
        handshake = next((task for task, of in self._handshakes.items() if of is connection), None)
        if handshake is None:
            connection.abort()
        else:  # in the loop's next turn it has begun for certain, and owns its socket
            asyncio.get_running_loop().call_soon(_end_handshake, handshake, connection)
        self._forget(connection)

    def _connect(self, accepted: socket.socket, group: str, config: Config, context: ssl.SSLContext | None) -> None:
        connection = BoundedProtocol(
            config,
            self._state,
            self._limits,
            on_lost=self._forget,
        )
        self._open[connection] = group
        task = asyncio.create_task(self._shake_hands(accepted, connection, context))
        self._handshakes[task] = connection
        task.add_done_callback(self._handshakes.pop)

    async def _shake_hands(
        self, accepted: socket.socket, connection: BoundedProtocol, context: ssl.SSLContext | None
    ) -> None:
        """Make a transport of a socket; with TLS this waits for the client, but not for long."""
        seconds = self._limits.request_timeout_seconds if context else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except OSError as error:  # what a stranger does wrong in a handshake is nobody's news
            log.debug("no connection: %s", error)
            self._forget(connection)
        except BaseException:
            self._forget(connection)
            raise

    def _forget(self, connection: BoundedProtocol) -> None:
        self._open.pop(connection, None)
        if not self._open:
            self._all_lost.set()


def _slowest(connections: Sequence[BoundedProtocol]) -> BoundedProtocol | None:
    """Return who has owed the rest of a request longest, else who has not read an answer longest."""
    waiting = [(since, each) for each in connections if (since := each.awaited_since) is not None]
    waiting = waiting or [(since, each) for each in connections if (since := each.unread_since) is not None]
    return min(waiting, key=lambda pair: pair[0])[1] if waiting else None


def _end_handshake(handshake: asyncio.Task[None], connection: BoundedProtocol) -> None:
    if not handshake.cancel():  # it has just succeeded
        connection.abort()


def _report(accepting: asyncio.Task[None]) -> None:
    if not accepting.cancelled() and (fault := accepting.exception()):
        log.critical("no more connections are accepted", exc_info=fault)


def _refuse(accepted: socket.socket, *, in_words: bool) -> None:
    """Turn a client away without a transport, a task or the app; over TLS, without words."""
    with accepted, suppress(OSError):
        if in_words:
            accepted.send(_BUSY)


def _uvicorn_config(app: ASGIApp) -> Config:
    config = Config(
        app,
        http=BoundedProtocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nobody may claim to be somebody else
        server_header=False,
        date_header=False,
        workers=1,  # otherwise WEB_CONCURRENCY in the environment is read
    )
    config.load()
    return config
