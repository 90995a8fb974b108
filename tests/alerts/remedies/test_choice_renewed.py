"""The choice of a victim is made again before every step: by the reading on which the step is decided."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.safeguards.victim import VictimChoice, VictimPolicy
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, GIB, KILL, ORDER, RULES, TERMINATE, World, plan, run_ladder, target

ME, OTHER = target(100), target(101)
NOTIFY = RemedyStep(StepKind.NOTIFY, 5.0)


def end(
    choice: VictimChoice, tmp_path: Path, *steps: RemedyStep, victim: str = "largest", **changes: object
) -> tuple[RunOutcome, World]:
    """Run a ladder on `ME`, which the alert has chosen, where this is the choice on each reading."""
    world = World(ME, OTHER)
    world.observation_changes = {"choice": choice}
    order = replace(ORDER, labels={}, alertname="GpuMemoryHigh", victim=victim, **changes)  # type: ignore[arg-type]
    store = Store(tmp_path / "state.db")
    outcome = run_ladder(world, plan(*(steps or (KILL,)), of=ME, request=order), store)
    store.close()
    return outcome, world


@pytest.mark.parametrize("victim", [str(each) for each in VictimPolicy if each is not VictimPolicy.IDLE])
def test_who_is_no_longer_the_choice_is_left_alone(tmp_path: Path, victim: str) -> None:
    """KILL-09: another is the largest, newest or steepest by now: nothing is done to anybody."""
    outcome, world = end(VictimChoice((OTHER.id, ME.id)), tmp_path, victim=victim)
    assert outcome.result is RunResult.REFUSED
    assert outcome.general
    assert "any more" in outcome.detail
    assert world.log == []


def test_who_is_the_choice_still_is_ended(tmp_path: Path) -> None:
    """The same reading, and the first of its ranking."""
    outcome, _ = end(VictimChoice((ME.id, OTHER.id), unranked_bytes=ME.used_bytes - 1), tmp_path)
    assert outcome.result is RunResult.RELEASED


def test_who_complied_in_between_is_left_alone(tmp_path: Path) -> None:
    """KILL-09: chosen as the largest, it gave its memory back while it was warned: the next step spares it."""
    world = World(ME, OTHER)
    world.observation_changes = {"choice": VictimChoice((ME.id, OTHER.id))}

    def overtaken(world: World) -> None:
        if world.log:
            world.observation_changes = {"choice": VictimChoice((OTHER.id, ME.id))}

    world.events = [overtaken] * 50
    order = replace(ORDER, labels={}, alertname="GpuMemoryHigh", victim="largest")
    store = Store(tmp_path / "state.db")
    outcome = run_ladder(world, plan(NOTIFY, TERMINATE, of=ME, request=order), store)
    store.close()
    assert outcome.result is RunResult.REFUSED
    assert [what for what, _ in world.log] == ["notify"]


@pytest.mark.parametrize("nobodys", [ME.used_bytes, math.inf])
def test_memory_of_nobody_known_may_be_the_largest(tmp_path: Path, nobodys: float) -> None:
    """KILL-09: dead, hidden and unknown memory is in no ranking: whoever may be smaller is not called the largest."""
    outcome, world = end(VictimChoice((ME.id,), unranked_bytes=nobodys), tmp_path)
    assert outcome.result is RunResult.REFUSED
    assert "cannot be told" in outcome.detail
    assert world.log == []


def test_an_unknown_start_may_be_the_newest(tmp_path: Path) -> None:
    """KILL-09: a listed number whose process is not known, or that is on no list, may have come last."""
    for choice in (VictimChoice((ME.id,), unranked=True), VictimChoice((ME.id,), unranked_bytes=ME.used_bytes)):
        outcome, world = end(choice, tmp_path, victim="newest")
        assert (outcome.result, world.log) == (RunResult.REFUSED, [])
    outcome, _ = end(VictimChoice((ME.id,), unranked_bytes=ME.used_bytes - 1), tmp_path, victim="newest")
    assert outcome.result is RunResult.RELEASED


def test_those_that_the_allow_list_does_not_mean_are_passed_over(tmp_path: Path) -> None:
    """A larger process of a user whom the allow list does not name does not stand in the way."""
    larger = ProcessId(BOOT, 102, 1020)
    outcome, _ = end(VictimChoice((larger, ME.id)), tmp_path, passed_over=frozenset({larger}))
    assert outcome.result is RunResult.RELEASED
    outcome, _ = end(VictimChoice((larger, ME.id)), tmp_path)
    assert outcome.result is RunResult.REFUSED


def leave(pid: int) -> Callable[[World], None]:
    """The process gives its memory back and lives on."""
    return lambda world: setattr(world, "relatives", tuple(each for each in world.relatives if each != pid))


def test_a_member_that_has_left_the_gpu_is_no_reason(tmp_path: Path) -> None:
    """KILL-09: of those that fall together one holds no GPU memory any more: it is not ended, and so nobody is."""
    rank = target(101, key=MemoryKey("GPU-1", 101), gpu_index=1, used_bytes=GIB)
    world = World(ME, rank)
    world.relatives = (101,)
    world.events = [lambda world: None, leave(101)]
    store = Store(tmp_path / "state.db")
    outcome = run_ladder(world, plan(KILL, of=ME, scope="job"), store)
    store.close()
    assert outcome.result is RunResult.REFUSED
    assert "holds no GPU memory any more" in outcome.detail
    assert world.log == []


def test_how_much_a_member_holds_is_no_matter(tmp_path: Path) -> None:
    """`min_memory` is of the chosen process: a small rank that falls with it does not protect the large one."""
    small = target(101, used_bytes=1)
    rules = replace(RULES, policy=replace(RULES.policy, allow=replace(RULES.policy.allow, min_memory=GIB)))
    world = World(ME, small)
    world.relatives = (101,)
    store = Store(tmp_path / "state.db")
    outcome = run_ladder(world, plan(KILL, of=ME, scope="job"), store, rules)
    store.close()
    assert outcome.result is RunResult.RELEASED
