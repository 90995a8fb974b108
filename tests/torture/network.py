"""Troubles of the network: receivers that fail in their ways, and clients over HTTP that do what they should not."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial

from tests.alerts.notify.receivers.sink import Reply
from tests.integration.waiting import alongside
from tests.torture.receivers import replying
from tests.torture.stage import Stage
from tests.torture.trouble import Cost, Trouble, rises

_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CROWDED = frozenset({Cost.TCP})
_OTHER = frozenset({Cost.OTHER})


def _replies(reply: Reply) -> Callable[[Stage], AbstractContextManager[None]]:
    return lambda stage: replying(stage.other, reply)


def _receiver(name: str, reply: Reply, *, refused_for_good: bool = False) -> Trouble:
    sign = None if reply.trickle_seconds else rises('gpuagent_notification_failures_total{receiver="other"}')
    return Trouble(f"the receiver {name}", _replies(reply), _OTHER, refused_for_good, sign=sign)


@contextmanager
def connections(port: int, count: int, first: bytes, *, receive_bytes: int = 0) -> Iterator[list[socket.socket]]:
    """So many to the agent's TCP side, each having sent something; some may have been refused."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            if receive_bytes:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            one.settimeout(5)
            with suppress(OSError):
                one.connect(("127.0.0.1", port))
                one.sendall(first)
                made.append(one)
        yield made


def _thousand_scrapers(stage: Stage) -> AbstractContextManager[object]:
    return connections(stage.agent.port, 1000, _REQUEST)


@contextmanager
def _slow_readers(stage: Stage) -> Iterator[None]:
    """They take a byte of their answer now and then."""
    ended = threading.Event()

    def read(readers: list[socket.socket]) -> None:
        while not ended.wait(0.05):
            for one in readers:
                with suppress(OSError):
                    one.recv(1, socket.MSG_DONTWAIT)

    with (
        connections(stage.agent.port, 60, _REQUEST * 20, receive_bytes=4096) as readers,
        alongside(partial(read, readers), ended, "slow readers"),
    ):
        yield


def _half_open(stage: Stage) -> AbstractContextManager[object]:
    return connections(stage.agent.port, 200, _REQUEST[:20])


@contextmanager
def _garbage(stage: Stage) -> Iterator[None]:
    """Bytes that are no HTTP, and HTTP that nobody would send, over both doors."""
    chance = random.Random(1)
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.002):
            with suppress(OSError), _either_door(stage, chance) as one:
                one.settimeout(0.5)
                one.sendall(garbage_request(chance))
                select.select([one], [], [], 0.05)

    with alongside(run, ended, "garbage"):
        yield


def _either_door(stage: Stage, chance: random.Random) -> socket.socket:
    if chance.random() < 0.5:
        return socket.create_connection(("127.0.0.1", stage.agent.port), timeout=1)
    one = socket.socket(socket.AF_UNIX)
    try:
        one.connect(str(stage.agent.control_socket))
    except OSError:
        one.close()
        raise
    return one


def garbage_request(chance: random.Random) -> bytes:
    """Something that may look like a request."""
    pieces = (
        _REQUEST, b"\0" * 100, b"\xff\xfe", b"\r\n" * 50, b"GET", b" /" + b"a" * 20_000, b" HTTP/9.9\r\n",
        b"POST /api/v1/silences HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", b"Host: \r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\n",
        b"GET /api/v1/history?gpu=%ff&range=1e999 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"DELETE /api/v1/silences/x HTTP/1.1\r\nHost: localhost\r\n\r\n", chance.randbytes(64),
    )  # fmt: skip
    return b"".join(chance.choice(pieces) for _ in range(chance.randint(1, 4)))


@contextmanager
def _comers_and_goers(stage: Stage) -> Iterator[None]:
    """Connections that are reset as soon as they are made."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", stage.agent.port), timeout=1) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            time.sleep(0.002)

    with alongside(run, ended, "comers and goers"):
        yield


ALL = (
    _receiver("is down", Reply(drop="before")),
    _receiver("breaks off when it has read", Reply(drop="after")),
    _receiver("answers 500", Reply(500)),
    _receiver("wants fewer messages", Reply(429, {"Retry-After": "1"})),
    _receiver("answers byte by byte", Reply(500, trickle_seconds=0.2)),
    _receiver("answers nothing in time", Reply(500, trickle_seconds=3600)),
    _receiver("redirects", Reply(302, {"Location": "http://169.254.169.254/"}), refused_for_good=True),
    _receiver("answers 4 GiB", Reply(500, endless=True)),
    _receiver("refuses for good", Reply(400), refused_for_good=True),
    Trouble("a thousand scrapers", _thousand_scrapers, _CROWDED),
    Trouble("slow readers", _slow_readers, _CROWDED, least_seconds=3.0),
    Trouble("half-open connections", _half_open, _CROWDED, least_seconds=2.0),
    Trouble("garbage instead of HTTP", _garbage, _CROWDED),
    Trouble("connections that come and go", _comers_and_goers, _CROWDED),
)
