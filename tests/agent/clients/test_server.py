"""Apps connect, speak, and are dropped: over a real socket."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from gpuagent.clients.admission import Rate, open_client_socket
from gpuagent.clients.registry import ClientLimits
from gpuagent_exporters.http.listeners import ListenError
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.agent.clients.swarm import TALKING, swarm
from tests.fakes.embedded import hello, stats
from tests.fakes.snapshots import full_snapshot


def play(scene: object, limits: ClientLimits | None = None) -> None:
    """Run a scene on a stage, to its end."""

    async def run() -> None:
        async with asyncio.timeout(40), stage(limits) as opened:
            await scene(opened)  # type: ignore[operator]

    asyncio.run(run())


def test_an_app_is_welcomed_and_known() -> None:
    """The welcome tells the interval; the identity is the kernel's; the end is noticed at once."""

    async def scene(opened: Stage) -> None:
        app = await opened.app()
        welcome = await in_thread(app.meet)
        assert welcome == {"v": 1, "t": "welcome", "interval": 1.0, "level": "ok"}
        client = opened.registry.client(os.getpid())
        assert client is not None
        assert client.info is not None
        assert (client.info.id.boot_id, client.info.id.pid) == ("boot", os.getpid())
        assert client.info.id.start_ticks > 0
        app.close()
        await until(lambda: not opened.registry.connections)
        assert opened.registry.client(os.getpid()) is None

    play(scene)


def test_a_later_version_is_answered_with_ours() -> None:
    """The lower of both versions is spoken."""

    async def scene(opened: Stage) -> None:
        with await opened.app() as app:
            assert (await in_thread(lambda: app.meet(v=9)))["v"] == 1

    play(scene)


def test_a_new_interval_reaches_connected_apps() -> None:
    """After a reload they are welcomed again, which clients of every version take for the new interval; once."""

    async def scene(opened: Stage) -> None:
        with await opened.client() as app:
            opened.registry.use(ClientLimits(max_connections=1), 5.0)
            opened.registry.use(ClientLimits(max_connections=2), 5.0)
            opened.registry.use(opened.registry.limits, 7.0)
            heard = [await in_thread(app.receive) for _ in range(2)]
            assert heard == [{"v": 1, "t": "welcome", "interval": each, "level": "ok"} for each in (5.0, 7.0)]
            assert opened.registry.limits.max_connections == 2
            with await opened.app() as other:
                assert (await in_thread(other.meet))["interval"] == 7.0

    play(scene)


def test_a_second_hello_tells_what_has_changed() -> None:
    """An app often imports torch after the client has started."""

    async def scene(opened: Stage) -> None:
        with await opened.client(torch="") as app:
            app.send(hello(torch="2.13.0", caps=["release"]))
            client = opened.registry.client(os.getpid())
            assert client is not None
            await until(lambda: client.hello and client.hello.torch_version == "2.13.0")
            assert client.hello is not None
            assert client.hello.capabilities == ("release",)

    play(scene)


@pytest.mark.parametrize(
    "line",
    [b"garbage\n", b'{"t":"stats","seq":NaN}\n', b"[" * 70_000, b"x" * 70_000 + b"\n", b'{"t":"hello","v":1}\n'],
    ids=["no JSON", "NaN", "deep", "too long", "no pid"],
)
def test_garbage_costs_its_connection_and_nothing_else(line: bytes) -> None:
    """The one that sends it is dropped and counted; the neighbor does not notice."""

    async def scene(opened: Stage) -> None:
        with await opened.client() as neighbor, await opened.app() as vandal:
            await in_thread(lambda: vandal.send(line))
            assert await in_thread(vandal.receive) == {}
            assert opened.registry.drops["malformed"] == 1
            neighbor.send(stats())
            client = opened.registry.client(os.getpid())
            await until(lambda: client and client.stats)

    play(scene)


def test_a_line_before_the_hello_is_malformed() -> None:
    """Nobody's figures are taken before it is known whose they are."""

    async def scene(opened: Stage) -> None:
        with await opened.app() as app:
            app.send(stats())
            assert await in_thread(app.receive) == {}
            assert opened.registry.drops["malformed"] == 1

    play(scene)


def test_whoever_says_nothing_is_dropped() -> None:
    """A connection without a hello is no app, and holds a descriptor."""

    async def scene(opened: Stage) -> None:
        with await opened.app() as app:
            assert await in_thread(app.receive) == {}
            assert opened.registry.drops["silent"] == 1

    play(scene, ClientLimits(hello_seconds=0.05))


def test_a_new_connection_of_a_process_takes_the_place_of_the_old() -> None:
    """One process is one client: the old connection is a leftover."""

    async def scene(opened: Stage) -> None:
        with await opened.client() as old, await opened.client(app="new"):
            assert await in_thread(old.receive) == {}
            client = opened.registry.client(os.getpid())
            assert client is not None
            assert client.hello is not None
            assert (client.hello.app, opened.registry.drops["replaced"]) == ("new", 1)

    play(scene)


def test_a_stalled_reader_is_dropped_and_the_loop_goes_on() -> None:
    """Who does not read fills the kernel's buffer, then 64 KiB of ours, then loses the connection."""

    async def scene(opened: Stage) -> None:
        with await opened.client() as app:
            client = opened.registry.client(os.getpid())
            assert client is not None
            for _ in range(1000):
                client.send(b"x" * 4095 + b"\n")
                if opened.registry.drops["stalled"]:
                    break
            assert opened.registry.drops["stalled"] == 1
            await until(lambda: not opened.registry.connections)
            del app

    play(scene)


def test_a_flood_waits_and_loses_nothing() -> None:
    """Who sends more than its share is read from more slowly, and every line arrives."""
    limits = ClientLimits(connection=Rate(1000, 10**6, burst_seconds=0.01))

    async def scene(opened: Stage) -> None:
        with await opened.client() as app:
            await in_thread(lambda: app.send(*[{"t": "event", "name": str(number)} for number in range(300)]))
            await until(lambda: opened.registry.events == 300)
            client = opened.registry.client(os.getpid())
            assert client is not None
            assert client.events[-1][1].name == "299"
            assert opened.registry.throttlings > 0
            assert len(client.events) <= 16

    play(scene, limits)


def test_whoever_connects_too_often_is_refused() -> None:
    """A loop of connect and close does not cost the agent its time."""

    async def scene(opened: Stage) -> None:
        for _ in range(5):
            (await opened.app()).close()
        await until(lambda: opened.registry.refusals["rate"])
        assert opened.registry.refusals["rate"] >= 3

    play(scene, ClientLimits(user=Rate(0.001, 1000, burst_seconds=6000)))


@pytest.mark.slow
def test_100_connections() -> None:
    """All are taken, all are gone afterwards, and an honest app among them is served."""

    async def scene(opened: Stage) -> None:
        async with swarm(opened.path, 100, 0, TALKING) as pids:
            assert {client.peer.pid for client in opened.registry.clients} == set(pids)
            with await opened.client() as app:
                app.send(stats())
                client = opened.registry.client(os.getpid())
                await until(lambda: client and client.stats)
        await until(lambda: not opened.registry.connections)

    play(scene)


def test_descriptors_are_given_back() -> None:
    """Connections come and go, refused ones too, and the agent holds no more descriptors than before."""

    async def scene(opened: Stage) -> None:
        held: list[int] = []
        for _ in range(4):
            (await opened.client()).close()
            with await opened.app() as vandal:
                vandal.send(b"garbage\n")
                await in_thread(vandal.receive)
            with await opened.app() as liar:
                liar.send(hello(1))
                await in_thread(liar.receive)
            await until(lambda: not opened.registry.connections)
            held.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208  names: the folder changes while it is read
        assert held[-1] <= held[0]

    play(scene)


def test_closing_the_door_tells_the_apps() -> None:
    """They see the end at once, and look for the next agent; the directory stays, for containers mount it."""

    async def scene(opened: Stage) -> None:
        with await opened.client() as app:
            await opened.door.close()
            assert await in_thread(app.receive) == {}
            assert opened.path.parent.is_dir()
            assert not opened.path.exists()
            assert not opened.door.listening

    play(scene)


def test_the_socket_is_for_everybody_and_its_directory_for_us(tmp_path: Path) -> None:
    """0666 in 0755, whatever the umask; a directory that was there is kept."""
    os.umask(old := os.umask(0o077))
    directory = tmp_path / "clients"

    def modes() -> tuple[int, int]:
        listener = open_client_socket(directory)
        try:
            return stat.S_IMODE(directory.stat().st_mode), stat.S_IMODE(listener.path.stat().st_mode)
        finally:
            listener.close()

    try:
        os.umask(0o077)
        assert modes() == (0o755, 0o666)
        inode = directory.stat().st_ino
        assert modes() == (0o755, 0o666)
        assert directory.stat().st_ino == inode
    finally:
        os.umask(old)


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Whoever may write there could put another socket in the place of ours."""
    directory = tmp_path / "clients"
    directory.mkdir(mode=0o755)
    directory.chmod(0o777)

    with pytest.raises(ListenError, match="can be written by others"):
        open_client_socket(directory)


def test_without_its_socket_the_agent_goes_on(tmp_path: Path) -> None:
    """A directory that cannot be had costs the clients, and is told as a metric; a tick is as ever."""
    (tmp_path / "clients").write_text("a file")

    async def scene(opened: Stage) -> None:
        door = type(opened.door)(opened.registry, tmp_path / "clients", opened.clock)
        await door.open()
        assert (door.listening, door.figures().listening) == (False, False)
        assert door.readings(full_snapshot()) == {}
        await door.close()

    play(scene)


def test_apps_are_told_of_room_when_that_is_news() -> None:
    """Once after the welcome, and then when a GPU has noticeably more or less room: not at every tick."""
    uuid = "GPU-0"

    async def scene(opened: Stage) -> None:
        with await opened.client() as app:
            app.send(stats({"uuid": uuid, "allocated_bytes": 1, "reserved_bytes": 2}))
            client = opened.registry.client(os.getpid())
            await until(lambda: client and client.stats)
            for _ in range(3):
                await opened.tick(full_snapshot())
            level = await in_thread(app.receive)
            assert (level["t"], level["level"], level["free_bytes"]) == ("level", "ok", {uuid: 39 * 2**30})
            assert (level["total_bytes"], level["names"]) == ({uuid: 80 * 2**30}, {uuid: "H100"})
            app.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                app.socket.recv(1)

    play(scene)
