"""A newcomer and the alert of who was there before: the time for which a rule holds has to be the process's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.driver import ListedGpu
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LONG_FULL: Mapping[str, Any] = {
    "alert": "LongFull", "expr": "gpuagent_gpu_memory_used_ratio > 0.3", "for": "15s", "keep_firing_for": "5m",
}  # fmt: skip
LARGEST = ladder("LongFull", victim="largest")
_EVALUATIONS = 8
"""Far less than `for`, and more than a decision takes."""
_LATE_SECONDS = 9.0


def waits_for(arena: Arena, words: str) -> None:
    """Wait until the agent says so of an alert that it does not act on."""
    until(lambda: any(words in each for each in arena.withheld()), f"a ladder is withheld: {words}", 60.0)


def loads_for_a_moment(arena: Arena, uid: int, words: str) -> None:
    """Start an innocent that fills the first GPU for less than `for`, while the alert of another goes on firing."""
    newcomer = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(newcomer.pid, 40)
    arena.fires("LongFull")
    waits_for(arena, words)
    arena.let_decide(_EVALUATIONS)
    assert not newcomer.has_ended
    arena.driver.hold(newcomer.pid, 2)


def test_an_alert_that_is_only_kept(arena: Arena) -> None:
    """KILL-02: the guilty one is ended; who fills the GPU for a moment while its alert is kept firing is not."""
    uid = next(arena.uids)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 40)
    arena.start(ladders=[LARGEST], rules=[LONG_FULL], users=[str(uid)])
    assert guilty.ends_within()
    waits_for(arena, "only kept firing")
    loads_for_a_moment(arena, uid, "without a break")
    arena.judge()


def test_an_alert_of_before_a_restart(arena: Arena) -> None:
    """KILL-02: an alert outlives a restart; who came meanwhile is not ended for it, and who stays too long is."""
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1"))
    uid, other = next(arena.uids), next(arena.uids)
    before = arena.crowd.start(other)
    arena.driver.hold(before.pid, 40)
    arena.start(ladders=[LARGEST], rules=[LONG_FULL], users=[str(uid)])
    assert "allow" in arena.refused(before)
    arena.stop()
    before.end()
    newcomer = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(newcomer.pid, 40)
    arena.start_again()
    arena.fires("LongFull")
    waits_for(arena, "without a break")
    arena.let_decide(_EVALUATIONS)
    arena.driver.hold(newcomer.pid, 2)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 40, gpu=1)
    arena.judge()


def test_who_takes_what_another_leaves(arena: Arena) -> None:
    """KILL-01: the GPU is full without a break; who was there with little, and fills it at last, has not filled it."""
    uid = next(arena.uids)
    first, heir = arena.crowd.start(uid), arena.innocent(arena.crowd.start(uid))
    arena.gpus(ListedGpu("GPU-0", used_gib=45), ListedGpu("GPU-1"))
    arena.driver.hold(first.pid, 40)
    arena.driver.hold(heir.pid, 2)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 40, gpu=1)
    arena.start(ladders=[LARGEST], rules=[LONG_FULL], users=[str(uid)])
    arena.sees(first.pid, heir.pid)
    until(lambda: arena.active_seconds("LongFull", "GPU-0") > _LATE_SECONDS, "it is nearly time", 60.0)
    arena.driver.drop(first.pid)
    arena.driver.hold(heir.pid, 42)
    waits_for(arena, "has held the memory that it has now")
    assert not heir.has_ended
    arena.driver.gpus[0].used_gib = None
    arena.driver.hold(heir.pid, 2)
    arena.judge()
