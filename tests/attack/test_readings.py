"""A driver whose figures cannot be true, or are missing: nobody is ended for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.driver import ListedGpu

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SANE = "GPU-sane"
LARGEST = ladder("GpuFull", victim="largest")
NAMED = ladder("TooMuch")
IMPOSSIBLE: dict[str, tuple[list[ListedGpu], list[float]]] = {
    "more than there is": ([ListedGpu("GPU-0", used_gib=70)], [200]),
    "more than there is together": ([ListedGpu("GPU-0", used_gib=79)], [70, 70]),
    "more than is in use": ([ListedGpu("GPU-0", used_gib=0)], [30]),
    "more in use than there is": ([ListedGpu("GPU-0", used_gib=100)], [30]),
    "two with one name": ([ListedGpu("GPU-0"), ListedGpu("GPU-0")], [30, 2]),
}


@pytest.mark.parametrize("chosen", [NAMED, LARGEST], ids=["named", "largest"])
@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_figures_that_cannot_be_true(arena: Arena, kind: str, chosen: dict[str, Any]) -> None:
    """KILL-05: on a GPU whose figures contradict each other nobody is acted on; on another one they are."""
    gpus, held = IMPOSSIBLE[kind]
    arena.gpus(*(ListedGpu(each.uuid, used_gib=each.used_gib) for each in gpus), ListedGpu(SANE))
    uid = next(arena.uids)
    for number, gib in enumerate(held):
        innocent = arena.innocent(arena.crowd.start(uid))
        arena.driver.hold(innocent.pid, gib, gpu=min(number, len(gpus) - 1))
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30, gpu=len(gpus))
    arena.start(ladders=[chosen], users=[str(uid)])
    arena.sees(guilty.pid)
    arena.let_decide()
    arena.judge()


def test_a_figure_that_cannot_be_true_for_a_moment(arena: Arena) -> None:
    """KILL-05: one wild reading between sane ones is enough for nothing."""
    arena.gpus(ListedGpu("GPU-0"), ListedGpu(SANE))
    uid = next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 2)
    arena.start(ladders=[NAMED, LARGEST], users=[str(uid)])
    arena.sees(innocent.pid)
    for _ in range(3):
        arena.driver.hold(innocent.pid, 200)
        arena.let_decide(1)
        arena.driver.hold(innocent.pid, 2)
        arena.let_decide(1)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30, gpu=1)
    arena.judge()


@pytest.mark.parametrize("sm", [97, 1], ids=["busy", "nearly idle"])
def test_no_sample_is_not_idle(arena: Arena, sm: int) -> None:
    """KILL-05: of a process without samples on a GPU that works nobody knows that it does nothing."""
    arena.gpus(ListedGpu("GPU-works", sm=sm), ListedGpu("GPU-rests", sm=0))
    uid = next(arena.uids)
    for gib in (30, 25):
        arena.driver.hold(arena.innocent(arena.crowd.start(uid)).pid, gib)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30, gpu=1)
    remedies = {"idle_for": "2s"}
    arena.start(ladders=[ladder("GpuFull", victim="idle")], remedies=remedies, users=[str(uid)])
    arena.fires("GpuFull")
    assert guilty.ends_within()
    arena.let_decide(15)
    arena.judge()


def test_the_first_polls(arena: Arena) -> None:
    """KILL-05: who has just been seen for the first time is not idle, and neither is who works now and then."""
    arena.gpus(ListedGpu("GPU-works"), ListedGpu("GPU-rests", sm=0))
    uid = next(arena.uids)
    busy = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(busy.pid, 30, sm=60)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30, gpu=1)
    arena.start(ladders=[ladder("GpuFull", victim="idle")], remedies={"idle_for": "2s"}, users=[str(uid)])
    assert guilty.ends_within()
    for _ in range(3):  # 0 % for one reading, twice as busy for the next
        arena.driver.hold(busy.pid, 30, sm=0)
        arena.let_decide(1)
        arena.driver.hold(busy.pid, 30, sm=60)
        arena.let_decide(5)
    arena.judge()
