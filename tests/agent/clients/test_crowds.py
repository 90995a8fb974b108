"""Nobody keeps others out: real processes of several users take all places, and another user's app is heard."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from gpuagent.clients.admission import Rate
from gpuagent.clients.registry import ClientLimits
from gpuagent.core.snapshot import GpuState, ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import GIB
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.agent.clients.swarm import FLOOD, FOREIGN, SILENT, TALKING, swarm
from tests.fakes.embedded import stats
from tests.fakes.snapshots import full_snapshot

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
USERS = (3001, 3002, 3003, 3004)
ME = os.getpid()


def play(scene: Callable[[Stage], Awaitable[None]], limits: ClientLimits) -> None:
    """Run a scene on a stage that every user can reach, to its end."""

    async def run() -> None:
        async with asyncio.timeout(50), stage(limits) as opened:
            opened.path.parent.parent.chmod(0o755)
            await scene(opened)

    asyncio.run(run())


def on_gpu(*pids: int) -> Snapshot:
    """A node whose driver lists these processes."""
    processes = tuple(ProcessReading(0, "GPU-0", pid, ProcessState.LIVE, None, GIB, "C", None) for pid in pids)
    return replace(full_snapshot(), processes=processes)


async def heard(opened: Stage) -> None:
    """An app in the test's own process connects, is welcomed, and its figures arrive."""
    with await opened.client() as app:
        client = opened.registry.client(ME)
        assert client is not None
        app.send(stats())
        await until(lambda: client.stats)


@pytest.mark.slow
def test_silent_connections_of_four_users_keep_nobody_out() -> None:
    """They take the places of those that have not said hello, and give them up to whoever comes."""

    async def scene(opened: Stage) -> None:
        async with AsyncExitStack() as stack:
            for user in USERS:
                await stack.enter_async_context(swarm(opened.path, 10, user, SILENT))
            await until(lambda: opened.registry.accepted == 40)
            assert opened.registry.connections == 8
            await heard(opened)
            assert opened.registry.drops["crowded"] >= 32

    play(scene, ClientLimits(max_connections=4, max_waiting=8, hello_seconds=60))


def test_a_silent_connection_is_closed_though_nobody_needs_its_place() -> None:
    """After its time to say hello, each of them."""

    async def scene(opened: Stage) -> None:
        async with swarm(opened.path, 10, USERS[0], SILENT):
            await until(lambda: opened.registry.drops["silent"] == 10)
            assert opened.registry.connections == 0

    play(scene, ClientLimits(hello_seconds=0.1))


@pytest.mark.slow
def test_apps_of_four_users_keep_no_fifth_out() -> None:
    """All places are taken by apps that have said hello: the user with the most gives one up, its newest."""

    async def scene(opened: Stage) -> None:
        async with AsyncExitStack() as stack:
            owners = [await stack.enter_async_context(swarm(opened.path, 2, user, TALKING)) for user in USERS]
            assert len(list(opened.registry.clients)) == 8
            await heard(opened)
            assert opened.registry.drops["crowded"] == 1
            assert [len([pid for pid in pids if opened.registry.client(pid)]) for pids in owners] == [1, 2, 2, 2]

    play(scene, ClientLimits(max_connections=8))


def test_a_user_has_no_more_than_its_share() -> None:
    """Further apps of one user are refused while others' places are free; the first ones stay."""

    async def scene(opened: Stage) -> None:
        async with swarm(opened.path, 3, USERS[0], TALKING) as first, swarm(opened.path, 2, USERS[0], TALKING):
            assert {client.peer.pid for client in opened.registry.clients} == set(first)
            assert opened.registry.refusals["crowded"] == 2
            await heard(opened)

    play(scene, ClientLimits(max_connections=100, max_connections_per_user=3))


@pytest.mark.slow
def test_an_app_on_a_gpu_always_finds_a_place_and_keeps_it() -> None:
    """Where everybody has one place and nobody need give it up, and where its own user has used up its share."""

    async def scene(opened: Stage) -> None:
        async with swarm(opened.path, 1, USERS[0], TALKING), swarm(opened.path, 2, 0, TALKING):
            with await opened.app() as app:
                assert await in_thread(app.meet) == {}, "a third app of this user, not on a GPU"
            await opened.tick(on_gpu(ME))
            with await opened.client() as app:
                client = opened.registry.client(ME)
                assert client is not None
                async with swarm(opened.path, 20, USERS[1], TALKING), swarm(opened.path, 20, USERS[2], SILENT):
                    app.send(stats())
                    await until(lambda: client.stats)
                    assert opened.registry.client(ME) is client

    play(scene, ClientLimits(max_connections=3, max_connections_per_user=2, max_waiting=4))


@pytest.mark.slow
def test_an_app_whose_gpu_cannot_be_read_keeps_its_standing() -> None:
    """GPU: the driver is silent for a tick, so its list of processes lacks one: that is not news of the process."""

    async def scene(opened: Stage) -> None:
        async with swarm(opened.path, 1, 0, TALKING) as others:
            with await opened.client():
                await opened.tick(on_gpu(ME))
                blind = on_gpu()
                await opened.tick(replace(blind, gpus=(replace(blind.gpus[0], state=GpuState.BLIND),)))
                async with swarm(opened.path, 1, USERS[0], TALKING):
                    assert {client.peer.pid for client in opened.registry.clients} == {*others, ME}
                await opened.tick(on_gpu())  # read again, and not on it any more: one app like others
                async with swarm(opened.path, 1, USERS[1], TALKING) as newcomer:
                    assert {client.peer.pid for client in opened.registry.clients} == {*others, *newcomer}

    play(scene, ClientLimits(max_connections=2))


@pytest.mark.slow
def test_all_users_of_other_user_namespaces_are_one_account() -> None:
    """Whoever may make user namespaces is as many users as they like: together they have one account's share."""

    async def scene(opened: Stage) -> None:
        with await opened.app() as app:
            async with AsyncExitStack() as stack:
                for user in range(4001, 4007):
                    await stack.enter_async_context(swarm(opened.path, 1, user, FOREIGN))
                await until(lambda: opened.registry.drops["crowded"] == 3)
                assert (await in_thread(app.meet))["t"] == "welcome", "the oldest, but not of the largest account"

    play(scene, ClientLimits(max_waiting=4, hello_seconds=60))


def test_one_process_has_one_place_among_those_that_wait() -> None:
    """Its newest connection counts: with a loop of connects a process drives out nobody but itself."""

    async def scene(opened: Stage) -> None:
        with await opened.app() as first, await opened.app() as second:
            assert await in_thread(first.receive) == {}
            assert opened.registry.drops["replaced"] == 1
            assert (await in_thread(second.meet))["t"] == "welcome"

    play(scene, ClientLimits())


@pytest.mark.slow
def test_an_app_is_heard_while_another_user_floods_the_door_with_connects() -> None:
    """Two processes connect and hang up as fast as they can; the queue is emptied all the same."""

    async def scene(opened: Stage) -> None:
        async with swarm(opened.path, 2, USERS[0], FLOOD):
            await until(lambda: opened.registry.refusals["rate"] > 100)
            for _ in range(5):
                await heard(opened)

    play(scene, ClientLimits(user=Rate(100, 10**6, burst_seconds=1.0)))


def test_an_app_on_a_gpu_is_heard_while_its_own_user_floods_the_door_with_connects() -> None:
    """Its connects are not counted as its user's."""

    async def scene(opened: Stage) -> None:
        await opened.tick(on_gpu(ME))
        async with swarm(opened.path, 1, 0, FLOOD):
            await until(lambda: opened.registry.refusals["rate"] > 100)
            await heard(opened)

    play(scene, ClientLimits(user=Rate(0.001, 10**6, burst_seconds=10_000.0)))


def test_an_app_is_heard_though_others_use_up_what_all_may_send() -> None:
    """Each connection has a small share of its own, which nobody can take."""

    async def scene(opened: Stage) -> None:
        await heard(opened)
        assert opened.registry.throttlings == 0

    play(
        scene, ClientLimits(total=Rate(0.001, 10**6, burst_seconds=1.0))
    )  # one connection alone uses it up for an hour
