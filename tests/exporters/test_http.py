"""The routes, over a real connection."""

from __future__ import annotations

import asyncio
import gzip
import logging
import math
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.hosts import host_names
from tests.exporters.test_negotiation import PROMETHEUS_3
from tests.exporters.wire import Answer, ask, connected, run, serving
from tests.fakes.source import METRICS, OPENMETRICS, FakeSource, status_document


def answer(source: FakeSource, path: str, method: str = "GET", **headers: str) -> Answer:
    """What a server over `source` answers to one request."""

    async def test() -> Answer:
        async with serving(build_app(source)) as server:
            return await ask(server, path, method, **headers)

    return run(test())


def test_plain_text_is_what_everybody_understands() -> None:
    """Without a wish, /metrics is in Prometheus' text format, and says so."""
    got = answer(FakeSource(), "/metrics")

    assert (got.status, got.body) == (200, METRICS)
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_prometheus_gets_openmetrics() -> None:
    """What Prometheus 3 sends brings OpenMetrics, and caches are told that it depends on Accept."""
    got = answer(FakeSource(), "/metrics", accept=PROMETHEUS_3)

    assert got.body == OPENMETRICS
    assert got.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert "accept" in got.headers["vary"].lower().split(", ")


@pytest.mark.parametrize("size", [2_000, 300_000], ids=["inline", "in a thread"])
def test_gzip_when_asked(size: int) -> None:
    """A large exposition is compressed on request, small or large enough for a thread."""
    body = (METRICS * (size // len(METRICS) + 1))[:size]
    got = answer(FakeSource(metrics=body), "/metrics", accept_encoding="gzip")

    assert got.headers["content-encoding"] == "gzip"
    assert len(got.body) < size / 10
    assert gzip.decompress(got.body) == body


def test_no_gzip_against_the_clients_will() -> None:
    """`gzip;q=0` is a no."""
    got = answer(FakeSource(metrics=METRICS * 100), "/metrics", accept_encoding="gzip;q=0")

    assert "content-encoding" not in got.headers
    assert got.body == METRICS * 100


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/ready", "/api/v1/status"])
def test_head_is_get_without_a_body(path: str) -> None:
    """HEAD gives the same headers as GET, and the connection can be used again."""

    async def test() -> tuple[Answer, Answer]:
        async with serving() as server, connected(server) as client:
            return await client.get(path, "HEAD"), await client.get(path)

    head, get = run(test())

    assert head.status == get.status == 200
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.body))


def test_before_the_first_measurement() -> None:
    """EXP-06: the first scrape has a body, and not being ready says why."""
    source = FakeSource(ready=(False, "nothing has been measured yet"))

    assert answer(source, "/metrics").body == METRICS
    ready = answer(source, "/-/ready")
    assert (ready.status, ready.body) == (503, b"nothing has been measured yet\n")
    assert answer(source, "/-/healthy").status == 200


def test_unhealthy_says_why() -> None:
    """A supervisor sees 503, a person the reason."""
    got = answer(FakeSource(healthy=(False, "no tick for 30 s")), "/-/healthy")

    assert (got.status, got.body) == (503, b"no tick for 30 s\n")


def test_status_is_the_document() -> None:
    """/api/v1/status and /api/v1/processes are the source's documents as JSON."""
    source = FakeSource()

    status = answer(source, "/api/v1/status")
    assert status.headers["content-type"] == "application/json"
    assert status.json() == status_document()
    assert answer(source, "/api/v1/processes").json()["processes"][0]["pid"] == 4242


def test_broken_names_are_still_json() -> None:
    """A name that is no Unicode (a lone surrogate) cannot make the document invalid."""
    got = answer(FakeSource(status=status_document(source="\udcff\n")), "/api/v1/status")

    assert got.json()["source"] == "\udcff\n"


@pytest.mark.parametrize("path", ["/api/v1/status", "/api/v1/processes", "/"])
def test_commands_are_for_the_trusted(path: str) -> None:
    """On an open address nobody is told who runs what: no command lines, no users."""
    known = {"gpus": [1], "reason": "lost", "age_seconds": 9.0, "processes": status_document()["processes"]}
    source = FakeSource(status=status_document(last_known=known))

    async def test() -> Answer:
        async with serving(build_app(source, show_commands=False)) as server:
            return await ask(server, path)

    shown, hidden = answer(source, path).body, run(test()).body

    assert b"serve.py" in shown
    assert b"alice" in shown
    assert b"serve.py" not in hidden
    assert b"alice" not in hidden
    assert b"4242" in hidden


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/status", "/nowhere"])
def test_security_headers(path: str) -> None:
    """Browsers are told not to guess, not to keep, and to load nothing from elsewhere."""
    headers = answer(FakeSource(), path).headers

    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["date"].endswith(" GMT")


def test_unknown_path_says_what_there_is() -> None:
    """A 404 is JSON and names the paths that exist; a trailing slash is no redirect."""
    got = answer(FakeSource(), "/metrics/")

    assert got.status == 404
    assert "/api/v1/status, /assets/{name}, /metrics." in got.json()["message"]


def test_wrong_method_says_what_is_allowed() -> None:
    """A 405 is JSON and names the methods, in a stable order."""
    got = answer(FakeSource(), "/metrics", "POST")

    assert (got.status, got.headers["allow"]) == (405, "GET, HEAD")
    assert got.json()["error"] == "Method Not Allowed"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9837", 200),
        ("[::1]:9837", 200),
        ("localhost", 200),
        ("gpu.localhost:9837", 200),
        ("NODE1.example.org.", 200),
        ("node1", 200),
        ("evil.example.com", 421),
        ("node1.evil.example.com", 421),
        ("", 421),
    ],
)
def test_dns_rebinding_gets_nothing(host: str, status: int) -> None:
    """On loopback, a web page's own name for 127.0.0.1 reads no metrics, no API and no page."""

    async def test() -> tuple[list[int], int]:
        source = FakeSource()
        names = host_names("node1.example.org")
        async with serving(build_app(source), names=names) as server:
            paths = ("/api/v1/status", "/", "/metrics")
            return [(await ask(server, path, host=host)).status for path in paths], source.asked

    statuses, asked = run(test())

    assert statuses == [status] * 3
    assert bool(asked) is (status == 200)


def test_a_fault_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A source that raises costs a 500 and one log record, not one for each scrape."""

    async def test() -> list[Answer]:
        source = FakeSource(metrics=RuntimeError("no catalogue"))
        async with serving(build_app(source)) as server, connected(server) as client:
            return [await client.get("/metrics") for _ in range(3)]

    with caplog.at_level(logging.ERROR):
        got = run(test())

    assert [each.status for each in got] == [500, 500, 500]
    assert "no catalogue" not in got[0].body.decode()
    assert len(caplog.records) == 1
    assert "no catalogue" in (caplog.text)


def test_nan_is_a_fault_not_bad_json() -> None:
    """NaN is no JSON: a document that has it is refused here, not in every client."""
    got = answer(FakeSource(status=status_document(age_seconds=math.nan)), "/api/v1/status")

    assert got.status == 500
    assert got.json()["error"] == "Internal Server Error"


def test_extra_routes_are_served_and_named() -> None:
    """The control socket's commands are further routes of the same app."""

    async def pause(_: Request) -> PlainTextResponse:
        return PlainTextResponse("paused")

    async def test() -> tuple[Answer, Answer]:
        route = Route("/api/v1/pause", pause, methods=["POST"])
        async with serving(build_app(FakeSource(), extra_routes=[route])) as server:
            return await ask(server, "/api/v1/pause", "POST"), await ask(server, "/nowhere")

    paused, nowhere = run(test())

    assert paused.body == b"paused"
    assert "/api/v1/pause" in nowhere.json()["message"]


def test_a_crowd_of_scrapes_leaves_the_loop_its_turns() -> None:
    """Between any two renderings the loop runs, so that a tick is never behind a queue of scrapes."""

    class Counting(FakeSource):
        turns = 0
        turn_of: list[int]

        def metrics(self, openmetrics: bool) -> bytes:
            self.turn_of.append(self.turns)
            return super().metrics(openmetrics)

    async def count(source: Counting) -> None:
        while True:
            source.turns += 1
            await asyncio.sleep(0)

    async def test() -> list[int]:
        source = Counting()
        source.turn_of = []
        ticking = asyncio.create_task(count(source))
        async with serving(build_app(source)) as server, AsyncExitStack() as stack:
            crowd = [await stack.enter_async_context(connected(server)) for _ in range(20)]
            for client in crowd:
                await client.get("/-/healthy")
            for client in crowd:  # nothing is awaited here: the server gets them all at once
                client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for client in crowd:
                assert (await client.answer()).status == 200
        ticking.cancel()
        return source.turn_of

    turns = run(test())

    assert len(turns) == len(set(turns)) == 20
