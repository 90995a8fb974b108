"""Xid events, from the driver to the counters."""

from __future__ import annotations

import asyncio
import time

from gpuagent.simulated.faults import Kind
from tests.agent.monitor.calls import Recorder
from tests.fakes.rig import Rig, at, rig


async def counted(stage: Rig, xid: int, number: int) -> bool:
    """Whether so many events of a code are counted, as soon as they are."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if any((event.xid, event.count) == (xid, number) for event in stage.monitor._xids.counts()):
            return True
        await asyncio.sleep(0.005)
    return False


def test_two_equal_xids_are_two_events() -> None:
    """ALERT-01: the counter counts both, and tells when the last one was; the other GPU has none."""
    recorders: list[Recorder] = []

    def wrap(library: object) -> Recorder:
        recorders.append(Recorder(library))
        return recorders[0]

    async def run() -> None:
        async with rig("xid", wrap=wrap) as stage:
            await stage.tick()
            assert stage.value("gpuagent_xid_events_total") is None
            assert recorders[0].waiting_for_events.wait(20)
            stage.clock.advance(12)
            assert await counted(stage, 13, 1)
            stage.clock.advance(5)
            assert await counted(stage, 13, 2)
            last = stage.clock.wall()
            stage.clock.advance(3)
            assert await counted(stage, 94, 1)
            await stage.tick()

            assert stage.value("gpuagent_xid_events_total", gpu="0", xid="13") == 2
            assert stage.value("gpuagent_xid_last_timestamp_seconds", gpu="0", xid="13") == last
            assert stage.value("gpuagent_xid_events_total", gpu="1", xid="94") == 1
            assert stage.value("gpuagent_xid_events_total", gpu="1", xid="13") is None
            assert stage.value("gpuagent_collector_success", collector="xid_events") == 1

    asyncio.run(run())


def test_events_that_cannot_be_had() -> None:
    """GPU-09: are told as such, and cost nothing else."""

    async def run() -> None:
        async with rig("healthy", events=False) as stage:
            await stage.tick()
            while not stage.monitor._xids.problem:
                await asyncio.sleep(0.001)
            snapshot = await stage.tick()

            assert stage.value("gpuagent_collector_success", collector="xid_events") == 0
            assert at(snapshot, 0).memory is not None

    asyncio.run(run())


def test_a_gpu_is_lost_with_its_last_xid() -> None:
    """ALERT-01: the Xid that tells of the loss is counted, and the other GPU's events are still heard."""
    recorders: list[Recorder] = []

    def wrap(library: object) -> Recorder:
        recorders.append(Recorder(library))
        return recorders[0]

    async def run() -> None:
        async with rig("healthy", wrap=wrap) as stage:
            await stage.tick()
            assert recorders[0].waiting_for_events.wait(20)
            stage.clock.advance(1)  # only what happens after the registration is delivered
            stage.fail(Kind.XID, gpu=0, xid=79)
            stage.fail(Kind.LOST, gpu=0)
            await stage.tick()
            assert await counted(stage, 79, 1)
            registrations = recorders[0].called.count("nvmlDeviceRegisterEvents")
            assert registrations >= 2
            while "GPU 0" in stage.monitor._xids.problem or recorders[0].called[-1] != "nvmlEventSetWait_v2":
                await asyncio.sleep(0.001)
            stage.clock.advance(1)
            stage.fail(Kind.XID, gpu=1, xid=13)
            assert await counted(stage, 13, 1)

    asyncio.run(run())
