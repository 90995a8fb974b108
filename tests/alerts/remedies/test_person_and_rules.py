"""By hand is not by rule: limits bound rules, a person's acts count for them, and neither is taken for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule, RemedyRules
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import (
    BOOT,
    GIB,
    KILL,
    RESTART,
    RULES,
    TERMINATE,
    World,
    context,
    plan,
    run_ladder,
    target,
)

PERSON = RemedyRequest(asked_by="alice (uid 1000)")
STRICT = replace(
    RULES,
    limits=RemedyLimits(pause=60, per_hour=2, per_day=5, unit_per_hour=1, cooldown=900, breaker=2),
)
RANKS = tuple(target(pid, key=MemoryKey("GPU-0", pid), used_bytes=10 * GIB) for pid in range(100, 108))


def asked(world: World, pid: int, *steps: RemedyStep, **changes: Any) -> Plan:
    """What a person asks for, about a process of this world."""
    return replace(plan(*(steps or (TERMINATE, KILL)), of=world.bodies[pid].target, request=PERSON), **changes)


def manager(
    world: World, store: Store, ends: list[str], rules: RemedyRules = RULES, steps: Sequence[RemedyStep] = ()
) -> RemedyManager:
    """With one ladder for every alert; how each run ended is added to `ends`."""

    def told(plan: Plan, _: object, outcome: RunOutcome, __: bool) -> None:
        ends.append(f"{plan.target.pid} {outcome.result}")

    ladder = LadderRule(lambda labels: True, tuple(steps) or (TERMINATE, KILL), dry_run=False)
    return RemedyManager([ladder], rules, context(world, store), proof_seconds=20.0, on_run_end=told)


def fire(made: RemedyManager, world: World, pid: int) -> None:
    """An alert about a process, with evidence."""
    labels = {"alertname": "Full", "pid": str(pid)}
    seen = [body.target for body in world.bodies.values() if body.alive]
    made.consider([AlertCandidates(Alert(labels, {}, Status.FIRING, world.clock.wall()), 1e9, seen)])


async def begun(made: RemedyManager, number: int) -> None:
    """So many runs are under way."""
    for _ in range(100_000):
        if len(made.running) == number:
            return
        await asyncio.sleep(0)
    pytest.fail(f"{len(made.running)} runs are under way, not {number}")


def test_no_limit_bounds_a_person(store: Store) -> None:
    """Eight ranks of one interpreter, user and command within a minute: no pause, budget, cool-down or breaker."""
    for rank in RANKS:
        world = World(rank)
        world.back_after = 1e9  # nothing comes back: for rules the breaker would open
        assert run_ladder(world, asked(world, rank.pid), store, STRICT).result is RunResult.STILL_LISTED
        assert world.log == [("SIGTERM", rank.pid)]


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        ({"pause": 600.0}, "remedies.limits.pause"),
        ({"per_hour": 1}, "per_hour is 1"),
        ({"per_day": 1}, "per_day is 1"),
        ({"cooldown": 600.0}, "cools down"),
        ({"breaker": 1}, "rules leave the processes of"),
    ],
)
def test_what_a_person_does_counts_for_rules(store: Store, limits: dict[str, Any], word: str) -> None:
    """Each limit of a rule sees the act by hand; a dry run by hand is none."""
    rules = replace(RULES, limits=replace(RULES.limits, **limits))
    rehearsal, world, after = World(), World(), World()
    world.back_after = 1e9
    run_ladder(rehearsal, asked(rehearsal, 100, dry_run=True), store, rules)
    assert Audit(store, rehearsal.clock, BOOT).past(dry_run=False) == []
    run_ladder(world, asked(world, 100), store, rules)
    outcome = run_ladder(after, plan(KILL), store, rules)
    assert (outcome.result, word in outcome.detail) == (RunResult.REFUSED, True)
    assert after.log == []


class _Always(list[Callable[[World], None]]):
    """The same event at every look, however many there are on a busy machine."""

    def __init__(self, event: Callable[[World], None]) -> None:
        super().__init__([event])

    def pop(self, _index: SupportsIndex = 0) -> Callable[[World], None]:
        return self[0]


def test_eight_ranks_do_not_wait_for_eight_proofs(store: Store) -> None:
    """All are signaled while the first is still being proved, and each counts its own memory, not the others'."""
    world = World(*RANKS)
    world.back_after = 1e9

    def give_back(world: World) -> None:
        """No memory comes back before all have ended: whoever waits for a proof first never gets there."""
        if not any(body.alive for body in world.bodies.values()):
            world.back_after = 0.0

    world.events = _Always(give_back)

    async def story() -> None:
        ends: list[str] = []
        made = manager(world, store, ends)
        runs = [asyncio.create_task(made.by_hand(asked(world, rank.pid, proof_seconds=1e6))) for rank in RANKS]
        outcomes = await asyncio.gather(*runs)
        assert [(each.result, each.released_bytes) for each in outcomes] == [(RunResult.RELEASED, 10 * GIB)] * 8
        assert made.released_bytes == 80 * GIB

    asyncio.run(story())
    assert sorted(world.log) == [("SIGTERM", rank.pid) for rank in RANKS]


def test_what_others_give_back_is_no_proof(store: Store) -> None:
    """Two fall together and the memory of one is held by nobody: what came back is told of one of them at most."""
    world = World(*RANKS[:2])
    world.observation_changes = {"gpu_unattributed_bytes": 0}

    def lost(world: World) -> None:
        if not world.bodies[100].alive:
            world.observation_changes = {"gpu_unattributed_bytes": 10 * GIB}

    world.events = _Always(lost)

    async def story() -> None:
        made = manager(world, store, [])
        runs = [asyncio.create_task(made.by_hand(asked(world, pid))) for pid in (100, 101)]
        results = sorted([(await run).result for run in runs])
        assert results in ([RunResult.RELEASED, RunResult.UNACCOUNTED], [RunResult.UNACCOUNTED, RunResult.UNACCOUNTED])

    asyncio.run(story())


def test_rules_wait_for_a_person(store: Store) -> None:
    """While people act on a GPU no rule begins there; when the last of them is done, it may."""
    world = World(*RANKS[:3])
    for body in world.bodies.values():
        body.stubborn = True

    async def story() -> None:
        ends: list[str] = []
        made = manager(world, store, ends)
        people = [asyncio.create_task(made.by_hand(asked(world, pid))) for pid in (100, 101)]
        await begun(made, 2)
        fire(made, world, 102)
        assert {run.plan.target.pid for run in made.running} == {100, 101}
        await asyncio.gather(*people)
        fire(made, world, 102)
        assert {run.plan.target.pid for run in made.running} == {102}
        await made.close()

    asyncio.run(story())


def test_a_person_waits_for_no_rule(store: Store) -> None:
    """KILL-06: a process that ignores a rule's SIGTERM does not hold up the operator; the rule goes no further."""
    world = World(*RANKS[:2])
    world.bodies[100].stubborn = True

    async def story() -> None:
        ends: list[str] = []
        made = manager(world, store, ends)
        fire(made, world, 100)
        await begun(made, 1)
        assert (await made.by_hand(asked(world, 101))).result is RunResult.RELEASED
        await made.idle()

    asyncio.run(story())
    assert ("SIGKILL", 100) not in world.log


def test_the_same_deed_is_done_once(store: Store) -> None:
    """Two people end one process, or restart one unit: the second is told, for real and in a dry run."""
    units = (target(100, unit="a.service"), target(101, key=MemoryKey("GPU-0", 101), unit="a.service"))
    for world, first, second in (
        (World(*RANKS[:2]), (100, KILL), (100, KILL)),
        (World(*units), (100, RESTART), (101, RESTART)),
    ):

        async def story(world: World, first: tuple[int, RemedyStep], second: tuple[int, RemedyStep]) -> None:
            made = manager(world, store, [])
            one = asyncio.create_task(made.by_hand(asked(world, *first)))
            await begun(made, 1)
            for dry_run in (True, False):
                assert "under way" in (await made.by_hand(asked(world, *second, dry_run=dry_run))).detail
            assert (await one).result is RunResult.RELEASED

        asyncio.run(story(world, first, second))
        assert len(world.log) == 1


def test_one_that_cannot_be_killed_keeps_rules_away_and_nobody_else(store: Store) -> None:
    """Seven ranks beside one in state D: a person clears them, rules leave the GPU alone."""
    world = World(*RANKS[:3])
    world.bodies[100].immortal = True

    async def story() -> None:
        ends: list[str] = []
        made = manager(world, store, ends)
        assert (await made.by_hand(asked(world, 100))).result is RunResult.UNKILLABLE
        fire(made, world, 102)
        assert made.running == ()
        assert (await made.by_hand(asked(world, 101))).result is RunResult.RELEASED

    asyncio.run(story())
