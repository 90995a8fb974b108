"""Deciding and writing may take long: a process is judged by what holds when the signal is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import INTENT, RESULT
from gpuagent_alerts.remedies.observation import Condition
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.safeguards.victim import VictimChoice
from gpuagent_alerts.remedies.target import Ties
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, GIB, ORDER, RULES, TERMINATE, World, context, plan

Event = Callable[[World], None]


class SlowAudit(Audit):
    """Its disk hangs while an intent is written, and something happens meanwhile."""

    world: World
    event: Event

    def write(self, run: str, kind: str, data: Mapping[str, Any]) -> None:
        super().write(run, kind, data)
        if kind == INTENT:
            self.world.clock.advance(1.0)
            self.event(self.world)


def holds(size_gib: int) -> Event:
    """The process holds so much now."""

    def event(world: World) -> None:
        body = world.bodies[100]
        body.target = replace(body.target, used_bytes=size_gib * GIB)

    return event


def changed(**changes: Any) -> Event:
    """The next readings show this."""
    return lambda world: world.observation_changes.update(changes)


def run_ladder(store: Store, event: Event, **order: Any) -> tuple[RunOutcome, World, Audit]:
    """A run whose first intent takes a second to write."""
    world = World()
    audit = SlowAudit(store, world.clock, BOOT)
    audit.world, audit.event = world, event

    async def run() -> RunOutcome:
        what = plan(TERMINATE, request=replace(ORDER, **order))
        return await LadderRun(what, RULES, replace(context(world, store), audit=audit)).run()

    return asyncio.run(run()), world, audit


def test_nothing_has_changed(store: Store) -> None:
    """A slow disk alone keeps nobody from acting."""
    outcome, world, _ = run_ladder(store, lambda _: None)
    assert (outcome.result, world.log) == (RunResult.RELEASED, [("SIGTERM", 100)])


@pytest.mark.parametrize(
    ("event", "order", "result"),
    [
        (changed(condition=Condition.OVER), {}, RunResult.RESOLVED),
        (changed(condition=Condition.UNKNOWN, reason="the GPU cannot be read"), {}, RunResult.REFUSED),
        (changed(act_refusal="impossible figures"), {}, RunResult.REFUSED),
        (changed(target=None), {}, RunResult.REFUSED),
        (changed(trusted=False), {}, RunResult.REFUSED),
        (changed(choice=VictimChoice(())), {"victim": "largest"}, RunResult.REFUSED),
    ],
    ids=["the alert has ended", "blind", "untrue figures", "off the GPU", "a shuffled list", "another one is larger"],
)
def test_the_reason_has_gone_meanwhile(store: Store, event: Event, order: dict[str, Any], result: RunResult) -> None:
    """KILL-06: no signal is sent on a reading of before, and the record says that it was not."""
    outcome, world, audit = run_ladder(store, event, **order)
    assert (outcome.result, outcome.acted, world.log) == (result, False, [])
    assert [row.data["detail"].startswith("not done: ") for row in audit.events() if row.kind == RESULT] == [True]


def test_it_complied_meanwhile(store: Store) -> None:
    """KILL-06: where less is held than before, the rule sees that first, and its verdict counts."""

    def comply(world: World) -> None:
        holds(1)(world)
        world.events.append(changed(condition=Condition.OVER))

    outcome, world, _ = run_ladder(store, comply)
    assert (outcome.result, world.log) == (RunResult.RESOLVED, [])


def test_it_grew_meanwhile(store: Store) -> None:
    """More than before is no reason to wait for the rule."""
    outcome, world, _ = run_ladder(store, holds(9))
    assert (outcome.result, world.log) == (RunResult.RELEASED, [("SIGTERM", 100)])


def test_no_reading_came_meanwhile(store: Store) -> None:
    """KILL-06: an old reading ends nobody, however it came to be old."""

    def blind(world: World) -> None:
        world.observation_changes["clock_seconds"] = world.clock.now() - 1.0
        world.clock.advance(60.0)
        world.deaf = True

    outcome, world, _ = run_ladder(store, blind)
    assert (outcome.result, world.log) == (RunResult.REFUSED, [])
    assert "no fresh reading" in outcome.detail


@pytest.mark.parametrize("tied", [False, True])
def test_looking_at_every_process_takes_seconds(store: Store, tied: bool) -> None:
    """Ten thousand processes of somebody keep nobody from acting; who is tied to it is seen right before the signal."""
    world = World()
    world.look_seconds = 3.0

    async def run() -> RunOutcome:
        made = context(world, store)
        audit = SlowAudit(store, world.clock, BOOT)
        audit.world = world
        audit.event = lambda world: setattr(world, "ties", Ties(unseen="hidden")) if tied else None
        return await LadderRun(plan(TERMINATE, request=ORDER), RULES, replace(made, audit=audit)).run()

    outcome = asyncio.run(run())
    if tied:
        assert (outcome.result, world.log) == (RunResult.REFUSED, [])
        assert "hidden" in outcome.detail
    else:
        assert (outcome.result, world.log) == (RunResult.RELEASED, [("SIGTERM", 100)])
