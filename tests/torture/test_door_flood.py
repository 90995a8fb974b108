"""Many processes of many users at the door for apps, all at once: nobody else is kept out, and memory stays bounded."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import pytest

from gpuagent.clients.registry import DROPPED, ClientLimits
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.agent.clients.swarm import FLOOD, FOREIGN, SILENT, TALKING, swarm
from tests.fakes.embedded import stats
from tests.torture import times

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users"),
]
USERS = (3001, 3002, 3003, 3004)
EACH = times(60, 300)
ROUNDS = times(20, 200)


async def heard(opened: Stage) -> None:
    """An app in the test's own process connects, is welcomed, and its figures arrive."""
    with await opened.client() as app:
        client = opened.registry.client(os.getpid())
        assert client is not None
        await in_thread(lambda: app.send(stats()))
        await until(lambda: client.stats)


def test_an_app_is_heard_among_silent_talking_and_flooding_processes_of_many_users() -> None:
    """With half as many places as there are processes, every connect of the innocent one succeeds, at once."""

    async def run() -> None:
        limits = ClientLimits(max_connections=EACH, max_waiting=EACH // 2)
        async with stage(limits) as opened, AsyncExitStack() as stack:
            opened.path.parent.parent.chmod(0o755)
            for user in USERS:
                await stack.enter_async_context(swarm(opened.path, EACH // 2, user, TALKING))
                await stack.enter_async_context(swarm(opened.path, EACH // 4, user, SILENT))
            await stack.enter_async_context(swarm(opened.path, EACH // 2, 4001, FOREIGN))
            await stack.enter_async_context(swarm(opened.path, 2, USERS[0], FLOOD))
            await until(lambda: opened.registry.accepted > 10 * EACH)
            registry = opened.registry
            for _ in range(ROUNDS):
                await heard(opened)
                assert registry.connections <= limits.max_connections + limits.max_waiting
            assert registry.drops["crowded"] > 0
            assert set(registry.drops) == set(DROPPED)
            assert (registry.drops["failed"], registry.drops["sender"], registry.drops["malformed"]) == (0, 0, 0)

    asyncio.run(run())
