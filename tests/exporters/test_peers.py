"""Who is calling on a unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http import middleware
from gpuagent_exporters.http.peers import PeerCredentials, peer_credentials, peer_of, same_namespaces
from tests.exporters.wire import Answer, ask, run, serving
from tests.fakes.source import FakeSource

CALLER = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"GET /whoami HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
print(os.getpid())
sys.stdout.write(s.makefile(newline="").read().rsplit("\\r\\n\\r\\n", 1)[1])
"""


async def whoami(request: Request) -> JSONResponse:
    """The caller, as a route sees it."""
    peer = peer_of(request.scope)
    return JSONResponse(peer and peer._asdict())


@contextmanager
def child(*command: str) -> Iterator[int]:
    """The pid of a process that runs until the test is done with it."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.communicate(timeout=20)


def test_the_kernel_names_the_peer() -> None:
    """The credentials of a socket's other end are the process that made it."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_credentials(one) == PeerCredentials(os.getpid(), os.getuid(), os.getgid())


def test_a_route_sees_who_calls(short_folder: Path) -> None:
    """A request from another process carries that process's pid, uid and gid."""
    path = short_folder / "control.sock"

    async def test() -> list[str]:
        app = build_app(FakeSource(), control=True, extra_routes=[Route("/whoami", whoami)])
        async with serving(app, unix_socket=path):
            import asyncio

            caller = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CALLER, str(path), stdout=asyncio.subprocess.PIPE
            )
            output, _ = await caller.communicate()
            return output.decode().splitlines()

    pid, answer = run(test())

    assert json.loads(answer) == {"pid": int(pid), "uid": os.getuid(), "gid": os.getgid()}


def test_tcp_has_no_peer() -> None:
    """Over TCP nobody is known, and no header makes it so."""

    async def test() -> Answer:
        app = build_app(FakeSource(), extra_routes=[Route("/whoami", whoami)])
        async with serving(app) as server:
            return await ask(server, "/whoami")

    assert run(test()).json() is None


def test_the_control_app_refuses_tcp() -> None:
    """Served over TCP by mistake, the control app answers nobody."""

    async def test() -> list[Answer]:
        async with serving(build_app(FakeSource(), control=True)) as server:
            return [await ask(server, path) for path in ("/metrics", "/", "/nowhere")]

    assert [answer.status for answer in run(test())] == [403, 403, 403]


def test_the_control_app_refuses_other_namespaces(short_folder: Path) -> None:
    """Every route of the control socket is closed to who lives in another namespace."""
    path = short_folder / "control.sock"
    asked: list[int] = []

    def elsewhere(pid: int) -> bool:
        asked.append(pid)
        return False

    async def test() -> list[Answer]:
        app = build_app(FakeSource(), control=True, same_namespaces=elsewhere)
        async with serving(app, unix_socket=path):
            return [await ask(path, "/metrics"), await ask(path, "/-/healthy")]

    answers = run(test())

    assert [answer.status for answer in answers] == [403, 403]
    assert "another pid or user namespace" in answers[0].json()["message"]
    assert asked == [os.getpid(), os.getpid()]


def test_a_caller_that_hangs(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls and is then within execve(2) for long is refused; others are answered, by a loop that goes on."""
    path = short_folder / "control.sock"
    ends, asked = threading.Event(), []

    def look(pid: int) -> bool:
        asked.append(pid)
        return pid != os.getpid() or ends.wait(60)

    async def test() -> tuple[list[Answer], bytes]:
        app = build_app(FakeSource(), control=True, same_namespaces=look)
        async with serving(app, unix_socket=path):
            hanging = await asyncio.gather(*(ask(path, "/-/healthy") for _ in range(5)))
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", CALLER, str(path), stdout=-1)
            return hanging, (await other.communicate())[0]

    monkeypatch.setattr(middleware, "_LOOK_SECONDS", 0.2)
    try:
        hanging, other = run(test())
    finally:
        ends.set()
    assert {answer.status for answer in hanging} == {403}
    assert "hangs: end it" in hanging[0].json()["message"]
    assert "other pid or user" not in other.decode()
    assert "Not Found" in other.decode()  # that route is another test's
    assert asked.count(os.getpid()) == 1


def test_a_child_is_one_of_us() -> None:
    """A process that was started on this host lives in the agent's namespaces."""
    with child(sys.executable, "-c", "print(flush=True); input()") as pid:
        assert same_namespaces(pid)


@pytest.mark.parametrize("options", [["--pid"], ["--user", "--map-root-user"]], ids=["pid namespace", "user namespace"])
def test_a_container_is_not(options: list[str]) -> None:
    """Root in a pid or user namespace of its own is uid 0 and still no caller for us."""
    unshare = ["unshare", *options, "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here: unshare is missing or not permitted")
    program = "import sys; print(flush=True); sys.stdin.read()"
    with child(*unshare, sys.executable, "-c", program) as pid:
        (inside,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert not same_namespaces(int(inside))


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_nobody_is_not_one_of_us(pid: int) -> None:
    """A peer whose pid the kernel cannot name here, or that has ended, is refused."""
    assert not same_namespaces(pid)


def fake_proc(folder: Path, *, nspid: str, uid_map: str) -> Path:
    """A /proc in which namespaces may not be looked at: the agent is `self`, the peer 7."""
    for name, pids, ids in (("self", "NSpid:\t1", "0 0 4294967295"), ("7", nspid, uid_map)):
        process = folder / name
        process.mkdir()
        (process / "status").write_bytes(f"Name:\tx\n{pids}\n".encode())
        (process / "uid_map").write_text(f"  {ids}\n")
    return folder


class Forbidding(type(Path())):  # type: ignore[misc]
    """A path below which `ns` may not be read, as for a service without CAP_SYS_PTRACE."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.parent.name == "ns":
            raise PermissionError(13, "Permission denied", str(self))
        found: os.stat_result = super().stat(follow_symlinks=follow_symlinks)
        return found


@pytest.mark.parametrize(
    ("nspid", "uid_map", "same"),
    [
        ("NSpid:\t7", "0 0 4294967295", True),
        ("NSpid:\t7\t1", "0 0 4294967295", False),
        ("Name:\t\rNSpid: 7\nNSpid:\t7\t1", "0 0 4294967295", False),
        ("Name:\t\x0cNSpid: 7\nNSpid:\t7\t1", "0 0 4294967295", False),
        ("NSpid:\t7", "0 100000 65536", False),
        ("nothing", "0 0 4294967295", False),
    ],
    ids=["host", "pid namespace", "its name, by a carriage return", "by a form feed", "user namespace", "untold"],
)
def test_without_the_right_to_look(tmp_path: Path, nspid: str, uid_map: str, same: bool) -> None:
    """A hardened agent that may not read namespaces judges by what everybody may read, and not by a name in there."""
    proc = Forbidding(fake_proc(tmp_path, nspid=nspid, uid_map=uid_map))

    assert same_namespaces(7, proc) is same


def test_in_doubt_the_peer_is_refused(tmp_path: Path) -> None:
    """Where nothing at all can be read, nobody is taken for one of us."""
    (tmp_path / "self").mkdir()

    assert not same_namespaces(7, Forbidding(tmp_path))
