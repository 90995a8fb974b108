"""What one client can cost: time, memory, connections. Every wait here ends with the server's act."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.limits import HttpLimits
from tests.exporters.wire import Answer, ask, connected, run, serving, until
from tests.fakes.source import METRICS, FakeSource

HASTY = HttpLimits(request_timeout_seconds=0.05)
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /metrics HTTP/1.1\r\nHost: loc", b"HTTP/1.1 408 Request Timeout\r\n"),
        (REQUEST[:-2], b"HTTP/1.1 408 Request Timeout\r\n"),
    ],
    ids=["nothing", "half a header", "all but the empty line"],
)
def test_a_half_sent_request_is_given_up(sent: bytes, answer: bytes) -> None:
    """Who does not finish a request in time is disconnected; uvicorn alone would wait for ever."""

    async def test() -> bytes:
        async with serving(limits=HASTY) as server, connected(server) as client:
            await client.send(sent)
            return await client.rest()

    assert run(test()).startswith(answer)


def test_a_trickle_does_not_buy_time() -> None:
    """One byte now and then does not keep a request open: the time is for all of it."""

    async def test() -> None:
        limits = HttpLimits(request_timeout_seconds=0.3)
        async with serving(limits=limits) as server, connected(server) as client:
            closed = asyncio.create_task(client.rest())
            for byte in REQUEST * 1000:
                if closed.done():
                    return
                client.writer.write(bytes([byte & 0x7F or 0x41]).replace(b"\r", b"A"))
                await asyncio.wait({closed}, timeout=0.01)
            pytest.fail("still connected")

    run(test())


def test_a_half_sent_second_request_is_given_up() -> None:
    """On a connection that was used before, the time runs from the first byte of the next request."""

    async def test() -> bytes:
        async with serving(limits=HASTY) as server, connected(server) as client:
            assert (await client.get("/metrics")).status == 200
            await client.send(REQUEST[:20])
            return await client.rest()

    assert run(test()) == b""


def test_a_half_sent_body_is_given_up() -> None:
    """A body that is announced and does not come costs no more than a header that does not come."""

    async def never(scope: object, receive: object, send: object) -> None:
        await asyncio.Event().wait()

    async def test() -> bytes:
        async with serving(never, limits=HASTY) as server, connected(server) as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12345")
            return await client.rest()

    assert run(test()) == b""


def test_an_idle_connection_stays_and_then_goes() -> None:
    """Between scrapes a connection may be idle longer than a request may take, but not for ever."""

    async def test() -> None:
        limits = HttpLimits(request_timeout_seconds=0.05, idle_timeout_seconds=0.5)
        async with serving(limits=limits) as server, connected(server) as client:
            await client.get("/metrics")
            await asyncio.wait({asyncio.create_task(asyncio.sleep(0.15))})  # past the request's time
            assert (await client.get("/metrics")).status == 200
            assert await client.rest() == b""

    run(test())


def reluctant(port: int, room_bytes: int = 1) -> socket.socket:
    """A client that has asked for /metrics twice and has little room for the answers."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
    client.connect(("127.0.0.1", port))
    client.sendall(REQUEST * 2)
    return client


def test_a_slow_reader_is_cut_and_holds_up_nobody() -> None:
    """Who asks and does not read is disconnected in time; meanwhile others are served."""

    async def test() -> tuple[int, int]:
        source = FakeSource(metrics=METRICS * (16 * MEBIBYTE // len(METRICS)))
        limits = HttpLimits(write_timeout_seconds=0.3)
        async with serving(build_app(source), limits=limits) as server:
            slow = await asyncio.to_thread(reluctant, server.port)
            with slow:
                await until(lambda: bool(source.asked))
                assert (await ask(server, "/-/healthy")).status == 200
                await until(lambda: not server.connections)
                slow.setblocking(False)
                received = 0
                try:
                    while piece := slow.recv(MEBIBYTE):
                        received += len(piece)
                except (ConnectionError, BlockingIOError):
                    pass
                return received, source.asked

    received, asked = run(test())

    assert received < 16 * MEBIBYTE
    assert asked == 1


def test_a_reader_who_sips_is_cut_too() -> None:
    """Taking a piece now and then does not set the clock back: the time is for the whole answer."""
    large = METRICS * (64 * MEBIBYTE // len(METRICS))

    async def sip(slow: socket.socket) -> int:
        """Read some 10 MB/s, so that pieces drain all the time, and the whole takes seconds."""
        loop, received = asyncio.get_running_loop(), 0
        try:
            while piece := await loop.sock_recv(slow, 65536):
                received += len(piece)
                await asyncio.sleep(0.005)
        except ConnectionError:
            pass
        return received

    async def test() -> int:
        limits = HttpLimits(write_timeout_seconds=0.3)
        async with serving(build_app(FakeSource(metrics=large)), limits=limits) as server:
            with await asyncio.to_thread(reluctant, server.port, 65536) as slow:
                slow.setblocking(False)
                return await sip(slow)

    assert 65536 < run(test()) < len(large)


def test_a_patient_reader_gets_it_all() -> None:
    """A large answer in many pieces arrives whole, and the connection serves the next request."""
    body = bytes(range(256)) * (3 * MEBIBYTE // 256) + b"end"

    async def test() -> list[Answer]:
        async with serving(build_app(FakeSource(metrics=body))) as server, connected(server) as client:
            return [await client.get("/metrics") for _ in range(2)]

    assert [answer.body == body for answer in run(test())] == [True, True]


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131072, 131073])
def test_pieces_add_up(size: int) -> None:
    """Splitting an answer loses and repeats nothing at the edges of a piece."""
    body = (b"0123456789" * (size // 10 + 1))[:size]

    async def test() -> Answer:
        async with serving(build_app(FakeSource(metrics=body))) as server:
            return await ask(server, "/metrics")

    assert run(test()).body == body


def test_a_flood_of_connections_is_bounded() -> None:
    """Of 200 clients that send nothing 64 are kept, the newest; the app hears of none; then all is as before."""

    async def test() -> tuple[int, list[bytes | BaseException], int]:
        source = FakeSource()
        async with serving(build_app(source)) as server:
            opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
            ended = await asyncio.gather(*(reader.read() for reader, _ in opened[:-64]), return_exceptions=True)
            connections = server.connections
            for _, writer in opened:
                writer.close()
            await until(lambda: not server.connections)
            assert (await ask(server, "/metrics")).status == 200
            return connections, ended, source.asked

    connections, ended, asked = run(test())

    assert connections == 64
    assert all(answer == b"" or isinstance(answer, ConnectionResetError) for answer in ended)
    assert asked == 1


def test_the_longest_idle_makes_room() -> None:
    """Connections that nobody uses at the moment do not lock a newcomer out."""

    async def test() -> None:
        limits = HttpLimits(max_connections=2)
        async with serving(limits=limits) as server, connected(server) as first, connected(server) as second:
            await first.get("/metrics")
            await second.get("/metrics")
            await first.get("/metrics")
            assert (await ask(server, "/metrics")).status == 200
            assert await second.rest() == b""
            assert (await first.get("/metrics")).status == 200

    run(test())


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 30_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"a" * 20_000, b"431"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
    ],
    ids=["TLS to plain", "two hosts", "large header", "long path", "HTTP/2"],
)
def test_garbage_is_answered_and_ended(sent: bytes, answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """What is no request costs its sender the connection, and nobody a line in the log."""

    async def test() -> bytes:
        async with serving() as server:
            async with connected(server) as client:
                await client.send(sent)
                received = await client.rest()
            assert (await ask(server, "/metrics")).status == 200
            return received

    with caplog.at_level(logging.INFO):
        assert run(test()).startswith(b"HTTP/1.1 " + answer)
    assert caplog.records == []


def test_garbage_in_the_middle_ends_the_exchange(caplog: pytest.LogCaptureFixture) -> None:
    """A body that breaks its own framing while it is being answered is no reason for a traceback."""
    begun = asyncio.Event()

    async def slow(scope: object, receive: object, send: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def test() -> bytes:
        async with serving(slow) as server, connected(server) as client:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            await client.send(head)
            await begun.wait()
            await client.send(b"not a chunk size\r\n")
            return await client.rest()

    with caplog.at_level(logging.INFO):
        assert run(test()) == b""
    assert caplog.records == []


@pytest.mark.parametrize(
    ("framing", "status"),
    [
        (b"Content-Length: 100000\r\n\r\n", b"413"),
        (b"Content-Length: 60000\r\n\r\n", b"200"),
        (b"Transfer-Encoding: chunked\r\n\r\n186a0\r\n", b"200"),
    ],
    ids=["too large", "announced", "chunked"],
)
def test_an_unwanted_body_ends_the_connection(framing: bytes, status: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A request that nobody reads the body of is answered, and the rest of it is not awaited."""

    async def test() -> bytes:
        patient = HttpLimits(request_timeout_seconds=1000)
        async with serving(limits=patient) as server, connected(server) as client:
            await client.send(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n" + framing)
            return await client.rest()

    assert run(test()).split(b" ")[1] == status
    assert caplog.records == []


@pytest.mark.parametrize(("size", "status"), [(65536, 200), (65537, 413)])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_read_is_bounded(size: int, status: int, chunked: bool) -> None:
    """A route that reads its body gets at most 64 KiB, however they are framed."""

    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    async def test() -> Answer:
        app = build_app(FakeSource(), extra_routes=[Route("/echo", echo, methods=["POST"])])
        async with serving(app) as server, connected(server) as client:
            framing, body = f"Content-Length: {size}\r\n\r\n", b"x" * size
            if chunked:
                framing = "Transfer-Encoding: chunked\r\n\r\n"
                body = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
            client.writer.write(f"POST /echo HTTP/1.1\r\nHost: localhost\r\n{framing}".encode())
            client.writer.write(body)
            return await client.answer()

    answer = run(test())

    assert answer.status == status
    assert (answer.body == str(size).encode()) is (status == 200)


def test_pipelined_requests_are_all_answered() -> None:
    """Requests that were sent ahead are answered in their order."""

    async def test() -> list[int]:
        async with serving() as server, connected(server) as client:
            await client.send(REQUEST + REQUEST.replace(b"/metrics", b"/nowhere") + REQUEST)
            return [(await client.answer()).status for _ in range(3)]

    assert run(test()) == [200, 404, 200]


@pytest.mark.parametrize("requests", [1, 3])
def test_who_closes_after_asking_is_answered(requests: int) -> None:
    """`printf 'GET ...' | nc -N`: a client that has said all it will say still gets every answer."""

    async def test() -> bytes:
        async with serving() as server, connected(server) as client:
            client.writer.write(REQUEST * requests)
            client.writer.write_eof()
            return await client.rest()

    assert run(test()).count(METRICS) == requests


def test_an_upgrade_is_ignored() -> None:
    """Nobody gets a WebSocket here, and asking for one is no fault."""

    async def test() -> Answer:
        async with serving() as server:
            return await ask(server, "/metrics", connection="Upgrade", upgrade="websocket")

    assert run(test()).status == 200
