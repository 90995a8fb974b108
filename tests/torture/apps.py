"""Troubles at the socket for apps: too many, too much, nonsense, lies."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from tests.fakes.embedded import FakeApp, hello, stats
from tests.integration.waiting import alongside
from tests.torture.frames import any_frame
from tests.torture.stage import Stage
from tests.torture.trouble import Cost, Trouble, rises

# The crowd is of another user where that can be had: what this user does must not concern it then.
_SAME_USER = frozenset() if os.getuid() == 0 else frozenset({Cost.APPS})


@contextmanager
def _thousand(stage: Stage) -> Iterator[None]:
    """Connections that say nothing: one process has one place, which its newest connection takes."""
    with ExitStack() as stack:
        for _ in range(1000):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(2)
            with suppress(OSError):
                one.connect(str(stage.client_socket))
        yield


def _again_and_again(one: Callable[[Path, random.Random], None]) -> Callable[[Stage], AbstractContextManager[None]]:
    """Something that is done to the socket for as long as it lasts."""

    @contextmanager
    def on(stage: Stage) -> Iterator[None]:
        ended = threading.Event()
        chance = random.Random(2)

        def run() -> None:
            while not ended.wait(0.005):
                with suppress(OSError):
                    one(stage.client_socket, chance)

        with alongside(run, ended, "an app that misbehaves"):
            yield

    return on


def _garbage(path: Path, chance: random.Random) -> None:
    with FakeApp(path, 1) as app:
        app.send(*(any_frame(chance) for _ in range(20)))


def _oversize(path: Path, _: random.Random) -> None:
    with FakeApp(path, 1) as app:
        app.send(b"x" * 2**20)


def _another_version(path: Path, chance: random.Random) -> None:
    with FakeApp(path, 1) as app:
        app.send(hello(v=chance.choice((2, 99, 2**63 - 1, -1))))
        app.receive()


def _a_false_pid(path: Path, chance: random.Random) -> None:
    with FakeApp(path, 1) as app:
        app.send(hello(pid=chance.choice((1, os.getppid(), 2**31 - 1))))
        assert app.receive().get("t") != "welcome"


def _large_numbers(path: Path, chance: random.Random) -> None:
    """The edges of 32 bits, of what a double can tell apart, and of 64 bits."""
    edges = [edge + step for edge in (2**31, 2**32, 2**53, 2**63) for step in (-1, 0, 1)]
    with FakeApp(path, 1) as app:
        app.meet()
        device = {"uuid": "GPU-1", "index": 0, "allocated_bytes": chance.choice(edges)}
        app.send(stats({**device, "reserved_bytes": chance.choice(edges), "ooms": chance.choice(edges)}))
        app.receive()


@contextmanager
def _stalled(stage: Stage) -> Iterator[None]:
    """Apps that do not read what they are told."""
    with ExitStack() as stack:
        for _ in range(50):
            app = stack.enter_context(FakeApp(stage.client_socket, 2))
            with suppress(OSError):
                app.send(hello(), stats(), stats())
        yield


ALL = (
    Trouble(
        "a thousand connections",
        _thousand,
        _SAME_USER,
        sign=rises('gpuagent_client_connections_dropped_total{reason="replaced"}'),
    ),
    Trouble(
        "apps that send garbage",
        _again_and_again(_garbage),
        _SAME_USER,
        sign=rises('gpuagent_client_connections_dropped_total{reason="malformed"}'),
    ),
    Trouble("apps that send a mebibyte in a line", _again_and_again(_oversize), _SAME_USER),
    Trouble("apps of another version", _again_and_again(_another_version), _SAME_USER),
    Trouble(
        "apps that lie about their pid",
        _again_and_again(_a_false_pid),
        _SAME_USER,
        sign=rises('gpuagent_client_connections_refused_total{reason="pid"}'),
    ),
    Trouble("apps with numbers at the edges", _again_and_again(_large_numbers), _SAME_USER),
    Trouble("apps that do not read", _stalled, _SAME_USER),
)
