"""Xid events, from the driver to the counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpuagent.driver.nvml.events import XidWatcher
from gpuagent_exporters.status.problems import find_problems
from gpuagent_simulator.faults import FaultKind
from tests.agent.collector.calls import Recorder
from tests.fakes.rig import Rig, at, failing, rig


async def until(happened: Callable[[], bool]) -> bool:
    """Whether something happens in another thread that rings no bell, as soon as it does."""
    for _ in range(4000):
        if happened():
            return True
        await asyncio.sleep(0.005)
    return False


async def counted(stage: Rig, xid: int, number: int) -> bool:
    """Whether so many events of a code come to be counted."""
    return await until(lambda: (xid, number) in {(event.xid, event.count) for event in stage.monitor._xids.counts()})


@asynccontextmanager
async def listening(scenario: str) -> AsyncIterator[tuple[Rig, Recorder]]:
    """A node whose events are waited for, and what records the calls into its library."""
    recorders: list[Recorder] = []

    def wrap(library: object) -> Recorder:
        recorders.append(Recorder(library))
        return recorders[0]

    async with rig(scenario, wrap=wrap) as stage:
        await stage.tick()
        assert recorders[0].waiting_for_events.wait(20)
        yield stage, recorders[0]


def test_two_equal_xids_are_two_events() -> None:
    """ALERT-01: the counter counts both, and tells when the last one was; the other GPU has none."""

    async def run() -> None:
        async with listening("xid") as (stage, _):
            assert stage.value("gpuagent_xid_events_total") is None
            stage.clock.advance(12)
            assert await counted(stage, 13, 1)
            stage.clock.advance(5)
            assert await counted(stage, 13, 2)
            last = stage.clock.wall()
            stage.clock.advance(3)
            assert await counted(stage, 94, 1)
            await stage.tick()

            assert stage.value("gpuagent_xid_events_total", gpu="0", xid="13") == 2
            assert stage.value("gpuagent_xid_last_timestamp_seconds", gpu="0", xid="13", severity="info") == last
            assert stage.value("gpuagent_xid_events_total", gpu="1", xid="94") == 1
            assert stage.value("gpuagent_xid_events_total", gpu="1", xid="13") is None
            assert stage.value("gpuagent_collector_success", collector="xid_events") == 1

    asyncio.run(run())


def test_events_that_cannot_be_had() -> None:
    """GPU-09: are told as such, and cost nothing else."""

    async def run() -> None:
        async with rig("healthy", events=False) as stage:
            await stage.tick()
            assert await until(lambda: bool(stage.monitor._xids.problem))
            snapshot = await stage.tick()

            assert stage.value("gpuagent_collector_success", collector="xid_events") == 0
            assert at(snapshot, 0).memory is not None

    asyncio.run(run())


def test_a_gpu_is_lost_with_its_last_xid() -> None:
    """ALERT-01: the Xid that tells of the loss is counted, and the other GPU's events are still heard."""

    async def run() -> None:
        async with listening("healthy") as (stage, recorder):
            stage.clock.advance(1)  # only what happens after the registration is delivered
            stage.fail(FaultKind.XID, gpu=0, xid=79)
            stage.fail(FaultKind.LOST, gpu=0)
            await stage.tick()
            assert await counted(stage, 79, 1)
            assert await until(lambda: waits_for_the_rest(stage, recorder))
            stage.clock.advance(1)
            stage.fail(FaultKind.XID, gpu=1, xid=13)
            assert await counted(stage, 13, 1)

    asyncio.run(run())


def test_a_lost_gpu_does_not_stop_the_events_of_others() -> None:
    """ALERT-01: a set that answers GPU_IS_LOST, while the monitor has not seen the loss, is replaced at once."""

    async def run() -> None:
        async with listening("healthy") as (stage, recorder):
            stage.fail(FaultKind.LOST, gpu=0)
            assert await until(lambda: recorder.called.count("nvmlEventSetCreate") >= 3)
            assert await until(lambda: recorder.called[-1] == "nvmlEventSetWait_v2")
            stage.clock.advance(1)
            stage.fail(FaultKind.XID, gpu=1, xid=48)
            assert await counted(stage, 48, 1)
            assert stage.monitor._xids.problem == ""

    asyncio.run(run())


def waits_for_the_rest(stage: Rig, recorder: Recorder) -> bool:
    """Whether a set has been made in which every GPU could be registered, and is waited for."""
    last = recorder.called[-2:]
    return not stage.monitor._xids.problem and last == ["nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"]


def test_a_gpu_that_sends_no_xids() -> None:
    """GPU-09: is asked for its event types first, for one unsupported type refuses all; that is no fault."""

    async def run() -> None:
        async with rig("gpus:\n  - {model: h100, lacks: [events]}\n") as stage:
            await stage.tick()
            watcher = stage.monitor._xids
            assert isinstance(watcher, XidWatcher)
            assert await until(lambda: bool(watcher._silent))
            snapshot = await stage.tick()

            (run,) = (each for each in at(snapshot, 0).runs if each.collector == "xid_events")
            assert (run.ok, run.reason) == (True, "this GPU has no Xid events")
            assert failing(at(snapshot, 0)) == {}
            assert [each for each in find_problems(snapshot, snapshot.clock_seconds) if each.kind == "collector"] == []
            assert [run.ok for run in snapshot.runs if run.collector == "xid_events"] == [True]

    asyncio.run(run())
