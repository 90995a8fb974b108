"""Real children on a GPU whose driver says what cannot be true, or nothing: they live."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.store.database import Store
from gpuagent_simulator.faults import FaultKind
from tests.alerts.remedies.processes import PLAIN, as_target, running
from tests.alerts.remedies.staging import Stage, config, let_threads_work, stage

GIB = 2**30
AT_WORK = """
gpus:
  - model: h100
    processes:
      - {name: works, bind: works, memory: 8GiB, utilization: {sm: 97}}
      - {name: waits, bind: waits, memory: 4GiB}
"""
AT_REST = """
gpus:
  - {model: h100, processes: [{name: waits, bind: waits, memory: 4GiB}]}
"""
LADDER = {"match": ['alertname="Full"'], "steps": [{"terminate": {"wait": 30}}], "victim": "idle"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


def full(one: Stage) -> None:
    """The GPU is full; the alert names no process."""
    one.alerts = [Alert({"alertname": "Full", "gpu": "0", "uuid": one.uuid}, {}, Status.FIRING, 4e9, value=1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [200 * GIB, 70 * GIB, 30 * GIB], ids=["one", "together", "beside what is used"])
def test_nobody_ends_on_impossible_figures(store: Store, size: int) -> None:
    """NUM-12: a leak alert fires while the list is impossible and for a minute after; it acts when that is over."""

    async def story(leaker: int, neighbor: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker, "neighbor": neighbor}) as one:
            one.fires(leaker)
            alerts, one.alerts = one.alerts, []
            one.rig.fail(FaultKind.IMPOSSIBLE_MEMORY, size=size)
            await one.tick()
            one.alerts = alerts
            for _ in range(5):
                await one.tick()
            one.rig.node.clear()
            for _ in range(50):
                await one.tick()
            assert "released" not in one.ended()
            assert one.snapshot is not None
            assert {each.pid for each in one.snapshot.processes} == {leaker, neighbor}
            await one.until(lambda: "released" in one.ended())

    with running(PLAIN) as leaker, running(PLAIN) as neighbor:
        asyncio.run(story(leaker.pid, neighbor.pid, as_target(leaker.pid).user))
        assert leaker.wait(10) == -15
        assert neighbor.poll() is None


def test_who_was_not_sampled_is_not_idle(store: Store) -> None:
    """KILL-08: a GPU at 97 %, a process without a sample from the first poll on: neither it nor the worker ends."""

    async def story(pids: dict[str, int], user: str) -> None:
        async with stage(config(user, ladders=[LADDER], idle_for="5s"), store, pids, AT_WORK) as one:
            full(one)
            for _ in range(40):
                await one.tick()
                await asyncio.sleep(0)
            assert one.ended() == []

    with running(PLAIN) as works, running(PLAIN) as waits:
        asyncio.run(story({"works": works.pid, "waits": waits.pid}, as_target(works.pid).user))
        assert (works.poll(), waits.poll()) == (None, None)


def test_who_was_observed_at_rest_for_long_enough(store: Store) -> None:
    """KILL-08: on a GPU at 0 % its process is idle after `remedies.idle_for`, and not before."""

    async def story(pid: int, user: str) -> None:
        async with stage(config(user, ladders=[LADDER], idle_for="30s"), store, {"waits": pid}, AT_REST) as one:
            full(one)
            for _ in range(29):
                await one.tick()
                await asyncio.sleep(0)
            assert not one.service.remedies.running
            assert one.ended() == []
            await one.until(lambda: one.ended() == ["released"])

    with running(PLAIN) as waits:
        asyncio.run(story(waits.pid, as_target(waits.pid).user))
        assert waits.wait(10) == -15


def test_a_rule_on_idleness_without_for(store: Store) -> None:
    """KILL-08: with `for: 0s` no single reading decides: whom the ladder chooses has been at rest for `idle_for`."""
    ladder = {**LADDER, "victim": "largest"}

    async def story(pid: int, user: str) -> None:
        async with stage(config(user, ladders=[ladder], idle_for="30s"), store, {"waits": pid}, AT_REST) as one:
            full(one)
            one.about_idleness = True
            for _ in range(29):
                await one.tick()
                await let_threads_work()
            assert set(one.ended()) == {"refused"}
            await one.until(lambda: one.ended()[-1] == "released")

    with running(PLAIN) as waits:
        asyncio.run(story(waits.pid, as_target(waits.pid).user))
        assert waits.wait(10) == -15
