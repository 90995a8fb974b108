"""DNS rebinding against a real server: every route, every way to write a request, every kind of address."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from pathlib import Path
from typing import Any, cast

import bcrypt
import pytest
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.hosts import CheckHost, HostNames
from gpuagent_exporters.http.web_config import WebConfig
from gpuagent_exporters.page.assets import ASSETS
from tests.exporters.test_openapi import READ
from tests.exporters.wire import ask, connected, run, serving
from tests.fakes.source import METRICS, FakeSource

NAMES = HostNames(frozenset({"localhost", "node7"}), frozenset({"example.org"}))

APP = build_app(FakeSource(), extra_routes=READ)
PATHS = sorted({re.sub(r"\{.*?\}", "page.css", route.path) for route in APP.routes if isinstance(route, Route)})
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "GARBAGE")


def test_the_routes_are_those_of_the_app() -> None:
    """The tests below cover what is served: metrics, health, page, assets and API."""
    assert "page.css" in ASSETS
    assert {"/", "/metrics", "/-/healthy", "/-/ready", "/assets/page.css", "/api/v1/status"} <= set(PATHS)
    assert len(PATHS) > 10


async def statuses(heads: list[bytes], app: ASGIApp = APP, **options: Any) -> list[int]:
    """What a server answers to each of several requests, by status; 0 for no answer."""
    found: list[int] = []
    async with serving(app, names=NAMES, **options) as server:
        for head in heads:
            async with connected(server) as client:
                await client.send(head)
                client.writer.write_eof()
                received = await client.rest()
            assert b"access-control" not in received.lower()
            found.append(int(received.split(b" ", 2)[1]) if received else 0)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_strangers_name_reads_nothing(method: str) -> None:
    """On loopback, no route and no error is answered under a stranger's name, whichever the method."""
    paths = [*PATHS, "/nowhere", "/-/", "/assets/nothing.js", "//metrics", "/%6detrics", "/metrics?x=/"]
    heads = [
        f"{method} {path} HTTP/1.1\r\nHost: evil.com\r\nOrigin: http://evil.com\r\n\r\n".encode() for path in paths
    ]

    assert set(run(statuses(heads))) == {421}


def test_no_app_is_asked_under_a_strangers_name() -> None:
    """The server checks before any app: a route of the future cannot forget it."""
    asked: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await APP(scope, receive, send)

    async def test() -> list[int]:
        async with serving(app, names=NAMES) as server:
            return [(await ask(server, "/metrics", host=host)).status for host in ("evil.com", "localhost")]

    assert run(test()) == [421, 200]
    assert asked == ["/metrics"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: localhost:9837\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.0\r\nHost: evil.com\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost:\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost, evil.com\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.com\r\nX-Forwarded-Host: localhost\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.com\r\nForwarded: host=localhost\r\n\r\n", 421),
        (b"GET http://evil.com/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        (b"GET http://localhost/metrics HTTP/1.1\r\nHost: evil.com\r\n\r\n", 421),
        (b"GET HTTPS://evil.com HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        (b"GET http://localhost@evil.com/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        (b"GET http://localhost\xff/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET evil.com/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        (b"CONNECT evil.com:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        (b"OPTIONS * HTTP/1.1\r\nHost: evil.com\r\n\r\n", 421),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.com\r\nContent-Length: 0\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: lo\xffcalhost\r\n\r\n", 421),
    ],
)
def test_every_way_to_name_a_host(head: bytes, status: int) -> None:
    """A host that is missing, doubled, in the target, or hidden behind another header is no way around."""
    assert run(statuses([head])) == [status]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("node7:9837", 200), ("node7.example.org:9837", 200), ("10.0.0.7:9837", 200), ("localhost", 200),
        ("evil.com:9837", 421), ("node7.evil.com", 421),
    ],
)  # fmt: skip
def test_an_open_address_serves_names_of_the_network(host: str, status: int) -> None:
    """Prometheus scrapes by the node's name or address; a page from outside the network has another name."""

    async def test() -> int:
        address = await asyncio.to_thread(own_address)
        async with serving(APP, listen="0.0.0.0:0", names=NAMES) as server:
            reader, writer = await asyncio.open_connection(address, server.port)
            writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            received = await reader.read()
            writer.close()
            await writer.wait_closed()
            return int(received.split(b" ", 2)[1])

    assert run(test()) == status


def own_address() -> str:
    """An address of this machine that is not loopback, found without a packet being sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has loopback alone")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("authenticated", [True, False])
@pytest.mark.parametrize("loopback", [True, False])
def test_a_password_protects_an_open_address(loopback: bool, authenticated: bool) -> None:
    """Behind TLS or a password an open address may have any name; on loopback the name is checked all the same."""
    answered: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answered.append("app")

    async def send(message: Any) -> None:
        answered.append(message.get("status", ""))

    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/metrics",
        "server": ("127.0.0.1" if loopback else "10.0.0.7", 9837),
        "headers": [(b"host", b"gpu7.corp.example.com")],
    }
    run(CheckHost(app, NAMES, lambda: authenticated)(scope, cast("Receive", None), send))

    assert (answered == ["app"]) is (authenticated and not loopback)
    assert (421 in answered) is not (authenticated and not loopback)


def test_a_strangers_name_cannot_guess_passwords(tmp_path: Path) -> None:
    """Under a stranger's name no password is checked: a page cannot use the browser to guess."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}}}")

    async def test() -> list[int]:
        async with serving(APP, names=NAMES, web_config=WebConfig(path)) as server:
            right = "Basic YWxpY2U6cmlnaHQ="
            hosts = ("evil.com", "localhost")
            return [(await ask(server, "/metrics", host=host, authorization=right)).status for host in hosts]

    assert run(test()) == [421, 200]


def test_the_operator_reads_which_name_was_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A scrape under an unknown name is in the log once, with what to do; strangers cannot fill it."""

    async def test() -> None:
        async with serving(APP, names=NAMES) as server:
            for number in range(20):
                for _ in range(2):
                    await ask(server, "/metrics", host=f"node{number}.{'x' * 200}.example.com")

    with caplog.at_level(logging.WARNING):
        run(test())

    assert len(caplog.messages) == 8
    assert caplog.messages[0].startswith("refused a request for host 'node0.xxx")
    assert caplog.messages[0].endswith("add it to http.allowed_hosts if it is this machine's")
    assert max(map(len, caplog.messages)) < 250


def test_the_control_socket_has_no_names(short_folder: Path) -> None:
    """No browser reaches a unix socket, and its clients name what they like."""
    path = short_folder / "control.sock"

    async def test() -> bytes:
        async with serving(build_app(FakeSource(), control=True), unix_socket=path, names=NAMES):
            return (await ask(path, "/metrics", host="evil.com")).body

    assert run(test()) == METRICS
