"""A real Alertmanager, told by the agent: what it holds, what it tells others, and what it never may."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.notify.receivers.alertmanager import HOLDS_SECONDS, RESEND_SECONDS
from tests.agent.service.alerting.bench import BLIND, BUSY, CALM, INTERVAL_SECONDS, Bench, alerting, config, rules, run
from tests.integration.agent import Agent, running_agent
from tests.integration.alertmanager import NAMES, Alertmanager, running_alertmanager
from tests.integration.test_alerts import full_until
from tests.integration.test_alerts import keys as keys_of
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.needs(*NAMES), pytest.mark.needs("amtool")]

FULL = (
    "alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, labels: {severity: critical},"
    ' annotations: {summary: "GPU {{ $labels.gpu }} is full", description: "Who uses it: gpuagent ps"}'
)
ANNOTATIONS = {"summary": "GPU 0 is full", "description": "Who uses it: gpuagent ps"}


@pytest.fixture
def manager(folder: Path) -> Iterator[Alertmanager]:
    """A server with a webhook."""
    with running_alertmanager(folder) as server:
        yield server


def fleet(manager: Alertmanager) -> list[dict[str, Any]]:
    """The receiver that it is for the agent."""
    return [{"name": "fleet", "alertmanager": {"url": manager.url}}]


def past(seconds: float) -> ManualClock:
    """A clock that shows the time of a while ago: minutes of it can pass in no time, and none lies in the future.

    What the server is told must be younger than the five minutes for which it holds an alert.
    """
    return ManualClock(wall=time.time() - seconds)


async def seen(manager: Alertmanager, name: str = "Full") -> Any:
    """What the server has of an alert, None if it takes it for over."""
    return (await asyncio.to_thread(manager.alerts)).get(name)


async def refreshed(bench: Bench, manager: Alertmanager, shown: Any = BUSY) -> Any:
    """The alert as the server has it after the next refresh."""
    before = await seen(manager)
    await bench.show(shown, seconds=RESEND_SECONDS)
    await bench.emptied()
    after = await seen(manager)
    assert after.ends_at - before.ends_at == pytest.approx(RESEND_SECONDS, abs=INTERVAL_SECONDS)
    return after


async def has_notified(manager: Alertmanager, count: int) -> list[str]:
    """What the server has told of the alert, once it is so many times."""
    await asyncio.to_thread(until, lambda: len(manager.notified("Full")) >= count, "Alertmanager tells of it")
    return [one.status for one in manager.notified("Full")]


def test_firing_refreshed_silenced_resolved(manager: Alertmanager, tmp_path: Path) -> None:
    """It arrives with both times, is kept alive, may be silenced there, and ends with words of its end."""

    async def test() -> None:
        settings = config(tmp_path, None, receivers=fleet(manager))
        async with alerting(settings, rules(FULL), past(240), tmp_path / "s") as bench:
            await bench.show(BUSY)
            await bench.emptied()
            first = await seen(manager)
            assert (first.state, first.annotations, first.labels["node"]) == ("active", ANNOTATIONS, "node7")
            assert first.starts_at == pytest.approx(bench.clock.wall(), abs=0.01)
            assert first.ends_at == pytest.approx(bench.clock.wall() + HOLDS_SECONDS, abs=1.0)
            assert await has_notified(manager, 1) == ["firing"]

            silence = manager.amtool("silence", "add", "alertname=Full", "--comment=work", "--author=alice")
            assert (await refreshed(bench, manager)).state == "suppressed"
            manager.amtool("silence", "expire", silence)
            assert (await refreshed(bench, manager)).starts_at == first.starts_at

            await bench.show(CALM)
            await bench.emptied()
            assert await seen(manager) is None
            assert await has_notified(manager, 2) == ["firing", "resolved"]
            assert manager.notified("Full")[-1].annotations == {"summary": "Full has ended: no longer true: 8 % now"}

    run(test)


def test_nothing_but_an_end_ends_it(manager: Alertmanager, tmp_path: Path) -> None:
    """ALERT-06: blind, muted, silenced or acknowledged here, it goes on there: silence would be taken for an end."""

    async def test() -> None:
        settings = config(tmp_path, None, receivers=fleet(manager))
        blind = "alert: GpuMonitorBlind, expr: gpuagent_gpu_blind == 1"
        async with alerting(settings, rules(FULL, blind), past(240), tmp_path / "s") as bench:
            await bench.show(BUSY)
            await bench.emptied()
            await bench.show(BLIND)
            await bench.emptied()
            assert (await bench.state())["muted_by"] == "GpuMonitorBlind"
            await refreshed(bench, manager, BLIND)
            await bench.show(BUSY)
            await bench.commands.add_silence(['alertname="Full"'], 3600, "work", "alice")
            await refreshed(bench, manager)
            await bench.commands.acknowledge("Full", "mine", "alice")
            await refreshed(bench, manager)

    run(test)


def test_kill_9_while_it_fires(manager: Alertmanager, folder: Path) -> None:
    """ALERT-08: no false end while nobody is there to speak, nor after it; one beginning, one end with all words."""

    def keys() -> dict[str, Any]:
        return keys_of(folder, manager.receiver, receivers=fleet(manager))

    def state(agent: Agent) -> Any:
        found = json.loads(agent.get("/api/v1/alerts").body)["alerts"]
        return next((alert for alert in found if alert["name"] == "Full"), None)

    with running_agent(folder, full_until(folder, "10h"), **keys()) as agent:
        agent.wait_until_ready()
        until(lambda: "Full" in manager.alerts(), f"it arrives; {agent.log()}")
        began = state(agent)["starts_at_seconds"]
        agent.process.kill()
        agent.process.wait()

    held = manager.alerts()["Full"]
    assert held.starts_at == pytest.approx(began, abs=0.01)
    assert held.ends_at > time.time() + HOLDS_SECONDS - 60  # so long an agent may be away
    until(lambda: manager.notified("Full"), "Alertmanager tells of it")

    with running_agent(folder, full_until(folder, "6s"), **keys()) as agent:
        agent.wait_until_listening()
        found = until(lambda: state(agent), "the state is there")
        assert (found["state"], found["starts_at_seconds"]) == ("firing", began)
        assert "Full" in manager.alerts()
        until(lambda: len(manager.notified("Full")) > 1, "the end is told")
        assert manager.alerts().get("Full") is None
        assert agent.stop() == 0

    firing, resolved = manager.notified("Full")
    assert (firing.status, firing.annotations) == ("firing", {"summary": "GPU 0 is full"})
    assert (resolved.status, set(resolved.annotations)) == ("resolved", {"summary"})
    assert resolved.annotations["summary"].startswith("Full has ended: no longer true: ")


def test_it_was_down(folder: Path, tmp_path: Path) -> None:
    """ALERT-07: what fires while it is away arrives when it is back, and so does an end."""

    async def test() -> None:
        clock = past(800)
        with running_alertmanager(folder) as gone:
            pass
        settings = config(tmp_path, None, receivers=fleet(gone))
        async with alerting(settings, rules(FULL), clock, tmp_path / "s") as bench:
            await bench.show(BUSY, times=3)
            queued = (await bench.commands.alerts())["receivers"][0]["queued"]
            assert (queued, bench.alerting.delivery.off()) == (1, {})
        with running_alertmanager(folder) as back:
            settings = config(tmp_path, None, receivers=fleet(back))
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as bench:
                await bench.show(BUSY, seconds=600)
                await bench.emptied()
                assert (await seen(back)).annotations == ANNOTATIONS
                await bench.show(CALM)
                await bench.emptied()
                assert await seen(back) is None

    run(test)
