"""Starting on an address, and stopping."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.listeners import is_loopback, parse_listen
from gpuagent_exporters.http.server import HttpServer, ListenError
from tests.exporters.wire import Client, ask, connected, run, serving
from tests.fakes.source import FakeSource


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9837", "127.0.0.1", 9837, True),
        ("127.8.9.10:1", "127.8.9.10", 1, True),
        ("[::1]:9837", "::1", 9837, True),
        ("localhost:0", "localhost", 0, True),
        (":9837", "", 9837, False),
        ("0.0.0.0:65535", "0.0.0.0", 65535, False),
        ("[::]:9837", "::", 9837, False),
        ("gpu-node:9837", "gpu-node", 9837, False),
    ],
)
def test_listen_addresses(text: str, host: str, port: int, loopback: bool) -> None:
    """An address is read as everybody writes it, and only loopback counts as private."""
    assert parse_listen(text) == (host, port)
    assert str(parse_listen(text)) == text
    assert is_loopback(text) is loopback


@pytest.mark.parametrize(
    "text", ["", "9837", "localhost", "127.0.0.1:", "127.0.0.1:http", "a:65536", "::1:9837", "a:-1"]
)
def test_no_listen_address(text: str) -> None:
    """What is no address is named, with what one looks like or what is missing."""
    with pytest.raises(ListenError, match=r"is not HOST:PORT|has no port"):
        parse_listen(text)


def test_ipv6_is_served() -> None:
    """The agent listens on an IPv6 address alone where it is told so."""

    async def test() -> int:
        async with serving(listen="[::1]:0") as server:
            client = Client(*await asyncio.open_connection("::1", server.port))
            answer = await client.get("/api/v1/status", host="[::1]")
            await client.close()
            return answer.status

    assert run(test()) == 200


@pytest.mark.parametrize(
    ("listen", "addresses"),
    [
        (":0", {"127.0.0.1", "::1"}),
        ("localhost:0", {str(found[4][0]) for found in socket.getaddrinfo("localhost", 0)}),
    ],
)
def test_every_address_of_a_host_is_served(listen: str, addresses: set[str]) -> None:
    """An empty host is all addresses, and a name is each of its own: the same port on all."""

    async def get(address: str, port: int) -> int:
        client = Client(*await asyncio.open_connection(address, port))
        try:
            return (await client.get("/metrics")).status
        finally:
            await client.close()

    async def test() -> set[int]:
        async with serving(listen=listen) as server:
            return {await get(address, server.port) for address in addresses}

    assert run(test()) == {200}


def test_loopback_is_guarded_on_an_open_address_too() -> None:
    """DNS rebinding reaches loopback just as well where the agent listens everywhere."""

    async def test() -> int:
        async with serving(listen=":0") as server:
            return (await ask(server, "/api/v1/status", host="evil.example.com")).status

    assert run(test()) == 421


def test_a_port_in_use_is_a_plain_sentence() -> None:
    """Two agents on one port: the second says so, and how to find out who has it."""

    async def test() -> None:
        async with serving() as server:
            second = HttpServer(build_app(FakeSource()), listen=f"127.0.0.1:{server.port}")
            with pytest.raises(ListenError, match=rf"port {server.port} is in use.*ss -ltnp"):
                await second.start()

    run(test())


def test_an_address_of_another_machine() -> None:
    """An address that this machine does not have is a sentence too."""

    async def test() -> None:
        with pytest.raises(ListenError, match="does not have that address"):
            await HttpServer(build_app(FakeSource()), listen="192.0.2.1:0").start()

    run(test())


def test_an_unknown_name() -> None:
    """A host name that does not exist is named."""

    async def test() -> None:
        server = HttpServer(build_app(FakeSource()), listen="no-such-host.invalid:0")
        with pytest.raises(ListenError, match=r"no-such-host\.invalid:0: no such host name"):
            await server.start()

    run(test())


def test_stopping_frees_the_port_and_ends_idle_connections() -> None:
    """After stop() nothing listens, and a client that was idle is told at once."""

    async def test() -> None:
        server = HttpServer(build_app(FakeSource()), listen="127.0.0.1:0")
        await server.start()
        port = server.port
        async with connected(server) as client:
            await client.get("/metrics")
            await server.stop()
            assert await client.rest() == b""
        with socket.create_server(("127.0.0.1", port)):
            pass
        with pytest.raises(RuntimeError):
            _ = server.port

    run(test())


def test_stopping_lets_an_answer_finish() -> None:
    """A request that is being answered when the agent stops still gets its answer."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def test() -> int:
        async def slow(scope: object, receive: object, send: object) -> None:
            begun.set()
            await go_on.wait()
            await build_app(FakeSource())(scope, receive, send)  # type: ignore[arg-type]

        server = HttpServer(slow, listen="127.0.0.1:0")
        await server.start()
        async with connected(server) as client:
            asked = asyncio.create_task(client.get("/metrics"))
            await begun.wait()
            stopping = asyncio.create_task(server.stop(grace_seconds=10))
            await asyncio.sleep(0)
            go_on.set()
            answer = await asked
            await stopping
            return answer.status

    assert run(test()) == 200


def test_stopping_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """An answer that does not come to an end is cut after the grace, quietly."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(scope: object, receive: object, send: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def test() -> bytes:
        server = HttpServer(endless, listen="127.0.0.1:0")
        await server.start()
        async with connected(server) as client:
            await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await begun.wait()
            await server.stop(grace_seconds=0.05)
            assert ended.is_set()
            assert server.connections == 0
            return await client.rest()

    assert run(test()) == b""
    assert caplog.records == []


def test_a_stopped_server_leaves_no_task_behind() -> None:
    """Nothing of the server goes on in the caller's loop after stop(), whatever its clients do."""

    async def test() -> set[str]:
        before = asyncio.all_tasks()
        server = HttpServer(build_app(FakeSource()), listen="127.0.0.1:0")
        await server.start()
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        await server.stop()
        for _, writer in opened:
            writer.close()
        return {task.get_name() for task in asyncio.all_tasks() - before}

    assert run(test()) == set()
