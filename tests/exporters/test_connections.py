"""Connections are shared out between peers: one peer's flood does not shut the others out."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpuagent_exporters.http.limits import HttpLimits
from gpuagent_exporters.http.server import HttpServer
from gpuagent_exporters.http.web_config import WebConfig
from tests.exporters.certificates import Authority
from tests.exporters.wire import Client, run, serving, until

FLOOD, SCRAPER = "127.0.0.2", "127.0.0.1"
PATIENT = HttpLimits(max_connections=4, request_timeout_seconds=60, idle_timeout_seconds=60)


@contextlib.asynccontextmanager
async def coming_from(address: str, server: HttpServer, **options: Any) -> AsyncIterator[Client]:
    """A client with an address of its own, all of which are one machine's otherwise."""
    opened = asyncio.open_connection("127.0.0.1", server.port, local_addr=(address, 0), **options)
    client = Client(*await opened)
    try:
        yield client
    finally:
        await client.close()


def each_for_itself(address: str) -> str:
    """The group of a peer is its address, of loopback too."""
    return address


@contextlib.asynccontextmanager
async def flooded(server: HttpServer, count: int) -> AsyncIterator[list[Client]]:
    """A server with connections of one peer that never finish what they ask."""
    async with contextlib.AsyncExitStack() as stack:
        flood = [await stack.enter_async_context(coming_from(FLOOD, server)) for _ in range(count)]
        for client in flood:
            with contextlib.suppress(ConnectionError):  # of more than there are places the first have given way
                await client.send(b"GET /metrics HTTP/1.1\r\n")
        await until(lambda: server.connections >= min(count, PATIENT.max_connections))
        yield flood


def test_a_newcomer_takes_the_place_of_the_flood() -> None:
    """Where one peer has all connections, in the middle of requests, another peer is answered all the same."""

    async def test() -> None:
        async with (
            serving(limits=PATIENT, group_of=each_for_itself) as server,
            flooded(server, 4) as flood,
            coming_from(SCRAPER, server) as scraper,
        ):
            assert (await scraper.get("/metrics")).status == 200
            assert await flood[0].rest() == b""
            assert server.connections == 4

    run(test())


def test_a_flood_does_not_end_a_scrapers_connection() -> None:
    """An idle connection makes room for its own peer's newcomers, and not for a peer that has more."""

    async def test() -> None:
        async with serving(limits=PATIENT, group_of=each_for_itself) as server, coming_from(SCRAPER, server) as scraper:
            assert (await scraper.get("/metrics")).status == 200
            async with flooded(server, 3) as flood, coming_from(FLOOD, server):
                assert await flood[0].rest() == b""
                assert (await scraper.get("/metrics")).status == 200

    run(test())


def test_a_peers_newcomer_takes_the_place_of_its_own_slowest() -> None:
    """Of a peer with as many connections as any other, its own oldest half request gives way, and nobody else's."""

    async def test() -> None:
        async with (
            serving(limits=PATIENT, group_of=each_for_itself) as server,
            flooded(server, 2) as flood,
            coming_from(SCRAPER, server) as one,
            coming_from(SCRAPER, server) as two,
        ):
            for client in (one, two):
                await client.send(b"GET /metrics HTTP/1.1\r\n")
            await until(lambda: server.connections == 4)
            async with coming_from(SCRAPER, server) as newcomer:
                assert (await newcomer.get("/metrics")).status == 200
                assert await one.rest() == b""
                for client in (flood[0], two):
                    await client.send(b"Host: localhost\r\n\r\n")
                    assert (await client.answer()).status == 200

    run(test())


def test_half_requests_on_loopback_lock_nobody_on_it_out() -> None:
    """All of loopback is one peer, where any local process may flood: who sends a request at once is served."""

    async def test() -> None:
        async with serving(limits=PATIENT) as server, contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(flooded(server, 6))
                async with coming_from(SCRAPER, server) as scraper:
                    assert (await scraper.get("/metrics")).status == 200

    run(test())


def test_while_all_are_being_answered_a_newcomer_is_refused() -> None:
    """Nothing that waits for the agent itself is ended for another connection of the same peer."""

    async def test() -> None:
        answering, done = asyncio.Event(), asyncio.Event()

        async def slow(_: Request) -> Response:
            answering.set()
            await done.wait()
            return Response("at last")

        app = Starlette(routes=[Route("/slow", slow)])
        limits = replace(PATIENT, max_connections=1)
        async with serving(app, limits=limits) as server, coming_from(SCRAPER, server) as one:
            asked = asyncio.create_task(one.get("/slow"))
            await answering.wait()
            async with coming_from(SCRAPER, server) as refused:
                assert (await refused.rest()).startswith(b"HTTP/1.1 503 ")
            done.set()
            assert (await asked).status == 200

    run(test())


@pytest.fixture
def encrypted(tmp_path: Path) -> tuple[WebConfig, ssl.SSLContext]:
    """A web configuration with TLS, and what a client of it needs."""
    authority = Authority()
    authority.issue("localhost", "127.0.0.1").write(tmp_path, "server")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    path = tmp_path / "web.yml"
    path.write_text(yaml.safe_dump({"tls_server_config": {"cert_file": "server.crt", "key_file": "server.key"}}))
    return WebConfig(path), ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))


def test_handshakes_that_never_end_make_room_too(encrypted: tuple[WebConfig, ssl.SSLContext]) -> None:
    """A flood that does not even finish its TLS handshakes gives way to a newcomer that does."""
    web_config, context = encrypted

    async def test() -> None:
        async with (
            serving(limits=PATIENT, group_of=each_for_itself, web_config=web_config) as server,
            contextlib.AsyncExitStack() as stack,
        ):
            flood = [await stack.enter_async_context(coming_from(FLOOD, server)) for _ in range(4)]
            await until(lambda: server.connections == 4)
            secure = {"ssl": context, "server_hostname": "localhost"}
            async with coming_from(SCRAPER, server, **secure) as scraper:
                assert (await scraper.get("/metrics")).status == 200
                assert await flood[0].rest() == b""

    run(test())
