"""A dry run by hand says what the same command says a second later: the same checks, in the same world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule, RemedyRules
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import KILL, RESTART, RULES, TERMINATE, World, context, plan, target

LADDER = (TERMINATE, KILL)
UNIT = "whisper.service"
PERSON = RemedyRequest(asked_by="alice (uid 1000)")


def world_of(**changes: Any) -> World:
    """One process on GPU 0, and one on which a rule could act."""
    return World(target(100, **changes), target(101))


def changed(name: str, value: object) -> Callable[[World], None]:
    """A change of the body of the process."""
    return lambda world: setattr(world.bodies[100], name, value)


def facts(**values: Any) -> Callable[[World], None]:
    """A change of what /proc tells of it."""
    return lambda world: world.bodies[100].facts_changes.update(values)


def observation(**values: Any) -> Callable[[World], None]:
    """A change of what is seen of the GPU."""
    return lambda world: world.observation_changes.update(values)


def nothing(_: World) -> None:
    """The world as it is."""


CASES: list[tuple[str, Callable[[World], None], dict[str, Any], tuple[RemedyStep, ...], RemedyRules, str]] = [
    ("nothing against it", nothing, {}, LADDER, RULES, ""),
    ("not on the allow list", nothing, {}, LADDER,
     replace(RULES, policy=Policy(AllowList(users=("bob",)))), "allow.users"),
    ("never-list", nothing, {"name": "sshd"}, LADDER, RULES, "never-list"),
    ("no right to signal", changed("permitted", False), {}, LADDER, RULES, "not permitted"),
    ("supervised", nothing, {"unit": UNIT}, LADDER, RULES, "systemd supervises it"),
    ("job of cron", nothing, {"unit": "cron.service", "parent_pid": 7}, LADDER, RULES, ""),
    ("orphan of a job of at", nothing, {"unit": "atd.service", "parent_pid": 1}, LADDER, RULES, ""),
    ("unit refuses", lambda world: setattr(world, "unit_problem", "start limit"), {"unit": UNIT}, (RESTART,), RULES,
     "start limit"),
    ("unit restarted", nothing, {"unit": UNIT}, (RESTART,), RULES, ""),
    ("no unit", nothing, {}, (RESTART,), RULES, "no systemd unit"),
    ("MPS", nothing, {"kinds": "MC"}, LADDER, RULES, "client of MPS"),
    ("container", nothing, {"container_id": "c" * 64}, LADDER, RULES, "allow.containers names none"),
    ("zombie", changed("state", "Z"), {}, LADDER, RULES, "zombie"),
    ("state D", changed("state", "D"), {}, LADDER[:1], RULES, "only SIGKILL may reach it now, and not SIGTERM"),
    ("state D, restart", changed("state", "D"), {"unit": UNIT}, (RESTART,), RULES, "only SIGKILL may reach it now"),
    ("ending", facts(ending=True), {}, LADDER, RULES, "it is ending"),
    ("oom_score_adj", facts(oom_score_adjust=-1000), {}, LADDER, RULES, "oom_score_adj"),
    ("list in doubt", observation(trusted=False), {}, LADDER, RULES, "form than documented"),
    ("other namespace", observation(host_pid_namespace=False), {}, LADDER, RULES, "namespace"),
    ("left the GPU", observation(target=None), {}, LADDER, RULES, "no longer on the GPU"),
    ("no reading", lambda world: setattr(world, "deaf", True), {}, LADDER, RULES, "fresh reading"),
    ("number reused", lambda world: world.reuse(100), {}, LADDER, RULES, "another process"),
    ("ended", lambda world: world.end(100), {}, LADDER, RULES, "ended"),
    ("exec at the last moment", lambda world: world.inner.extend([nothing, nothing, lambda w: w.exec(100)]), {}, LADDER,
     RULES, "command line has changed"),
    ("a rule acts on the GPU", lambda world: setattr(world.bodies[101], "stubborn", True), {}, LADDER, RULES, ""),
]  # fmt: skip


async def _ask(
    world: World, what: tuple[RemedyStep, ...], rules: RemedyRules, store: Store, *, dry_run: bool, busy: bool
) -> RunOutcome:
    ladder = LadderRule(lambda labels: True, LADDER, dry_run=False)
    made = RemedyManager([ladder], rules, context(world, store), proof_seconds=20.0, on_run_end=lambda *_: None)
    if busy:
        alert = Alert({"alertname": "Full", "pid": "101"}, {}, Status.FIRING, 1.0)
        made.consider([AlertCandidates(alert, 1e9, [world.bodies[101].target])])
    of = world.bodies[100].target if world.bodies[100].target.uid == 1000 else target(100)
    try:
        return await made.by_hand(plan(*what, of=of, request=PERSON, dry_run=dry_run))
    finally:
        await made.close()


@pytest.mark.parametrize(("name", "change", "of", "steps", "rules", "word"), CASES, ids=[case[0] for case in CASES])
def test_the_same_verdict(
    store: Store,
    name: str,
    change: Callable[[World], None],
    of: dict[str, Any],
    steps: tuple[RemedyStep, ...],
    rules: RemedyRules,
    word: str,
) -> None:
    """Result and reasons are the same wherever anything stands against it, and the dry run reaches nobody."""
    outcomes = {}
    for dry_run in (True, False):
        world = world_of(**of)
        change(world)
        busy = "a rule acts" in name
        outcomes[dry_run] = asyncio.run(_ask(world, steps, rules, store, dry_run=dry_run, busy=busy))
        if dry_run and not busy:
            assert world.log == []
    dry, real = outcomes[True], outcomes[False]
    if word:
        assert word in real.detail
        assert (dry.result, dry.detail) == (real.result, real.detail)
    else:
        assert (dry.result, real.result) == (RunResult.DRY_RUN, RunResult.RELEASED)
