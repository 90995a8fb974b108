"""Who is at the other end: real processes that tell the truth, lie, fork, change users, and live in namespaces."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent.clients.wire import RefusedPeer, open_peer
from gpuagent.procfs.files import RealProc, parse_stat, parse_status
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.agent.procfs.children import child
from tests.fakes.embedded import hello, stats

APP = """
import json, os, socket, sys
path, first, *rest = sys.argv[1:]
{before}
s = socket.socket(socket.AF_UNIX); s.connect(path)
{after}
message = json.loads(first)
message["pid"] = message["pid"] or os.getpid()
s.sendall(json.dumps(message).encode() + b"\\n")
print(json.dumps([os.getpid(), s.makefile("rb").readline().decode()]), flush=True)
sys.stdin.read()
"""
"""Connects, says hello (with its own pid unless another is given), tells what came back, and waits."""


def program(before: str = "", after: str = "") -> str:
    """An app that does something before it connects, or after."""
    return APP.format(before=before, after=after)


def play(scene: object) -> None:
    """Run a scene on a stage, to its end."""

    async def run() -> None:
        async with asyncio.timeout(50), stage() as opened:
            await scene(opened)  # type: ignore[operator]

    asyncio.run(run())


def read(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, object]]:
    """The pid that an app has for itself, and the agent's answer ({} if it hung up)."""
    assert process.stdout is not None
    pid, line = json.loads(process.stdout.readline())
    return pid, json.loads(line) if line else {}


def command(opened: Stage, text: str, claimed_pid: int = 0) -> list[str]:
    """How such an app is started."""
    return [sys.executable, "-c", text, str(opened.path), json.dumps(hello(claimed_pid))]


def test_another_process_is_known_by_its_own_identity() -> None:
    """Its pid and start time, from the kernel; killed, it is gone at once."""

    async def scene(opened: Stage) -> None:
        with child(*command(opened, program())) as process:
            pid, welcome = await in_thread(lambda: read(process))
            assert (pid, welcome["t"]) == (process.pid, "welcome")
            client = opened.registry.client(pid)
            assert client is not None
            assert client.info is not None
            assert client.info.id == ("boot", pid, parse_stat(RealProc().read(pid, "stat")).start_ticks)
            assert client.info.name.startswith("python")
            process.kill()
            await until(lambda: not opened.registry.connections)

    play(scene)


def test_a_lie_about_the_pid_is_refused_and_counted() -> None:
    """Nobody speaks for another process: not for its parent, and not for the agent."""

    async def scene(opened: Stage) -> None:
        for claimed in (os.getpid(), 1, 4_194_304):
            with child(*command(opened, program(), claimed)) as process:
                assert (await in_thread(lambda process=process: read(process)))[1] == {}  # type: ignore[misc]
        assert opened.registry.refusals["pid"] == 3
        assert not list(opened.registry.clients)

    play(scene)


def test_a_pid_cannot_be_changed_afterwards() -> None:
    """A second hello with another pid is a lie too."""

    async def scene(opened: Stage) -> None:
        with await opened.client() as app:
            app.send(hello(1))
            assert await in_thread(app.receive) == {}
            assert opened.registry.refusals["pid"] == 1

    play(scene)


def test_a_child_does_not_speak_for_its_parent() -> None:
    """The parent connects, and its child says hello under the parent's pid over the inherited connection."""
    fork = "parent = os.getpid()\nif os.fork(): sys.stdin.read(); os._exit(0)\nos.getpid = lambda: parent"

    async def scene(opened: Stage) -> None:
        with child(*command(opened, program(after=fork))) as process:
            pid, answer = await in_thread(lambda: read(process))
            assert (pid, answer) == (process.pid, {})
            assert (opened.registry.drops["sender"], opened.registry.lines) == (1, 0)
            assert not list(opened.registry.clients)

    play(scene)


def test_the_end_of_a_process_is_seen_though_a_child_holds_its_connection() -> None:
    """The pidfd tells: the socket alone would stay open for as long as the child lives."""
    after = "s2 = os.dup(s.fileno())\nfork = os.fork\n"
    text = program(after=after).replace("sys.stdin.read()\n", "sys.stdin.readline()\nfork() or sys.stdin.read()\n")

    async def scene(opened: Stage) -> None:
        with child(*command(opened, text)) as process:
            pid, _ = await in_thread(lambda: read(process))
            assert opened.registry.client(pid) is not None
            assert process.stdin is not None
            process.stdin.write(b"\n")  # the parent forks and ends; the child holds both ends and waits
            process.stdin.flush()
            await until(lambda: not opened.registry.connections)

    play(scene)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_foreign_user_may_connect_under_its_own_name() -> None:
    """A child that has changed its user is another user's app, and counts as that user's."""

    async def scene(opened: Stage) -> None:
        opened.path.parent.parent.chmod(0o755)
        with child(*command(opened, program(before="os.setuid(65534)"))) as process:
            pid, welcome = await in_thread(lambda: read(process))
            assert welcome["t"] == "welcome"
            client = opened.registry.client(pid)
            assert client is not None
            assert client.peer is not None
            assert client.info is not None
            assert (client.peer.uid, client.info.uid) == (65534, 65534)

    play(scene)


def may_unshare() -> bool:
    """Whether this machine lets us make a pid namespace."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    tried = subprocess.run([unshare, "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="no pid namespace can be made here: unshare --pid is not permitted")
def test_an_app_in_a_container_is_known_by_the_hosts_pid() -> None:
    """It says 1, the kernel says what it is out here; and out here's pid would be a lie from in there."""

    async def scene(opened: Stage) -> None:
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command(opened, program())]
        with child(*inside) as process:
            own, welcome = await in_thread(lambda: read(process))
            assert (own, welcome["t"]) == (1, "welcome")
            (client,) = opened.registry.clients
            assert client.info is not None
            status = parse_status(RealProc().read(client.info.id.pid, "status"))
            assert status.namespace_pids == (client.info.id.pid, 1)

    play(scene)


def test_a_peer_is_held_by_its_pidfd() -> None:
    """Whatever the kernel is old enough for: the descriptor is closed with the peer."""

    async def scene(opened: Stage) -> None:
        with await opened.client() as app:
            app.send(stats())
            client = opened.registry.client(os.getpid())
            assert client is not None
            assert client.peer is not None
            assert not client.peer.ended
            descriptor = client.peer.pidfd
            assert "pidfd" in await in_thread(lambda: str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    play(scene)


class _Silent:
    """A socket whose kernel tells nothing, or a pid that means nothing here."""

    def __init__(self, answer: bytes | OSError) -> None:
        self._answer = answer

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    "answer", [OSError(92, "Protocol not available"), b"\0\0\0\0" + b"\1\0\0\0" * 2], ids=["not told", "pid 0"]
)
def test_a_peer_that_the_agent_cannot_see(answer: bytes | OSError) -> None:
    """From a pid namespace beside or above the agent's the pid reads 0: that is nobody."""
    with pytest.raises(RefusedPeer) as refusal:
        open_peer(_Silent(answer))
    assert refusal.value.reason == "unknown"


def test_a_peer_that_has_ended_before_it_was_looked_at() -> None:
    """No pidfd of it can be had: it is refused, not taken for whoever has its number next."""

    def gone(sock: object, pid: int) -> int:
        raise ProcessLookupError

    with pytest.raises(RefusedPeer) as refusal:
        open_peer(_Silent(b"\7\0\0\0" + b"\0\0\0\0" * 2), gone)
    assert refusal.value.reason == "gone"
