"""What a person asks of an app goes up the same ladder: looked at first, recorded, and answered by what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import END, INTENT, RESULT
from gpuagent_alerts.remedies.observation import ActionResult, RemedyRequest
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, GIB, RELEASE, RULES, TERMINATE, World, plan, run_ladder

RESET = RemedyStep(StepKind.RESET, 60.0)
NOBODY = replace(RULES, policy=Policy(AllowList()))
OTHERS = replace(RULES, policy=Policy(AllowList(users=("somebody-else",))))


def by_hand(*steps: RemedyStep, forced: bool = False, **changes: Any) -> Plan:
    """As alice asks for it."""
    return plan(*steps, request=RemedyRequest(asked_by="alice (uid 1000)", forced=forced), **changes)


def kinds(world: World, store: Store) -> list[str]:
    """Of the rows on record."""
    return [event.kind for event in Audit(store, world.clock, BOOT).events()]


def test_the_answer_is_the_outcome(store: Store) -> None:
    """Bytes by the driver's count, the app's own figures beside them, and no waiting for an alert that there is not."""
    world = World()
    world.app_answers = ActionResult(ok=True, answer={"released_bytes": 3 * GIB, "took_ms": 7.0})
    outcome = run_ladder(world, by_hand(replace(RELEASE, collect=True)), store, NOBODY)
    assert (outcome.result, outcome.released_bytes, outcome.acted) == (RunResult.RELEASED, 3 * GIB, False)
    assert outcome.answer["took_ms"] == 7.0
    assert (world.log, world.collected) == ([("release_cache", 100)], True)
    assert kinds(world, store) == ["begin", INTENT, RESULT, END]
    assert outcome.seconds is not None
    assert outcome.seconds < RELEASE.wait_seconds


@pytest.mark.parametrize(
    ("done", "result", "words"),
    [
        (
            ActionResult(ok=True, detail="given back", answer={"released_bytes": 0}),
            RunResult.NO_EFFECT,
            "nothing came back",
        ),
        (
            ActionResult(ok=True, detail="given back", answer={"released_bytes": None}),
            RunResult.NO_EFFECT,
            "given back",
        ),
        (
            ActionResult(ok=False, detail="once a minute", answer={"reason": "refused"}),
            RunResult.FAILED,
            "once a minute",
        ),
    ],
)
def test_an_answer_that_gave_nothing(store: Store, done: ActionResult, result: RunResult, words: str) -> None:
    """Said as it is: no figure is made up, and an app's refusal is no success."""
    world = World()
    world.app_answers = done
    outcome = run_ladder(world, by_hand(RELEASE), store)
    assert outcome.result is result
    assert words in outcome.detail
    assert outcome.released_bytes in {0, None}


def test_an_allow_list_that_is_given_is_kept_to(store: Store) -> None:
    """Whom it does not name is left alone at every step, unless forced."""
    world = World()
    for step in (RELEASE, RESET, TERMINATE):
        assert run_ladder(world, by_hand(step), store, OTHERS).result is RunResult.REFUSED
    assert world.log == []
    for step in (RELEASE, RESET, TERMINATE):
        run_ladder(world, by_hand(step, forced=True), store, OTHERS)
    assert world.log == [("release_cache", 100), ("reset", 100), ("SIGTERM", 100)]


def test_without_an_allow_list_a_persons_word_is_enough(store: Store) -> None:
    """At every step; a list that only says how old or large a process must be is a list that is given."""
    world = World()
    for step in (RELEASE, RESET, TERMINATE):
        run_ladder(world, by_hand(step), store, NOBODY)
    assert world.log == [("release_cache", 100), ("reset", 100), ("SIGTERM", 100)]
    old = replace(RULES, policy=Policy(AllowList(min_age=1e12)))
    assert run_ladder(World(), by_hand(TERMINATE), store, old).result is RunResult.REFUSED


def test_a_rule_needs_the_allow_list_even_to_ask(store: Store) -> None:
    """The exception is a person's: what a rule asks of an app is named in the configuration."""
    world = World()
    assert run_ladder(world, plan(RELEASE), store, NOBODY).result is RunResult.REFUSED
    assert world.log == []


@pytest.mark.parametrize("change", [{"trusted": False}, {"host_pid_namespace": False}, {"target": None}])
def test_doubt_stands_above_a_person(store: Store, change: dict[str, Any]) -> None:
    """What cannot be lifted for a kill cannot be lifted to ask either."""
    world = World()
    world.observation_changes = change
    assert run_ladder(world, by_hand(RELEASE, forced=True), store).result is RunResult.REFUSED
    assert world.log == []


def test_never_list(store: Store) -> None:
    """KILL-03: nobody asks the fabric manager for its cache."""
    world = World()
    world.bodies[100].identity = replace(world.bodies[100].identity, name="nv-fabricmanage", executable=None)
    world.bodies[100].target = replace(world.bodies[100].target, name="nv-fabricmanage")
    outcome = run_ladder(world, by_hand(RELEASE, forced=True, of=world.bodies[100].target), store)
    assert (outcome.result, "never-list" in outcome.detail) == (RunResult.REFUSED, True)
    assert world.log == []


def test_a_dry_run_asks_nobody(store: Store) -> None:
    """Decided and recorded, and the app hears nothing."""
    world = World()
    assert run_ladder(world, by_hand(RELEASE, dry_run=True), store).result is RunResult.DRY_RUN
    assert world.log == []
    assert INTENT in kinds(world, store)


def test_before_another_step_the_answer_is_not_the_end(store: Store) -> None:
    """`kill` with a cache to be given back first goes on to the signal."""
    world = World()
    world.app_answers = ActionResult(ok=True, answer={"released_bytes": GIB})
    assert run_ladder(world, by_hand(RELEASE, TERMINATE), store).result is RunResult.RELEASED
    assert world.log == [("release_cache", 100), ("SIGTERM", 100)]
