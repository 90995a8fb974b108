"""A GPU that has fallen off the bus, by the kernel's log and by NVML: one event."""

from __future__ import annotations

import asyncio

import pytest

from gpuagent.core.snapshot import XidCount
from gpuagent.procfs.kernel_log import Address
from gpuagent_simulator.faults import FaultKind
from tests.fakes.rig import rig

TWO = """
gpus:
  - {model: h100, pci_bus_id: "00000000:3B:00.0"}
  - {model: h100, pci_bus_id: "00000000:5D:00.0"}
"""
FIRST: Address = (0, 0x3B, 0)


def counted(xids: tuple[XidCount, ...]) -> list[tuple[int, int, int]]:
    """GPU, code and number."""
    return [(each.gpu_index, each.xid, each.count) for each in xids]


def test_the_kernel_alone_tells_of_it() -> None:
    """GPU-03: without an Xid from NVML a GPU that it has lost is counted as Xid 79, however often it is told."""
    news: list[list[Address]] = [[], [FIRST, FIRST], [FIRST], [(0, 0x99, 0)]]

    async def run() -> None:
        async with rig(TWO, events=False, fallen=lambda: news.pop(0) if news else []) as one:
            assert counted((await one.tick()).xids) == []
            one.fail(FaultKind.LOST, gpu=0)
            for _ in range(3):
                snapshot = await one.tick()
                assert counted(snapshot.xids) == [(0, 79, 1)]
            assert one.value("gpuagent_xid_events_total", gpu="0", xid="79") == 1

    asyncio.run(run())


def test_both_tell_of_it() -> None:
    """GPU-03: NVML's Xid 79 and the kernel's text are one event; a fall after a minute is another one."""
    news: list[list[Address]] = [[], [FIRST]]

    async def run() -> None:
        async with rig(TWO, events=False, fallen=lambda: news.pop(0) if news else []) as one:
            uuid = (await one.tick()).gpus[0].identity.uuid
            watcher = one.monitor._xids
            watcher.note_fallen_off(0, uuid)  # as NVML tells it
            assert counted((await one.tick()).xids) == [(0, 79, 1)]
            one.clock.advance(100)
            one.fail(FaultKind.LOST, gpu=0)
            news.append([FIRST])
            assert counted((await one.tick()).xids) == [(0, 79, 2)]

    asyncio.run(run())


@pytest.mark.parametrize(("seconds", "counts"), [(0.0, []), (30.0, [(0, 79, 1)]), (90.0, [])])
def test_a_gpu_that_answers(seconds: float, counts: list[tuple[int, int, int]]) -> None:
    """GPU-03: whatever the log says, a GPU that answers has not fallen; one that fails within a minute has."""
    news: list[list[Address]] = [[], [FIRST]]

    async def run() -> None:
        async with rig(TWO, events=False, fallen=lambda: news.pop(0) if news else []) as one:
            await one.tick()
            assert counted((await one.tick()).xids) == []
            one.clock.advance(seconds)
            await one.tick()
            if seconds:
                one.fail(FaultKind.LOST, gpu=0)
            assert counted((await one.tick()).xids) == counts

    asyncio.run(run())
