"""Since when a process is idle: by observations of 0 %, and by nothing else."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.identity import ProcessId
from gpuagent.monitor.join import Joiner
from gpuagent.nvml.collect import Collected
from gpuagent.nvml.process_utilization import IDLE
from gpuagent.reading import GpuIdentity, GpuProcess, GpuReading, GpuState, ProcessInfo, ProcessUtilization
from gpuagent.simulated.codes import Code
from gpuagent.simulated.faults import Kind
from tests.fakes.rig import Rig, rig

BUSY = ProcessUtilization(0.5, 0.2, 0.0, 0.0)
DECODES = ProcessUtilization(0.0, 0.0, 0.0, 0.3)
NODE = """
gpus:
  - {model: h100, processes: [{name: works, memory: 1GiB, utilization: {sm: 97}}, {name: waits, memory: 2GiB}]}
  - {model: h100, processes: [{name: sleeps, memory: 3GiB}]}
"""
LISTED = (GpuProcess(10, 5, "C"),)


def look(joiner: Joiner, now: float, utilization: ProcessUtilization | None, ticks: int = 1) -> float | None:
    """Since when the process with this start time is idle, by a reading at `now`."""
    reading = GpuReading(GpuIdentity(0, "GPU-0"), GpuState.OK, time_seconds=now)
    told = {} if utilization is None else {10: utilization}
    info = ProcessInfo(ProcessId("boot", 10, ticks), "python3", 1000, "alice")
    (process,) = joiner.join(Collected(reading, LISTED, told), {10: info}).readings
    return process.idle_since_seconds


def test_only_zero_is_idle() -> None:
    """KILL-08: no sample, a sample with work in any engine, another process with the number, a gap: all begin anew."""
    joiner = Joiner(host_pid_namespace=True, longest_gap_seconds=10.0)
    since = [
        look(joiner, now, utilization, ticks)
        for now, utilization, ticks in (
            (1, None, 1), (2, IDLE, 1), (5, IDLE, 1), (6, None, 1), (7, IDLE, 1), (8, DECODES, 1), (9, IDLE, 1),
            (10, IDLE, 2), (12, IDLE, 2), (23, IDLE, 2), (24, IDLE, 2), (25, IDLE, 0),
        )
    ]  # fmt: skip

    assert since == [None, 2, 2, None, 7, None, 9, 10, 10, 23, 23, None]


def test_an_idle_process_stays_the_same_object() -> None:
    """EXP-08: a process that goes on doing nothing changes nothing for whoever compares readings."""
    joiner, infos = Joiner(host_pid_namespace=True), {10: ProcessInfo(ProcessId("boot", 10, 1), "p", 0, "root")}
    told = [
        joiner.join(
            Collected(GpuReading(GpuIdentity(0, "GPU-0"), GpuState.OK, time_seconds=now), LISTED, {10: IDLE}), infos
        )
        for now in (1.0, 2.0, 3.0)
    ]

    assert told[0] is told[1] is told[2]


observations = st.sampled_from([None, IDLE, IDLE, IDLE, BUSY, DECODES])


@given(st.lists(st.tuples(st.floats(0.5, 12.0), observations, st.sampled_from([1, 1, 1, 2])), max_size=30))
@settings(deadline=None)
def test_every_reading_of_an_idle_time_was_an_observation_of_zero(
    story: list[tuple[float, ProcessUtilization | None, int]],
) -> None:
    """KILL-08: whatever was read, who is idle since T had nothing but 0 in all readings from T on, without a gap."""
    joiner, now = Joiner(host_pid_namespace=True, longest_gap_seconds=10.0), 0.0
    past: list[tuple[float, ProcessUtilization | None, int]] = []
    for seconds, utilization, ticks in story:
        now += seconds
        past.append((now, utilization, ticks))
        since = look(joiner, now, utilization, ticks)
        if since is None:
            assert utilization != IDLE
            continue
        window = [each for each in past if each[0] >= since]
        assert window[0][0] == since
        assert all(each[1] == IDLE and each[2] == ticks for each in window)
        assert all(late[0] - early[0] <= 10.0 for early, late in pairwise(window))


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
    """KILL-08: one reading without utilisation, or without the list, and the time is counted from the next one."""

    async def run() -> None:
        async with rig(NODE, events=False) as stage:
            for call in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses*"):
                for _ in range(5):
                    await stage.tick()
                assert (idle(stage)["sleeps"] or 0) >= 2
                stage.fail(Kind.ERROR, calls=(call,), code=Code.UNKNOWN)
                await stage.tick()
                stage.node.clear()
                await stage.tick()
                assert not idle(stage)["sleeps"]

    asyncio.run(run())


def test_under_mig_nobody_is_idle() -> None:
    """PROC-09: the driver tells no utilisation of a GPU in MIG mode, which is not 0."""

    async def run() -> None:
        mig = "[{gpu_instance: 1, profile: 1g.10gb, memory: 10GiB}]"
        node = f"gpus:\n  - {{model: h100, mig: {mig}, processes: [{{name: a, memory: 1}}]}}\n"
        async with rig(node, events=False) as stage:
            for _ in range(4):
                await stage.tick()
            assert idle(stage) == {"a": None}

    asyncio.run(run())
