"""Since when a process is idle: by observations of 0 %, and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.collector.join import Idleness
from gpuagent.core.hardware import Utilization
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import (
    GpuIdentity,
    GpuReading,
    GpuState,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    ProcessUtilization,
)
from gpuagent.driver.backend import IDLE, Collected
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.fakes.rig import Rig, rig

BUSY = ProcessUtilization(0.5, 0.2, 0.0, 0.0)
DECODES = ProcessUtilization(0.0, 0.0, 0.0, 0.3)
NODE = """
gpus:
  - {model: h100, processes: [{name: works, memory: 1GiB, utilization: {sm: 97}}, {name: waits, memory: 2GiB}]}
  - {model: h100, processes: [{name: sleeps, memory: 3GiB}]}
"""
LONGEST_GAP = 10.0
WORKED, UNREAD = "worked since the last reading", "the GPU could not be read"
Look = ProcessUtilization | str | None
"""What one reading of one GPU tells of the process."""


class Node:
    """GPUs that list one process each time, or not, and how idle it is by what they told."""

    def __init__(self, gpus: int = 1) -> None:
        self.idleness = Idleness()
        self.gpus = [GpuIdentity(index, f"GPU-{index}") for index in range(gpus)]

    def look(self, now: float, told: Mapping[int, Look], ticks: int = 1) -> float | None:
        """Since when the process with this start time is idle, by readings at `now`; a GPU left out lists nobody."""
        answers = [self._answer(gpu, now, told) for gpu in self.gpus]
        processes = [self._process(index, look, ticks) for index, look in told.items() if look != UNREAD]
        seen = self.idleness.observe([answer.reading for answer in answers], answers, processes, LONGEST_GAP)
        found = {process.idle_since_seconds for process in seen}
        assert len(found) <= 1
        return found.pop() if found else None

    def _answer(self, gpu: GpuIdentity, now: float, told: Mapping[int, Look]) -> Collected:
        look = told.get(gpu.index)
        state = GpuState.LOST if look == UNREAD else GpuState.OK
        reading = GpuReading(gpu, state, time_seconds=now, processes_known=look != UNREAD)
        return Collected(reading, worked_at={10: now} if look == WORKED else {})

    def _process(self, index: int, look: Look, ticks: int) -> ProcessReading:
        info = ProcessInfo(ProcessId("boot", 10, ticks), "python3", 1000, "alice")
        told = IDLE if isinstance(look, str) else look
        return ProcessReading(index, f"GPU-{index}", 10, ProcessState.LIVE, info, 5, "C", told)


def test_only_zero_is_idle() -> None:
    """KILL-08: no sample, a sample with work in any engine, another process with the number, a gap: all begin anew."""
    node = Node()
    since = [
        node.look(now, {0: utilization}, ticks)
        for now, utilization, ticks in (
            (1, None, 1), (2, IDLE, 1), (5, IDLE, 1), (6, None, 1), (7, IDLE, 1), (8, DECODES, 1), (9, IDLE, 1),
            (10, IDLE, 2), (12, IDLE, 2), (23, IDLE, 2), (24, IDLE, 2), (25, IDLE, 0),
        )
    ]  # fmt: skip

    assert since == [None, 2, 2, None, 7, None, 9, 10, 10, 23, 23, None]


def test_work_on_another_gpu_is_not_forgotten() -> None:
    """KILL-08: who worked on a GPU that lists it no more, or left or entered one, is idle from then on at most."""
    node = Node(2)
    since = [
        node.look(now, told)
        for now, told in (
            (1, {0: IDLE, 1: BUSY}), (2, {0: IDLE}), (3, {0: IDLE}), (4, {0: IDLE, 1: IDLE}), (5, {0: IDLE, 1: IDLE}),
            (6, {0: IDLE}), (7, {}), (8, {0: IDLE}),
        )
    ]  # fmt: skip

    assert since == [None, 2, 2, 4, 4, 6, None, 8]


@pytest.mark.parametrize("state", [state for state in GpuState if state is not GpuState.OK])
def test_a_gpu_that_is_not_read_makes_nobody_idle(state: GpuState) -> None:
    """KILL-08: lost and gone too: that a GPU does not answer is no observation that nobody works on it."""
    node = Node(2)
    assert [node.look(now, {0: IDLE}) for now in (1, 2)] == [1, 1]
    answers = [node._answer(gpu, 3, {}) for gpu in node.gpus]
    gpus = [answers[0].reading, replace(answers[1].reading, state=state, processes_known=False)]
    (process,) = node.idleness.observe(gpus, answers, [node._process(0, IDLE, 1)], LONGEST_GAP)

    assert process.idle_since_seconds is None
    assert node.look(4, {0: IDLE}) == 4


@pytest.mark.parametrize("busy", [Utilization(jpeg_ratio=0.2), Utilization(ofa_ratio=0.1)], ids=["jpeg", "ofa"])
def test_an_engine_whose_work_no_process_is_named_for(busy: Utilization) -> None:
    """KILL-08: who decodes JPEG or computes optical flow is at 0 % by its own samples; on another GPU it counts too."""
    node = Node(2)
    everywhere: dict[int, Look] = {0: IDLE, 1: IDLE}
    assert [node.look(now, everywhere) for now in (1, 2)] == [1, 1]
    answers = [node._answer(gpu, 3, everywhere) for gpu in node.gpus]
    gpus = [replace(answers[0].reading, utilization=busy), answers[1].reading]
    seen = node.idleness.observe(gpus, answers, [node._process(index, IDLE, 1) for index in (0, 1)], LONGEST_GAP)

    assert {process.idle_since_seconds for process in seen} == {None}
    assert node.look(4, everywhere) == 4


def test_work_that_no_tick_has_shown() -> None:
    """KILL-08: a reading that came too late to be shown took work from the ring: the next one tells when."""
    node = Node()
    assert [node.look(now, {0: IDLE}) for now in (1, 2)] == [1, 1]
    late = Collected(GpuReading(node.gpus[0], GpuState.OK, time_seconds=4, processes_known=True), worked_at={10: 3.5})
    (process,) = node.idleness.observe([late.reading], [late], [node._process(0, IDLE, 1)], LONGEST_GAP)

    assert process.idle_since_seconds == 4


def test_an_idle_process_stays_the_same_object() -> None:
    """EXP-08: a process that goes on doing nothing changes nothing for whoever compares readings."""
    node = Node()
    process = node._process(0, IDLE, 1)
    told = []
    for now in (1.0, 2.0, 3.0):
        answer = node._answer(node.gpus[0], now, {})
        told += node.idleness.observe([answer.reading], [answer], [process], LONGEST_GAP)

    assert told[0] is told[1] is told[2]


looks = st.sampled_from([None, IDLE, IDLE, IDLE, IDLE, BUSY, DECODES, WORKED, UNREAD])
gpus_tell = st.dictionaries(st.sampled_from([0, 0, 1, 2]), looks, max_size=3)


@given(st.lists(st.tuples(st.floats(0.5, 12.0), gpus_tell, st.sampled_from([1, 1, 1, 1, 2])), max_size=40))
def test_every_reading_of_an_idle_time_was_an_observation_of_zero(
    story: list[tuple[float, dict[int, Look], int]],
) -> None:
    """KILL-08: who is idle since T had nothing but 0 on the same GPUs in all readings from T on, every GPU read."""
    node, now = Node(3), 0.0
    past: list[tuple[float, dict[int, Look], int]] = []
    for seconds, told, ticks in story:
        now += seconds
        past.append((now, told, ticks))
        since = node.look(now, told, ticks)
        if since is None:
            assert set(told.values()) != {IDLE}
            continue
        window = [each for each in past if each[0] >= since]
        assert window[0][0] == since
        assert all(set(each[1].values()) == {IDLE} and each[2] == ticks for each in window)
        assert all(each[1].keys() == told.keys() for each in window)
        assert all(late[0] - early[0] <= LONGEST_GAP for early, late in pairwise(window))


# ---- over a monitor and a simulated node ------------------------------------------------------------------------


def idle(stage: Rig) -> dict[str, float | None]:
    """For how long each process is idle, by its name."""
    snapshot = stage.monitor.snapshot
    assert snapshot is not None
    return {
        process.info.name: None
        if process.idle_since_seconds is None
        else snapshot.clock_seconds - process.idle_since_seconds
        for process in snapshot.processes
        if process.info is not None
    }


def test_who_is_not_sampled_beside_one_that_works_is_unknown() -> None:
    """KILL-08: on a GPU at 97 % nobody is idle, and the metric is absent; on one at 0 % its process is, by and by."""

    async def run() -> None:
        async with rig(NODE, events=False) as stage:
            await stage.tick()
            assert set(idle(stage).values()) == {None}
            assert stage.value("gpuagent_process_sm_utilization_ratio", gpu="1") is None
            for _ in range(6):
                await stage.tick()

            assert idle(stage) == {"works": None, "waits": None, "sleeps": 5.0}
            assert stage.value("gpuagent_process_sm_utilization_ratio", process="works") == 0.97
            assert stage.value("gpuagent_process_sm_utilization_ratio", process="waits") is None
            assert stage.value("gpuagent_process_sm_utilization_ratio", process="sleeps") == 0

    asyncio.run(run())


def test_what_could_not_be_read_ends_it() -> None:
    """KILL-08: one reading without utilization, or without the list, and the time is counted from the next one."""

    async def run() -> None:
        async with rig(NODE, events=False) as stage:
            for call in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses*"):
                for _ in range(5):
                    await stage.tick()
                assert (idle(stage)["sleeps"] or 0) >= 2
                stage.fail(FaultKind.ERROR, calls=(call,), code=Code.UNKNOWN)
                await stage.tick()
                stage.node.clear()
                await stage.tick()
                assert not idle(stage)["sleeps"]

    asyncio.run(run())


def test_a_gpu_that_is_lost_ends_the_idleness_of_all() -> None:
    """KILL-08: while one GPU of the node cannot be read, nobody on another is idle."""

    async def run() -> None:
        async with rig(NODE, events=False) as stage:
            for _ in range(6):
                await stage.tick()
            assert idle(stage)["sleeps"] == 4.0
            stage.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMemoryInfo*",), code=Code.GPU_IS_LOST, gpu=0)
            await stage.tick()
            assert stage.value("gpuagent_gpu_lost", gpu="0") == 1
            assert idle(stage) == {"sleeps": None}

    asyncio.run(run())


def test_seldom_read_gpus_have_idle_processes_too() -> None:
    """KILL-08: the longest gap goes with the poll interval; without that nobody is idle at 12 s."""

    async def run() -> None:
        for gap, expected in ((30.0, 36.0), (10.0, None)):
            async with rig(NODE, events=False) as stage:
                stage.monitor.pace = replace(stage.monitor.pace, longest_gap_seconds=gap)
                for _ in range(5):
                    await stage.tick(12)
                assert idle(stage)["sleeps"] == expected

    asyncio.run(run())


def test_under_mig_nobody_is_idle() -> None:
    """PROC-09: the driver tells no utilization of a GPU in MIG mode, which is not 0."""

    async def run() -> None:
        mig = "[{gpu_instance: 1, profile: 1g.10gb, memory: 10GiB}]"
        node = f"gpus:\n  - {{model: h100, mig: {mig}, processes: [{{name: a, memory: 1}}]}}\n"
        async with rig(node, events=False) as stage:
            for _ in range(4):
                await stage.tick()
            assert idle(stage) == {"a": None}

    asyncio.run(run())
