"""The outlook of memory that GPU and CPU share, over traces of hosts that stalled and of healthy ones."""

from __future__ import annotations

import asyncio

import pytest

from gpuagent.collector.memory_watch import MemoryWatch
from gpuagent.core.hardware import HostMemory, MemoryPressure, StallRisk
from tests.agent.collector.memory_traces import GIB, HEALTHY, STALLS, Trace
from tests.fakes.rig import rig

USUAL, FAST = 1.0, 0.25
"""Seconds between two readings, as the agent has them by default."""
LEAD = 1.0
"""Seconds that have to be left: an alert is evaluated twice a second, and a signal takes a reading after that."""


def first_alarm(trace: Trace, *, offset: float = 0.0) -> float | None:
    """Return when a stall is called imminent; the next reading comes sooner while it is watched."""
    watch, seconds = MemoryWatch(), offset
    while seconds <= trace.seconds and (trace.stalls_at is None or seconds < trace.stalls_at):
        outlook = watch.observe(seconds, *trace.at(seconds))
        assert outlook is not None
        if outlook.risk is StallRisk.IMMINENT:
            return seconds
        seconds += USUAL if outlook.risk is StallRisk.NONE else FAST
    return None


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.7])
def test_it_is_told_before_the_host_stalls(offset: float) -> None:
    """In at least 95 % of the traces there is time left to act, at whatever moment the readings fall."""
    late = []
    for trace in STALLS:
        alarm = first_alarm(trace, offset=offset)
        if alarm is None or trace.stalls_at is None or trace.stalls_at - alarm < LEAD:
            late.append(trace.name)

    assert len(STALLS) >= 20
    assert len(late) <= 0.05 * len(STALLS), late


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("trace", HEALTHY, ids=lambda trace: trace.name)
def test_a_healthy_host_is_left_alone(trace: Trace, offset: float) -> None:
    """A mapped model, a large page cache, a build beside, little left by design: never a reason."""
    assert first_alarm(trace, offset=offset) is None


def memory(available_gib: float, free_gib: float = 1.0) -> HostMemory:
    """A machine of 128 GiB."""
    return HostMemory(128 * GIB, int(available_gib * GIB), int(free_gib * GIB), 0, GIB)


def test_a_low_level_alone_is_no_reason() -> None:
    """Without pressure nothing is imminent, however little is left, and however fast it goes."""
    watch = MemoryWatch()
    found = [
        watch.observe(second / 4, memory(12 - second / 4), MemoryPressure(0.0, 0.0, 0.0, 0.0, 5))
        for second in range(48)
    ]

    assert {outlook.risk for outlook in found if outlook} <= {StallRisk.NONE, StallRisk.WATCH}
    assert found[-1] is not None
    assert found[-1].exhaustion_seconds == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("reclaims", [None, 7])
def test_pressure_without_direct_reclaim_is_a_cgroups_own(reclaims: int | None) -> None:
    """A limit that throttles somebody is no want of the machine, and neither is one of which that is unknown."""
    watch = MemoryWatch()
    found = [
        watch.observe(second, memory(3), MemoryPressure(0.9, 0.9, 0.9 * second, 0.9 * second, reclaims))
        for second in range(20)
    ]

    assert all(outlook is not None and outlook.risk is StallRisk.WATCH for outlook in found)


def test_pressure_over_ten_seconds_where_no_totals_are_told() -> None:
    """An older kernel's ratio does, and a single reading never does."""
    watch = MemoryWatch()
    found = [watch.observe(second, memory(3), MemoryPressure(0.5, 0.4, None, None, second)) for second in range(4)]

    assert [outlook.risk for outlook in found if outlook] == [
        StallRisk.WATCH, StallRisk.WATCH, StallRisk.IMMINENT, StallRisk.IMMINENT,
    ]  # fmt: skip


def test_what_is_unknown_is_nothing() -> None:
    """Where memory or pressure is not told there is no outlook, and what was before counts no more."""
    watch = MemoryWatch()
    for second in range(3):
        watch.observe(second, memory(3), MemoryPressure(0.5, 0.4, None, None, second))

    assert watch.observe(3, None, MemoryPressure(0.5, 0.4)) is None
    assert watch.observe(4, memory(3), None) is None
    after = watch.observe(5, memory(3), MemoryPressure(0.5, 0.4, None, None, 9))
    assert after is not None
    assert after.risk is StallRisk.WATCH


def test_a_pause_tells_nothing_of_the_pace() -> None:
    """What fell while nobody looked, as in a sleep of the machine, is no slope."""
    watch = MemoryWatch()
    watch.observe(0, memory(100), MemoryPressure(0.0, 0.0, 0.0, 0.0, 0))
    outlook = watch.observe(60, memory(4), MemoryPressure(0.0, 0.0, 30.0, 30.0, 900))

    assert outlook is not None
    assert (outlook.risk, outlook.exhaustion_seconds) == (StallRisk.NONE, None)


def test_it_is_watched_for_a_while_after() -> None:
    """The tick stays short for 15 s after the last sign, so that it does not flap."""
    watch, risks = MemoryWatch(), []
    waited = 0.0
    for second in range(40):
        waited += 0.05 if second < 10 else 0.0
        outlook = watch.observe(second, memory(20), MemoryPressure(0.0, 0.0, waited, 0.0, 0))
        assert outlook is not None
        risks.append(outlook.risk)

    assert risks[0] is StallRisk.NONE
    assert set(risks[1:25]) == {StallRisk.WATCH}
    assert set(risks[30:]) == {StallRisk.NONE}


def test_a_node_tells_of_it() -> None:
    """The verdict stands at the GPU that shares the memory, the time that is left at the node; nowhere else."""

    async def run() -> None:
        async with rig("memory-stall", events=False) as stage:
            found = {}
            for second in range(52):
                await stage.tick()
                found[second] = stage.value("gpuagent_gpu_memory_stall_imminent")
            left = stage.value("gpuagent_host_memory_exhaustion_seconds")

            assert found[40] == 0
            assert found[51] == 1
            assert left is not None
            assert 0 < left < 10
        async with rig("coherent-memory", events=False) as stage:
            await stage.tick()
            assert stage.value("gpuagent_gpu_memory_stall_imminent") is None
            assert stage.value("gpuagent_host_memory_exhaustion_seconds") is None

    asyncio.run(run())
