"""The control socket's file: who may open it, and who has it already."""

from __future__ import annotations

import asyncio
import fcntl
import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.listeners import open_unix
from gpuagent_exporters.http.server import HttpServer, ListenError
from tests.exporters.wire import Answer, ask, run, serving
from tests.fakes.source import FakeSource


@pytest.fixture
def path(short_folder: Path) -> Path:
    """Where the socket shall be."""
    return short_folder / "control.sock"


def test_the_read_routes_are_there(path: Path) -> None:
    """The control socket answers what the TCP address answers, commands included, any Host."""

    async def test() -> Answer:
        async with serving(build_app(FakeSource(), control=True), unix_socket=path):
            return await ask(path, "/api/v1/status", host="whatever")

    assert run(test()).json()["processes"][0]["command"].startswith("python3 ")


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_mode_is_exactly_what_was_asked(path: Path, mode: int, umask: int) -> None:
    """The permissions are those asked for, under any umask."""
    before = os.umask(umask)
    try:
        listener = open_unix(path, mode=mode, group=None)
    finally:
        os.umask(before)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        listener.close()


def test_the_file_is_never_more_open(path: Path) -> None:
    """The file is closed to others from its first moment: a bound socket has its own mode."""
    before = os.umask(0)
    try:
        with socket.socket(socket.AF_UNIX) as bare:
            os.fchmod(bare.fileno(), 0o600)
            bare.bind(str(path))
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_group_is_set(path: Path) -> None:
    """The socket belongs to the group that may command the agent."""
    group = grp.getgrgid(os.getgid())

    listener = open_unix(path, mode=0o660, group=group.gr_name)
    try:
        assert path.stat().st_gid == group.gr_gid
    finally:
        listener.close()


def test_a_missing_group_is_a_plain_sentence(path: Path) -> None:
    """A group that does not exist is named with the command that makes it; no file is left open."""
    with pytest.raises(ListenError, match="groupadd --system no-such-group"):
        open_unix(path, mode=0o660, group="no-such-group")

    assert not path.exists() or stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_killed_agent_left_is_replaced(path: Path) -> None:
    """A socket file that nobody listens on does not keep the agent from starting."""
    killed = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    subprocess.run([sys.executable, "-c", killed, str(path)], check=True, timeout=20)

    async def test() -> int:
        async with serving(unix_socket=path):
            return (await ask(path, "/metrics")).status

    assert run(test()) == 200


def test_a_running_agent_is_left_alone(path: Path) -> None:
    """A second agent says that another is running, and the first goes on answering."""

    async def test() -> int:
        async with serving(unix_socket=path):
            with pytest.raises(ListenError, match="another gpuagent is running"):
                await HttpServer(build_app(FakeSource()), unix_socket=path).start()
            return (await ask(path, "/metrics")).status

    assert run(test()) == 200


def test_two_that_start_at_once_do_not_take_each_other_for_stale(path: Path) -> None:
    """Of many agents that start at the same moment over a stale file, exactly one gets the socket."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    async def test() -> int:
        servers = [HttpServer(build_app(FakeSource()), unix_socket=path) for _ in range(8)]
        started = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        answer = await ask(path, "/metrics")
        await asyncio.gather(*(server.stop() for server in servers))
        assert answer.status == 200
        return started.count(None)

    assert run(test()) == 1


def test_who_starts_at_the_same_moment_waits_for_nobody(path: Path) -> None:
    """While another agent is between looking and listening, the second one says so."""
    other = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ListenError, match="another gpuagent is just starting"):
            open_unix(path, mode=0o600, group=None)
    finally:
        os.close(other)


def test_what_is_no_socket_is_not_touched(path: Path) -> None:
    """A file in the socket's place is somebody's: it is named, not removed."""
    path.write_text("precious")

    with pytest.raises(ListenError, match="not a socket"):
        open_unix(path, mode=0o600, group=None)

    assert path.read_text() == "precious"


def test_the_file_goes_with_the_agent(path: Path) -> None:
    """After a stop there is no file that looks as if an agent were running."""

    async def test() -> int:
        async with serving(unix_socket=path):
            return (await ask(path, "/metrics")).status

    assert run(test()) == 200
    assert not path.exists()


def test_a_file_that_replaced_ours_stays(path: Path) -> None:
    """An agent that stops late does not remove the socket of the one that took its place."""
    first = open_unix(path, mode=0o600, group=None)
    path.rename(path.with_suffix(".old"))
    second = open_unix(path, mode=0o600, group=None)
    try:
        first.close()
        assert path.is_socket()
    finally:
        second.close()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing/control.sock", "the folder .*missing does not exist"),
        ("a" * 120, "longer than 107 bytes"),
    ],
)
def test_impossible_paths(short_folder: Path, name: str, sentence: str) -> None:
    """A path that cannot be is a plain sentence."""
    with pytest.raises(ListenError, match=sentence):
        open_unix(short_folder / name, mode=0o600, group=None)


def test_tcp_is_closed_where_the_socket_fails(path: Path) -> None:
    """A start that fails half-way leaves nothing listening."""
    path.write_text("in the way")

    async def test() -> None:
        server = HttpServer(build_app(FakeSource()), listen="127.0.0.1:0", unix_socket=path)
        with pytest.raises(ListenError):
            await server.start()
        with pytest.raises(RuntimeError, match="not listening"):
            _ = server.port

    run(test())
