"""Receivers are told of what was done to a process, and of nothing that was only considered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import runs
from gpuagent_alerts.remedies.history import RemedyHistory, has_taken_a_step
from gpuagent_alerts.remedies.observation import Condition
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, KILL, RELEASE, RULES, TERMINATE, World, context, plan, target

NOTIFY = RemedyStep(StepKind.NOTIFY, 5.0)


def over(world: World) -> None:
    """The alert has ended."""
    world.condition = Condition.OVER


def exec_at_the_last_look(world: World) -> None:
    """The process becomes another program between the decision and the act."""
    world.inner = [lambda _: None, lambda _: None, lambda made: made.exec(100)]


def stranger(world: World) -> None:
    """Its user is not allowed."""
    world.bodies[100].target = target(user="other")


def nothing(_: World) -> None:
    """All is well."""


@pytest.mark.parametrize(
    ("steps", "before", "dry_run", "told"),
    [
        ((KILL,), over, False, []),
        ((KILL,), stranger, False, []),
        ((KILL,), exec_at_the_last_look, False, []),
        ((KILL,), nothing, False, ["released"]),
        ((RELEASE,), nothing, False, ["no_effect"]),
        ((NOTIFY, TERMINATE), nothing, False, ["released"]),
        ((KILL,), nothing, True, ["dry_run"]),
        ((KILL,), stranger, True, []),
    ],
    ids=[
        "resolved",
        "refused",
        "forbidden at the last look",
        "killed",
        "cache",
        "notice",
        "dry run",
        "dry and refused",
    ],
)
def test_what_is_told(
    steps: Sequence[RemedyStep], before: Callable[[World], None], dry_run: bool, told: list[str]
) -> None:
    """ALERT-04: a message for a step that was taken, or would have been; by this agent and by the next one alike."""
    store, world = Store(None), World()
    before(world)

    async def story() -> None:
        made = LadderRun(plan(*steps, dry_run=dry_run), RULES, context(world, store))
        outcome = await made.run()
        history, later = RemedyHistory(world.clock), RemedyHistory(world.clock)
        history.add_run(made, outcome, again=False)
        later.restore(runs(Audit(store, world.clock, BOOT).events()))
        assert [note.result for note in history.recent() if note.step_taken] == told
        assert [note.result for note in later.recent() if note.step_taken] == told
        if told:
            about = made.plan.target
            words = history.last_action_text("", str(about.pid), about.key.gpu_uuid)
            assert words.startswith(f"{made.name_of_step} of pid {about.pid}: {told[0].replace('_', ' ')[:3]}")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], False),
        ([("intent", {})], True),
        ([("intent", {}), ("result", {"taken": True})], True),
        ([("intent", {}), ("result", {"taken": False})], False),
        ([("intent", {}), ("result", {"ok": False, "detail": "not done: it has ended by itself"})], False),
        ([("intent", {}), ("result", {"ok": True})], True),
        ([("intent", {}), ("intent", {}), ("result", {"taken": False})], True),
        ([("intent", {}), ("result", {"taken": True}), ("intent", {}), ("result", {"taken": False})], True),
    ],
    ids=["none", "unknown", "taken", "not taken", "not taken, older", "taken, older", "unknown, again", "taken, again"],
)
def test_steps_on_record(rows: list[tuple[str, dict[str, object]]], expected: bool) -> None:
    """A step without a result may have been taken; rows of an older version say it by their words."""
    assert has_taken_a_step([{"kind": kind, "step": "SIGTERM", **data} for kind, data in rows]) is expected
