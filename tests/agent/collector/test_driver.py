"""The driver comes, goes, is another, or has no GPU."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gpuagent.core.snapshot import GpuState, NvmlState
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.fakes.rig import at, rig

TWO = "gpus:\n  - {model: h100, count: 2, processes: [{name: a, memory: 1GiB, utilization: {sm: 9}}]}\n"
INITIALIZE = ("nvmlInitWithFlags",)


def test_no_driver_yet() -> None:
    """GPU-06: the agent stays up and says why; `/metrics` is not empty; it measures when the driver is there."""

    async def run() -> None:
        fault = Fault(FaultKind.INIT_ERROR, code=Code.DRIVER_NOT_LOADED)
        async with rig(TWO, faults=[fault], events=False) as stage:
            snapshot = await stage.tick()

            assert snapshot.node.nvml_state is NvmlState.FAILED
            assert snapshot.node.nvml_reason.endswith("the NVIDIA driver is not loaded")
            assert snapshot.measured_seconds is None
            assert stage.value("gpuagent_nvml_up") == 0
            assert {"gpuagent_build_info", "gpuagent_snapshot_timestamp_seconds"} <= stage.names()
            stage.node.clear()
            snapshot = await stage.tick(60)
            assert [gpu.state for gpu in snapshot.gpus] == [GpuState.OK] * 2

    asyncio.run(run())


def test_no_library() -> None:
    """GPU-06: on a machine without libnvidia-ml the reason is the loader's own."""

    async def run() -> None:
        fault = Fault(FaultKind.INIT_ERROR, code=Code.LIBRARY_NOT_FOUND)
        async with rig(TWO, faults=[fault], events=False) as stage:
            reason = (await stage.tick()).node.nvml_reason

            assert "libnvidia-ml.so.1" in reason

    asyncio.run(run())


def test_nvml_hangs_at_the_start() -> None:
    """GPU-06: the first tick ends with a snapshot; nothing is claimed of any GPU; it measures when the call is back."""

    async def run() -> None:
        async with rig(TWO, faults=[Fault(FaultKind.HANG, calls=INITIALIZE)], events=False) as stage:
            snapshot = await stage.hasty_tick(well=())

            assert snapshot.node.nvml_state is NvmlState.STARTING
            assert snapshot.gpus == ()
            assert stage.value("gpuagent_gpus") is None
            await stage.mend()
            assert [gpu.state for gpu in (await stage.tick()).gpus] == [GpuState.OK] * 2

    asyncio.run(run())


def test_a_node_without_gpus(caplog: pytest.LogCaptureFixture) -> None:
    """EXP-07: idles with 0 GPUs as a metric: nothing is missed, nothing is old, nothing is a failure."""

    async def run() -> None:
        async with rig("no-gpus", events=False) as stage:
            for _ in range(3):
                snapshot = await stage.tick(15, slow=True)

            assert (stage.value("gpuagent_gpus"), stage.value("gpuagent_gpus_expected")) == (0, 0)
            assert (stage.value("gpuagent_nvml_up"), stage.value("gpuagent_snapshot_age_seconds")) == (1, 0)
            assert all(run.ok for run in snapshot.runs)

    asyncio.run(run())
    assert caplog.records == []


def test_gpus_added_later() -> None:
    """EXP-07: a GPU that appears on a node without is found within a minute or so."""

    async def run() -> None:
        async with rig(TWO, faults=[Fault(FaultKind.VANISH)], events=False) as stage:
            await stage.tick()
            stage.node.clear()
            for _ in range(6):
                snapshot = await stage.tick(15, slow=True)

            assert [gpu.state for gpu in snapshot.gpus] == [GpuState.OK] * 2

    asyncio.run(run())


def test_the_driver_is_reloaded() -> None:
    """GPU-07: while it is away nothing is shown; then the GPUs are opened anew, in the new version."""

    async def run() -> None:
        async with rig("driver-reload", events=False) as stage:
            before = await stage.tick()
            down = [await stage.tick(2) for _ in range(9)][-1]
            after = [await stage.tick(2) for _ in range(12)][-1]

            assert before.node.driver_version == "580.95.05"
            assert (down.node.nvml_state, {gpu.state for gpu in down.gpus}) == (NvmlState.FAILED, {GpuState.FAILED})
            assert [gpu.identity for gpu in down.gpus] == [gpu.identity for gpu in before.gpus]
            assert down.processes == ()
            assert all(gpu.memory is None and gpu.thermal is None for gpu in down.gpus)
            assert after.node.driver_version == "590.48.01"
            assert {gpu.state for gpu in after.gpus} == {GpuState.OK}
            assert after.node.nvml_initializations == 2
            assert (at(after, 0).pcie, before.processes[0].pid) != (at(before, 0).pcie, after.processes[0].pid)

    asyncio.run(run())


def test_a_session_that_ends_while_its_gpus_are_counted() -> None:
    """GPU-07: the next tick waits for the count and then for the new session: no tick is lost."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.SLOW, calls=("nvmlDeviceGetCount_v2",), seconds=0.1)
            stage.fail(FaultKind.ERROR, gpu=0, calls=("nvmlDeviceGetUtilizationRates",), code=Code.UNINITIALIZED)
            assert (await stage.tick(slow=True)).node.nvml_state is NvmlState.FAILED
            stage.node.clear()
            snapshot = await stage.monitor.tick()  # at once: the count is still on its way

            assert [gpu.state for gpu in snapshot.gpus] == [GpuState.OK] * 2

    asyncio.run(run())


def test_the_driver_is_upgraded_underneath(caplog: pytest.LogCaptureFixture) -> None:
    """GPU-07: a version mismatch asks for a new process, is told once, and the agent stays up meanwhile."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            await stage.tick()
            assert not stage.monitor.session.needs_new_process
            stage.fail(FaultKind.VERSION_MISMATCH)
            for _ in range(20):
                snapshot = await stage.tick(10)

            assert stage.monitor.session.needs_new_process
            assert "driver and library versions differ" in snapshot.node.nvml_reason
            assert {gpu.state for gpu in snapshot.gpus} == {GpuState.FAILED}

    asyncio.run(run())
    assert len([record for record in caplog.records if "no GPU can be read" in record.getMessage()]) <= 2


def open_descriptors() -> int:
    """Of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_ticks_leave_nothing_behind() -> None:
    """EXP-01: NVML is initialized once; descriptors and threads are no more than after the first ticks."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            for tick in range(20):
                await stage.tick(slow=tick % 5 == 0)
            descriptors, threads = open_descriptors(), threading.active_count()
            for tick in range(500):
                snapshot = await stage.tick(slow=tick % 5 == 0)

            assert snapshot.node.nvml_initializations == 1
            assert open_descriptors() <= descriptors
            assert threading.active_count() <= threads
            assert {gpu.state for gpu in snapshot.gpus} == {GpuState.OK}

    asyncio.run(run())


def test_a_tick_that_was_skipped_is_counted() -> None:
    """EXP-05: ticks and late ticks are counters of their own."""

    async def run() -> None:
        async with rig("no-gpus", events=False) as stage:
            await stage.tick()
            stage.monitor.tick_skipped()
            await stage.tick()

            assert (stage.value("gpuagent_ticks_total"), stage.value("gpuagent_ticks_late_total")) == (2, 1)

    asyncio.run(run())


def test_an_answer_after_the_end_of_the_loop() -> None:
    """GPU-11: a call that comes back when nobody waits any more ends its thread quietly."""

    async def run() -> None:
        async with rig(TWO, events=False) as stage:
            gone = asyncio.new_event_loop()
            gone.close()
            stage.monitor._loop = gone
            stage.monitor._notify()
            snapshot = await stage.tick()

            assert [gpu.state for gpu in snapshot.gpus] == [GpuState.OK] * 2

    asyncio.run(run())
