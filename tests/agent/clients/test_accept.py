"""Accepting connections: what it may cost, and what happens when there is no descriptor for one more."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from pathlib import Path

import pytest

from gpuagent.clients.admission import Acceptor, CpuShare
from gpuagent.clients.registry import MOST_WAITING
from gpuagent.clients.server import limits_of
from gpuagent.config.agent import Clients
from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent_exporters.http.listeners import UnixListener, open_unix
from tests.agent.clients.parts import until


class Work:
    """A share of a core, and work that takes as long as a test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.used = 0.0
        self.share = CpuShare(0.2, 1.0, now=self.clock.now, used=lambda: self.used)

    def do(self, seconds: float) -> None:
        """Compute for so long."""
        with self.share.spending():
            self.used += seconds


def test_a_burst_of_work_is_free_and_more_is_waited_for() -> None:
    """A second at once; then five seconds of pause for each second of work."""
    work = Work()
    work.do(1.0)
    assert work.share.wait_seconds() == 0
    work.do(0.2)
    assert work.share.wait_seconds() == pytest.approx(1.0)
    work.clock.advance(1.0)
    assert work.share.wait_seconds() == 0


def test_unused_share_is_not_saved_beyond_a_burst() -> None:
    """A quiet night does not pay for a flood in the morning."""
    work = Work()
    work.clock.advance(86400)
    work.do(1.2)
    assert work.share.wait_seconds() == pytest.approx(1.0)


def test_work_that_fails_counts() -> None:
    """Lies cost the same time as the truth."""
    work = Work()
    with contextlib.suppress(ValueError), work.share.spending():
        work.used += 2.0
        raise ValueError("a lie")
    assert work.share.wait_seconds() == pytest.approx(5.0)


def listening(folder: Path) -> UnixListener:
    """A socket that others may connect to."""
    return open_unix(folder / "s", mode=0o600, group=None, pass_credentials=True)


def connect(folder: Path) -> socket.socket:
    """A connection to it, which waits to be accepted."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(folder / "s"))
    return sock


def test_connections_wait_while_the_share_is_used_up(tmp_path: Path) -> None:
    """Those in the queue are not lost: they are accepted when there is a share again, in their order."""

    async def run() -> None:
        work = Work()
        taken: list[socket.socket] = []
        listener = listening(tmp_path)
        waiting = [connect(tmp_path) for _ in range(100)]

        def take(sock: socket.socket) -> None:
            work.used += 0.01
            taken.append(sock)

        work.do(0.4)
        acceptor = Acceptor(listener.socket, take, lambda: None, work.share)
        await until(lambda: taken)
        assert len(taken) == 64
        assert work.share.wait_seconds() == pytest.approx(0.2)
        work.clock.advance(10.0)
        await until(lambda: len(taken) == 100)
        acceptor.close()
        listener.close()
        for sock in (*taken, *waiting):
            sock.close()

    asyncio.run(run())


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptor left, until somebody makes room."""

    room = False

    def accept(self) -> tuple[socket.socket, object]:
        """Fail like the system call."""
        if not self.room:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_without_descriptors_those_that_wait_make_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """EMFILE: it is said once in the log, room is made, and the connection is accepted a moment later."""

    async def run() -> None:
        listener = listening(tmp_path)
        exhausted = Exhausted(fileno=listener.socket.detach())
        taken: list[socket.socket] = []

        def make_room() -> None:
            exhausted.room = True

        acceptor = Acceptor(exhausted, taken.append, make_room, Work().share)
        with connect(tmp_path):
            await until(lambda: taken)
        acceptor.close()
        exhausted.close()
        taken[0].close()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == [
        "an embedded client's connection cannot be accepted: Too many open files"
    ]


def test_places_are_bounded_by_the_descriptors_that_may_be_opened() -> None:
    """Where few may be, apps must not take those that the agent needs to read /proc."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(16384, hard), hard))
        assert limits_of(Config()).max_waiting == MOST_WAITING
        assert limits_of(Config()).max_connections == 1024
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert (limits_of(Config()).max_connections, limits_of(Config()).max_waiting) == (128, 32)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_whether_attaching_is_allowed_is_as_configured() -> None:
    """`gpuagent attach` asks the agent before it touches a process."""
    forbidding = Config(clients=Clients(attach="forbidden"))

    assert limits_of(Config()).may_attach
    assert not limits_of(forbidding).may_attach
