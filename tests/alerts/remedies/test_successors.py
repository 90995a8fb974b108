"""A parent that starts its worker again, and a unit that is restarted: what came back, and who holds it now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, GIB, KILL, World, plan, run_ladder, target


def newcomer(used_bytes: int, start_ticks: int = 5000) -> Target:
    """The worker that takes the place of pid 100."""
    return target(
        101, id=ProcessId(BOOT, 101, start_ticks), key=MemoryKey("GPU-0", 101), used_bytes=used_bytes, parent_pid=50
    )


def story(used_bytes: int, *, successor: bool = True, start_ticks: int = 5000) -> World:
    """As pid 100 is killed, the newcomer is on the GPU."""
    new = newcomer(used_bytes, start_ticks)
    world = World(target(), new)
    world.bodies[101].alive = False
    appeared = False

    def appears(world: World) -> None:
        nonlocal appeared
        if not world.bodies[100].alive and not appeared:
            appeared, world.bodies[101].alive = True, True
            world.ended_at.pop(101, None)
            world.successors = (101,) if successor else ()
            world.relatives = () if successor else (101,)

    world.events = [appears] * 50
    return world


@pytest.mark.parametrize("successor", [True, False], ids=["worker", "unit"])
def test_the_successor_holds_as_much(store: Store, successor: bool) -> None:
    """The kill gave nothing back: said so, with the one who holds it now; the breaker counts it as of no use."""
    outcome = run_ladder(story(4 * GIB, successor=successor), plan(KILL), store)
    assert (outcome.result, outcome.helped) == (RunResult.HELD_BY_OTHER, False)
    assert outcome.detail == "pid 101 (python) took its place, and holds 4.0 GiB"


def test_the_successor_is_lean(store: Store) -> None:
    """Nine tenths came back: released, and who took its place is named."""
    outcome = run_ladder(story(GIB // 2), plan(KILL), store)
    assert (outcome.result, outcome.released_bytes) == (RunResult.RELEASED, 7 * GIB // 2)
    assert outcome.detail == "took its place: pid 101 (python)"


def test_the_successor_holds_half(store: Store) -> None:
    """What had leaked came back, what the worker needs did not: released, with the bytes that are really free."""
    outcome = run_ladder(story(2 * GIB), plan(KILL), store)
    assert (outcome.result, outcome.released_bytes) == (RunResult.RELEASED, 2 * GIB)
    assert "holds 2.0 GiB" in outcome.detail


def test_one_that_was_there_before_took_nobodys_place(store: Store) -> None:
    """An older process of the unit that uses the GPU only now is no successor: it held the memory's owner's hand."""
    outcome = run_ladder(story(4 * GIB, successor=False, start_ticks=1), plan(KILL), store)
    assert outcome.result is RunResult.HELD_BY_OTHER
    assert "which belonged to it" in outcome.detail


def test_a_sibling_that_stays_is_not_blamed(store: Store) -> None:
    """The other workers of the same parent have their own memory: none of them is named."""
    world = World(target(), newcomer(8 * GIB))
    world.successors = (101,)
    world.bodies[100].target = replace(target(), parent_pid=50)
    outcome = run_ladder(world, plan(KILL, of=world.bodies[100].target), store)
    assert (outcome.result, outcome.detail) == (RunResult.RELEASED, "")
