"""Calls that do not come back, or late, and leaving the driver all the same."""

from __future__ import annotations

import asyncio
import logging
import threading

import pynvml
import pytest

from gpuagent.core.snapshot import GpuState, NvmlState
from gpuagent_simulator.faults import Fault, FaultKind
from tests.fakes.rig import Rig, at, rig, state

TWO = "gpus:\n  - {model: h100, count: 2, processes: [{name: a, memory: 1GiB}]}\n"
MEMORY = "nvmlDeviceGetMemoryInfo_v2"


def hang(stage: Rig) -> None:
    """From now on the memory of GPU 1 cannot be read: the call does not come back."""
    stage.fail(FaultKind.HANG, gpu=1, calls=(MEMORY,))


def test_a_late_answer_is_an_answer() -> None:
    """GPU-05: a reading younger than the limit is shown while the next one is on its way."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            first = await stage.tick()
            hang(stage)
            late = await stage.hasty_tick(1)
            blind = await stage.hasty_tick(1.5)

            assert at(late, 1).time_seconds == at(first, 1).time_seconds
            assert state(late, 1) is GpuState.OK
            assert (state(blind, 0), state(blind, 1)) == (GpuState.OK, GpuState.BLIND)

    asyncio.run(run())


def test_a_gpu_that_answers_ever_too_late_does_not_flap(caplog: pytest.LogCaptureFixture) -> None:
    """GPU-05: an answer that is out of date when it comes does not end the blindness, nor begin it anew."""
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            hang(stage)
            await stage.hasty_tick()
            since = at(await stage.hasty_tick(3), 1).since_seconds
            for _ in range(3):
                stage.node.clear()
                await stage.settle()
                hang(stage)
                reading = at(await stage.hasty_tick(3), 1)
                assert (reading.state, reading.since_seconds) == (GpuState.BLIND, since)
            stage.node.clear()
            await stage.settle()
            assert state(await stage.tick(), 1) is GpuState.OK

    asyncio.run(run())
    told = [record.getMessage().split(": ")[1] for record in caplog.records if record.name.endswith("collector.gpu")]
    assert told == ["blind (a call into the driver has not come back)", "ok"]


def test_the_age_of_a_blind_gpu_grows() -> None:
    """EXP-05: the others have their own age, and the snapshot's is that of the last GPU that was read."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            hang(stage)
            for _ in range(4):
                await stage.hasty_tick(5)

            assert stage.value("gpuagent_gpu_reading_age_seconds", gpu="1") == 20
            assert (stage.value("gpuagent_gpu_reading_age_seconds", gpu="0") or 0) <= 5
            assert (stage.value("gpuagent_snapshot_age_seconds") or 0) <= 5

    asyncio.run(run())


def test_the_shipped_hang() -> None:
    """GPU-04: with every call of a GPU hanging, one thread per GPU waits, however long it takes."""

    async def run() -> None:
        async with rig("hang", events=False) as stage:
            await stage.tick()
            await stage.hasty_tick(20)
            await stage.hasty_tick(10)
            threads = threading.active_count()
            for _ in range(5):
                snapshot = await stage.hasty_tick(10, slow=True)

            assert (state(snapshot, 0), state(snapshot, 1)) == (GpuState.OK, GpuState.BLIND)
            assert threading.active_count() == threads
            await stage.hasty_tick(30)
            await stage.settle()
            assert state(await stage.tick(), 1) is GpuState.OK

    asyncio.run(run())


@pytest.mark.slow
def test_a_stuck_gpu_does_not_keep_the_others_from_a_new_session() -> None:
    """GPU-07: when the session has to be begun anew, the stuck thread is left alone and all others open again."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            hang(stage)
            await stage.hasty_tick()
            stage.monitor.session.end("for this test")
            await stage.tick()
            snapshot = await stage.tick()

            assert snapshot.node.nvml_initializations == 2
            assert state(snapshot, 0) is GpuState.OK
            assert state(snapshot, 1) is not GpuState.OK
            stage.node.clear()
            await stage.settle()
            await stage.tick()
            assert state(await stage.tick(), 1) is GpuState.OK
            await stage.close(20)
            assert uninitialized()

    asyncio.run(run())


def test_closing_while_a_call_is_stuck() -> None:
    """GPU-11: stopping gives up at its time limit, and leaves nothing but a thread that ends with the process."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            hang(stage)
            await stage.hasty_tick()
            await stage.close(0.05)

            assert not stage.monitor.session.released

    asyncio.run(run())


def test_closing_while_nvml_hangs_from_the_start() -> None:
    """GPU-11: a driver that never answered cannot keep the agent from stopping."""

    async def run() -> None:
        async with rig(TWO, faults=[Fault(FaultKind.HANG, calls=("nvmlInitWithFlags",))], events=False) as stage:
            await stage.hasty_tick(well=())
            await stage.close(0.05)

            assert not stage.monitor.session.released

    asyncio.run(run())


def test_a_pause_gives_everything_back() -> None:
    """GPU-10: after `pause` no handle is held and nothing is asked; `resume` measures again."""

    async def run() -> None:
        async with rig(TWO) as stage:
            await stage.tick(slow=True)
            stage.monitor.pause()
            while not stage.monitor.session.released:
                snapshot = await stage.tick()
                await stage.settle()

            assert uninitialized()
            assert snapshot.node.nvml_state is NvmlState.PAUSED
            assert {gpu.state for gpu in snapshot.gpus} == {GpuState.FAILED}
            assert stage.value("gpuagent_nvml_up") == 0
            stage.monitor.resume()
            snapshot = await stage.tick()
            assert {gpu.state for gpu in snapshot.gpus} == {GpuState.OK}

    asyncio.run(run())


def test_a_pause_waits_for_a_stuck_call() -> None:
    """GPU-10: while a call is stuck nothing is shut down under it, and nobody is told that the GPU is free."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            hang(stage)
            await stage.hasty_tick()
            stage.monitor.pause()
            snapshot = await stage.hasty_tick(well=())

            assert snapshot.node.nvml_state is NvmlState.PAUSED
            assert not stage.monitor.session.released
            stage.node.clear()
            await stage.settle()
            while not stage.monitor.session.released:
                await stage.tick()
                await stage.settle()
            assert uninitialized()

    asyncio.run(run())


def uninitialized() -> bool:
    """Whether the library is closed, as the library itself sees it."""
    try:
        pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError_Uninitialized:
        return True
    return False
