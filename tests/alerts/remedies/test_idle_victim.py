"""The victim policy `idle`, from the choice to the last look before a step; and figures that forbid every act."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.safeguards.policy import Policy
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy, rank
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import GIB, KILL, ORDER, RELEASE, RULES, TERMINATE, World, context, target

IDLE = replace(ORDER, alertname="Full", victim="idle", labels={})


def run_ladder(
    world: World, *steps: RemedyStep, of: Target | None = None, scope: str = "process", idle_for_seconds: float = 300.0
) -> RunOutcome:
    """Run a ladder for an alert that names no process."""
    rules = replace(RULES, policy=replace(RULES.policy, idle_for_seconds=idle_for_seconds))
    chosen = of or next(iter(world.bodies.values())).target
    plan = Plan(IDLE, chosen, steps or (KILL,), dry_run=False, scope=scope)
    return asyncio.run(LadderRun(plan, rules, context(world, Store(None))).run())


@pytest.mark.parametrize(
    ("idle_seconds", "idle_for", "chosen"), [(None, 300, False), (299, 300, False), (300, 300, True), (60, 30, True)]
)
def test_chosen_only_after_the_stated_time(idle_seconds: float | None, idle_for: float, chosen: bool) -> None:
    """KILL-08: unknown is not idle, and neither is too short a time; the reason says for how long."""
    one = target(sm_ratio=0.0, idle_seconds=idle_seconds)
    ranking = rank(VictimPolicy.IDLE, [one], 1e6, idle_for)

    assert bool(ranking) == chosen
    assert all(candidate.reason.startswith("idle for") for candidate in ranking)


@pytest.mark.parametrize(
    ("now", "words"), [(None, "no longer idle"), (1.0, "not been idle for")], ids=["not sampled", "has worked"]
)
def test_checked_again_before_the_act(now: float | None, words: str) -> None:
    """KILL-08: idle when it was chosen, at work or unknown on the reading before the step: it lives."""
    world = World(target(idle_seconds=600.0))

    def works(world: World) -> None:
        world.bodies[100].target = replace(world.bodies[100].target, idle_seconds=now)

    world.events.append(works)
    outcome = run_ladder(world)

    assert (outcome.result, world.log) == (RunResult.REFUSED, [])
    assert words in outcome.detail


def test_checked_again_before_every_step() -> None:
    """KILL-08: it has gone to work during the first step: the second is not taken."""
    world = World(target(idle_seconds=600.0))
    world.on_release = lambda world: setattr(world.bodies[100], "target", target(idle_seconds=None))
    outcome = run_ladder(world, RELEASE, TERMINATE)

    assert (outcome.result, world.log) == (RunResult.REFUSED, [("release_cache", 100)])


def test_who_falls_with_it_must_be_idle_too() -> None:
    """KILL-08: all of a job are idle, or none is ended for being so."""
    idle, worker = target(100, idle_seconds=600.0), target(101, idle_seconds=None)
    world = World(idle, worker)
    world.relatives = (101,)
    refused = run_ladder(world, scope="job", of=idle)
    assert (refused.result, world.log) == (RunResult.REFUSED, [])
    assert "pid 101, which falls with it: it is no longer idle" in refused.detail

    world = World(idle, replace(worker, idle_seconds=600.0))
    world.relatives = (101,)
    assert run_ladder(world, scope="job", of=idle).result is RunResult.RELEASED


def test_an_idle_process_is_ended() -> None:
    """The ordinary case: idle for long enough, and still so."""
    assert run_ladder(World(target(idle_seconds=600.0))).result is RunResult.RELEASED


def test_figures_that_forbid_it() -> None:
    """NUM-12: whatever the step and whoever asks, nothing is done on figures that were impossible."""
    for order in (IDLE, ORDER, replace(ORDER, alert="", asked_by="ann (uid 0)", forced=True)):
        world = World(target(idle_seconds=600.0))
        world.observation_changes = {"act_refusal": "the driver's figures were impossible"}
        for step in (RELEASE, TERMINATE, KILL, RemedyStep(StepKind.RESTART_UNIT, 1.0)):
            plan = Plan(order, target(idle_seconds=600.0), (step,), dry_run=False)
            outcome = asyncio.run(LadderRun(plan, RULES, context(world, Store(None))).run())
            assert (outcome.result, world.log) == (RunResult.REFUSED, [])
            assert "impossible" in outcome.detail


def test_figures_that_forbid_it_forbid_the_next_one_too() -> None:
    """NUM-12: the reason is the GPU's: the others of the ranking are not tried, and the record holds it once."""
    largest, smaller = target(100, used_bytes=9 * GIB), target(101)
    world = World(largest, smaller)
    world.observation_changes = {"act_refusal": "the driver's figures were impossible"}
    full = Alert({"alertname": "Full", "gpu": "0"}, {}, Status.FIRING, 1.7e9)
    ladder = LadderRule(lambda labels: True, (KILL,), dry_run=False, victim=VictimPolicy.LARGEST)
    told: list[tuple[int, str, bool]] = []

    async def story() -> None:
        remedies = RemedyManager(
            [ladder], RULES, context(world, Store(None)), proof_seconds=5.0,
            on_run_end=lambda plan, run, outcome, again: told.append((plan.target.pid, outcome.result, again)),
        )  # fmt: skip
        for _ in range(10):
            remedies.consider([AlertCandidates(full, 1e6, [largest, smaller])])
            await remedies.idle()
            world.clock.advance(30)

    asyncio.run(story())

    assert world.log == []
    assert told[0] == (100, "refused", False)
    assert {(pid, again) for pid, _, again in told[1:]} == {(100, True)}


def test_the_default_is_five_minutes() -> None:
    """The policy without a configuration has the documented time."""
    assert Policy().idle_for_seconds == 300.0
