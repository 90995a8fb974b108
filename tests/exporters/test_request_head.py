"""Heads that two servers may read in two ways, and heads that are too large: against a real server."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from contextlib import suppress
from pathlib import Path
from random import Random

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.limits import HttpLimits, RequestHeadError, StrictConnection, check_head
from tests.exporters.wire import connected, run, serving
from tests.fakes.source import FakeSource

LIMIT = HttpLimits().max_header_bytes
HOST = b"Host: localhost\r\n"
FAULTY = {
    "length and chunked": (b"Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
    "chunked and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 5", 400),
    "zero length and chunked": (b"Content-Length: 0\r\ntransfer-encoding: chunked", 400),
    "the same length twice": (b"Content-Length: 5\r\nContent-Length: 5", 400),
    "two lengths": (b"Content-Length: 5\r\nContent-Length: 6", 400),
    "a list of lengths": (b"Content-Length: 5, 5", 400),
    "a signed length": (b"Content-Length: +5", 400),
    "a negative length": (b"Content-Length: -5", 400),
    "a hexadecimal length": (b"Content-Length: 0x5", 400),
    "no length": (b"Content-Length:", 400),
    "an endless length": (b"Content-Length: " + b"9" * 100, 400),
    "gzip": (b"Transfer-Encoding: gzip", 400),
    "gzip, then chunked": (b"Transfer-Encoding: gzip, chunked", 400),
    "chunked twice": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
    "chunked, then identity": (b"Transfer-Encoding: chunked, identity", 400),
    "chunked with a tab": (b"Transfer-Encoding: \x0bchunked", 400),
    "folded": (b"X: a\r\n b", 400),
    "folded with a tab": (b"X: a\r\n\tb", 400),
    "folded length": (b"Transfer-Encoding:\r\n chunked", 400),
    "space before the colon": (b"Content-Length : 5", 400),
    "tab before the colon": (b"Transfer-Encoding\t: chunked", 400),
    "space before the name": (b" Content-Length: 5", 400),
    "no colon": (b"Content-Length 5", 400),
    "no name": (b": 5", 400),
    "bare LF": (b"X: a\nContent-Length: 5", 400),
    "bare CR": (b"X: a\rContent-Length: 5", 400),
    "CR CR LF": (b"X: a\r", 400),
    "NUL in a value": (b"X: a\x00b", 400),
    "NUL in a name": (b"X\x00: a", 400),
    "escape in a value": (b"X: \x1b[31m", 400),
    "too many": (b"\r\n".join([b"X: a"] * 100), 431),
}
LINES = [
    b"GET  /metrics HTTP/1.1", b"GET /metrics", b"GET /metrics HTTP/1.1 ", b" GET /metrics HTTP/1.1", b"GET /me\ttrics",
    b"GET /metrics\x00 HTTP/1.1", b"GET /metr\xc3\xa4cs HTTP/1.1", b"GET /metrics http/1.1", b"GET /metrics HTTP/11",
    b"G(T /metrics HTTP/1.1", b"/metrics HTTP/1.1", b"", b"\r\nGET /metrics HTTP/1.1", b"GET /metrics\nHTTP/1.1",
]  # fmt: skip


async def echo(request: Request) -> PlainTextResponse:
    """Tell how much body there was."""
    return PlainTextResponse(f"read {len(await request.body())}")


APP = build_app(FakeSource(), extra_routes=[Route("/echo", echo, methods=["POST"])])


async def exchange(to: object, *pieces: bytes) -> bytes:
    """Send pieces one after another, and return all that comes back until the server closes."""
    async with connected(to) as client:  # type: ignore[arg-type]
        for piece in pieces:
            await client.send(piece)
        return await client.rest()


@pytest.mark.parametrize("door", ["tcp", "control socket"])
def test_a_head_that_can_be_read_in_two_ways_is_refused(
    short_folder: Path, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No such request is answered by the app, what follows it is no request, and the connection is closed."""
    path = short_folder / "control.sock"
    options = {"listen": "127.0.0.1:0"} if door == "tcp" else {"unix_socket": path}
    smuggled = b"5\r\nhello\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"

    async def test() -> dict[str, bytes]:
        async with serving(APP, **options) as server:
            to = server if door == "tcp" else path
            heads = {name: b"POST /echo HTTP/1.1\r\n" + HOST + fields for name, (fields, _) in FAULTY.items()}
            return {name: await exchange(to, head + b"\r\n\r\n" + smuggled) for name, head in heads.items()}

    with caplog.at_level(logging.INFO):
        answers = run(test())

    for name, answer in answers.items():
        assert answer.count(b"HTTP/1.1 ") == 1, name
        assert answer.startswith(b"HTTP/1.1 %d " % FAULTY[name][1]), name
        assert b"\r\nconnection: close\r\n" in answer, name
        assert b'{"error":' in answer, name
    assert caplog.records == []


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_request_line_is_refused(line: bytes) -> None:
    """Nothing is guessed about a first line that is not METHOD TARGET VERSION."""

    async def test() -> bytes:
        async with serving(APP) as server:
            return await exchange(server, line + b"\r\n" + HOST + b"\r\n")

    assert run(test()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "version", [b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"HTTP/3.0"], ids=["0.9", "2.0", "1.2", "3.0"]
)
def test_other_versions_are_not_spoken(version: bytes) -> None:
    """A version with rules of its own is named as what it is: not supported."""
    with pytest.raises(RequestHeadError) as caught:
        check_head(b"GET / " + version + b"\r\n\r\n", max_headers=10)

    assert caught.value.status == 505


def test_http_1_0_has_no_chunks() -> None:
    """A proxy that speaks HTTP/1.0 cannot have meant them (RFC 9112, section 6.1)."""

    async def test() -> bytes:
        async with serving(APP) as server:
            return await exchange(
                server, b"POST /echo HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            )

    assert run(test()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("fields", "body", "answer"),
    [
        (b"Content-Length: 5", b"hello", b"read 5"),
        (b"Content-Length: 0", b"", b"read 0"),
        (b"X: y", b"", b"read 0"),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n", b"read 5"),
        (b"transfer-encoding:\tCHUNKED \t", b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n", b"read 5"),
        (b"X: a\tb\xff\xe4", b"", b"read 0"),
        (b"X:", b"", b"read 0"),
        (b"\r\n".join([b"X: a"] * 99), b"", b"read 0"),
    ],
)
def test_what_is_plain_is_read(fields: bytes, body: bytes, answer: bytes) -> None:
    """Whatever has one meaning is served."""

    async def test() -> bytes:
        async with serving(APP) as server, connected(server) as client:
            await client.send(b"POST /echo HTTP/1.1\r\n" + HOST + fields + b"\r\n\r\n" + body)
            return (await client.answer()).body

    assert run(test()) == answer


def test_nothing_is_read_behind_chunks() -> None:
    """After chunks, which have lenient forms, the connection ends: what looks like a request there is none."""
    chunked = b"POST /echo HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\n"

    async def test() -> bytes:
        async with serving(APP) as server:
            return await exchange(server, chunked + b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n")

    answer = run(test())

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def head_of(size: int) -> bytes:
    """A request whose head has `size` bytes."""
    start = b"GET /metrics HTTP/1.1\r\n" + HOST + b"X: "
    return start + b"y" * (size - len(start) - 4) + b"\r\n\r\n"


def status_in_pieces(port: int, sent: bytes, piece_bytes: int) -> int:
    """Send in pieces, each a segment of its own, until the server has had enough; return the status of its answer."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):
            for start in range(0, len(sent), piece_bytes):
                client.sendall(sent[start : start + piece_bytes])
        return int(client.recv(12).split(b" ")[1])


@pytest.mark.parametrize(("size", "status"), [(LIMIT, 200), (LIMIT + 1, 431), (20_000, 431), (60_000, 431)])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 4096, 4097, 100_000])
def test_the_limit_of_a_head_is_exact(size: int, status: int, piece_bytes: int) -> None:
    """A head of 16 KiB is served and one with a byte more is not, however it is cut into segments."""

    async def test() -> int:
        async with serving(APP, limits=HttpLimits(request_timeout_seconds=60)) as server:
            return await asyncio.to_thread(status_in_pieces, server.port, head_of(size), piece_bytes)

    assert run(test()) == status


def test_a_long_request_line_counts() -> None:
    """The limit is for request line and headers together."""

    async def test() -> list[bytes]:
        async with serving(APP) as server:
            tail = b" HTTP/1.1\r\n" + HOST + b"\r\n"
            sizes = (LIMIT, LIMIT + 1)
            return [await exchange(server, b"GET /".ljust(size - len(tail), b"a") + tail + b"\n") for size in sizes]

    assert [answer.split(b" ")[1] for answer in run(test())] == [b"404", b"431"]


def test_the_limit_is_for_each_request() -> None:
    """Requests that were sent ahead do not count together, and a large one behind a small one is refused."""

    async def test() -> bytes:
        async with serving(APP) as server:
            return await exchange(server, head_of(LIMIT) * 3 + head_of(LIMIT + 1))

    answer = run(test())

    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"200", b"431"]


# Any head

WORDS = [
    b"Content-Length", b"Transfer-Encoding", b"Host", b"X", b": ", b":", b" ", b"\t", b"5", b"0", b"+5", b"chunked",
    b"gzip", b",", b"\r\n", b"\n", b"\r", b"\r\n ", b"\x00", b"\x0b", b"\xff", b"identity", b"HTTP/1.1",
]  # fmt: skip
FIELDS = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=8).map(b"".join),
    st.sampled_from([b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Host: localhost", b"X: y"]),
)


@settings(max_examples=300)
@given(fields=st.lists(FIELDS, max_size=5), cuts=st.lists(st.integers(1, 60), max_size=6))
def test_no_head_is_both(fields: list[bytes], cuts: list[int]) -> None:
    """Any head, however cut, gives one verdict; what passes has one framing, and h11 reads no other headers in it."""
    head = b"POST /echo HTTP/1.1\r\n" + HOST + b"".join(field + b"\r\n" for field in fields) + b"\r\n"
    whole, cut = (verdict(head, at) for at in ([], cuts))

    assert whole == cut
    if isinstance(whole, h11.Request):
        names = [name for name, _ in whole.headers]
        assert not {b"content-length", b"transfer-encoding"} <= set(names)
        assert names.count(b"content-length") <= 1
        end = head.index(b"\r\n\r\n")
        assert len(names) == head[:end].count(b"\n")
        assert b"\x00" not in head[:end]


def verdict(head: bytes, cuts: list[int]) -> h11.Request | str:
    """What a connection makes of a head that arrives in pieces: the request, or "refused"."""
    connection = StrictConnection(max_head_bytes=LIMIT, max_headers=100)
    start = 0
    for size in [*cuts, len(head)]:
        piece, start = head[start : start + size], start + size
        if not piece:
            break
        connection.receive_data(piece)
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return "refused"
        if isinstance(event, h11.Request):
            return event
    return "refused"


def ends_no_head(field: bytes) -> bool:
    """Whether a line is followed by others for certain."""
    return not re.search(rb"\n\r?\n", b"\n" + field + b"\r\n")


@settings(max_examples=60)
@given(
    fields=st.lists(FIELDS.filter(ends_no_head), max_size=4),
    body=st.sampled_from([b"", b"5\r\nhello\r\n0\r\n\r\n", b"hello"]),
    order=st.randoms(use_true_random=False),
)
def test_both_framings_are_never_answered(fields: list[bytes], body: bytes, order: Random) -> None:
    """Whatever stands around them, Content-Length beside Transfer-Encoding is no success, and the server closes."""
    lines = [*fields, b"Content-Length: 5", b"Transfer-Encoding: chunked"]
    order.shuffle(lines)
    head = b"POST /echo HTTP/1.1\r\n" + HOST + b"\r\n".join(lines) + b"\r\n\r\n"

    async def test() -> bytes:
        async with serving(APP) as server:
            return await exchange(server, head + body)

    assert run(test()).split(b" ")[1] == b"400"


@settings(max_examples=60)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_answered_or_closed(sent: bytes, with_end: bool) -> None:
    """No bytes raise an exception in the server, and it serves the next client."""
    faults: list[object] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with serving(APP) as server:
            async with connected(server) as client:
                await client.send(sent + (b"\r\n\r\n" if with_end else b""))
                client.writer.write_eof()
                await client.rest()
            assert (await exchange(server, b"GET /metrics HTTP/1.0\r\n" + HOST + b"\r\n")).startswith(b"HTTP/1.1 200 ")

    run(test())

    assert faults == []
