"""Whoever never ends, and has given all of its memory back, does not block a GPU for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuagent.core.snapshot import GpuReading, GpuState, ProcessState, Reconciliation, Snapshot
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.released_memory import READINGS
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.test_outstanding import INNOCENT, STUBBORN
from tests.alerts.remedies.test_person_and_rules import fire, manager
from tests.alerts.remedies.world import GIB, KILL, World
from tests.fakes.readings import gpu, identity, process, snapshot

BACK = replace(gpu(), identity=replace(identity(0), uuid="GPU-0"))
OTHER = replace(gpu(1), identity=replace(identity(1), uuid="GPU-1"))
NEIGHBOR = process(101)._replace(gpu_uuid="GPU-0")
LISTED = process(100)._replace(gpu_uuid="GPU-0")


def readings(change: Callable[[int], GpuReading | None] = lambda _: BACK, number: int = READINGS) -> list[Snapshot]:
    """Return so many readings in which the driver lists the neighbor alone, and one GPU as changed."""
    made = []
    for index in range(number):
        one = change(index)
        gpus = [OTHER, *([] if one is None else [replace(one, measured_seconds=1000.0 + index)])]
        made.append(snapshot(gpus, [NEIGHBOR]))
    return made


def with_unowned(gib: float, dead: float = 0) -> GpuReading:
    """The GPU with memory that is nobody's, or a dead process's."""
    return replace(BACK, reconciliation=Reconciliation(10 * GIB, int(dead * GIB), int(gib * GIB)))


CASES: dict[str, tuple[list[Snapshot], bool]] = {
    "all is back": (readings(), True),
    "the driver keeps a little": (readings(lambda _: with_unowned(0.9)), True),
    "too few readings": (readings(number=READINGS - 1), False),
    "the same reading": ([readings(number=1)[0]] * (READINGS + 2), False),
    "one without a list between": (
        readings(lambda index: replace(BACK, processes_known=index != 1), READINGS + 1), False
    ),
    "one with an unknown state": (readings(lambda index: replace(BACK, state=GpuState.BLIND)), False),
    "a list that is shuffled": (readings(lambda _: replace(BACK, processes_trusted=False)), False),
    "figures that cannot be true": (readings(lambda _: replace(BACK, act_refusal="more than there is")), False),
    "memory of nobody": (readings(lambda _: with_unowned(5)), False),
    "memory of a dead one": (readings(lambda _: with_unowned(0, 5)), False),
    "no sum": (readings(lambda _: replace(BACK, reconciliation=None)), False),
    "the GPU is gone": (readings(lambda _: None), False),
    "it is listed again": ([*readings(), snapshot([BACK], [LISTED])], False),
    "it is listed as dead": (
        [replace(one, processes=(LISTED._replace(state=ProcessState.DEAD),)) for one in readings()], False
    ),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "is_back"), CASES.values(), ids=CASES)
def test_whose_memory_is_back(store: Store, seen: list[Snapshot], is_back: bool) -> None:
    """KILL-01: what hangs after SIGKILL is waited for until the driver's lists show that nothing is left of it."""
    here = World(STUBBORN, INNOCENT)
    here.bodies[100].immortal = True

    async def story() -> None:
        ends: list[str] = []
        made = manager(here, store, ends, steps=[KILL])
        fire(made, here, 100)
        await made.idle()
        assert ends == [f"100 {RunResult.UNKILLABLE}"]
        for one in seen:
            made.update_snapshot(one)
        fire(made, here, 101)
        await made.idle()
        assert ends[1:] == (["101 released"] if is_back else [])
        assert [one.identity.pid for one in made.outstanding] == [100]  # it is told of for as long as it is there

    asyncio.run(story())
