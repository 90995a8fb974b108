"""A server for a test, and a client that can misbehave: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from starlette.types import ASGIApp

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.server import HttpServer
from tests.fakes.source import FakeSource

T = TypeVar("T")
PATIENCE_SECONDS = 20.0
"""How long a test waits for what must happen, on a machine that is busy with other things."""


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask and read the whole answer. Header names are written with underscores."""
        wanted = {"host": "localhost", **{k.replace("_", "-"): v for k, v in headers.items()}}
        lines = "".join(f"{name}: {value}\r\n" for name, value in wanted.items())
        await self.send(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode())
        return await self.answer(bodiless=method == "HEAD")

    async def answer(self, *, bodiless: bool = False) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        length = 0 if bodiless else int(headers.get("content-length", 0))
        return Answer(int(first.split()[1]), headers, await self.reader.readexactly(length))

    async def rest(self) -> bytes:
        """All that comes until the server closes; being reset is a way of closing."""
        received = b""
        try:
            while piece := await self.reader.read(65536):
                received += piece
        except ConnectionError:
            pass
        return received

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


@asynccontextmanager
async def serving(app: ASGIApp | None = None, **options: Any) -> AsyncIterator[HttpServer]:
    """A running server, on a free port of loopback unless told otherwise."""
    if "unix_socket" not in options:
        options.setdefault("listen", "127.0.0.1:0")
    server = HttpServer(app or build_app(FakeSource()), **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(
    to: HttpServer | Path, *, limit: int = 2**16, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Client]:
    """A client of a server, or of the unix socket at a path."""
    if isinstance(to, Path):
        client = Client(*await asyncio.open_unix_connection(to, limit=limit))
    else:
        name = "localhost" if tls else None
        opened = asyncio.open_connection("127.0.0.1", to.port, limit=limit, ssl=tls, server_hostname=name)
        client = Client(*await opened)
    try:
        yield client
    finally:
        await client.close()


async def ask(to: HttpServer | Path, path: str, method: str = "GET", **headers: str) -> Answer:
    """One request on a connection of its own."""
    async with connected(to) as client:
        return await client.get(path, method, **headers)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the server does by itself and tells nobody of."""
    while not condition():  # noqa: ASYNC110 - there is no event: see above
        await asyncio.sleep(0.005)


def run(test: Coroutine[Any, Any, T]) -> T:
    """Run the body of a test in a loop of its own, but not for ever."""
    return asyncio.run(asyncio.wait_for(test, PATIENCE_SECONDS))
