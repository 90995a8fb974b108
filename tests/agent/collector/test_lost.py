"""GPUs that are lost or vanish, and come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuagent.collector.inventory import Inventory
from gpuagent.core.snapshot import GpuState, NvmlState, Snapshot
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.fakes.rig import BOOT_ID, Rig, at, rig, state

FOUR = "gpus:\n  - {model: h100, count: 4, processes: [{name: a, memory: 1GiB}]}\n"
SLOW_SECONDS = 15.0


def states(snapshot: Snapshot) -> list[GpuState]:
    """By index; GPUs that have gone come last."""
    return [gpu.state for gpu in snapshot.gpus]


async def minutes(stage: Rig, number: float) -> list[Snapshot]:
    """Slow ticks for so long, at the usual interval."""
    return [await stage.tick(SLOW_SECONDS, slow=True) for _ in range(round(number * 60 / SLOW_SECONDS))]


def test_one_of_four_is_lost_from_the_start() -> None:
    """GPU-01: the other three export, the lost one is reported as lost."""

    async def run() -> None:
        async with rig("lost-gpu", events=False) as stage:
            snapshot = await stage.tick()

            assert states(snapshot) == [GpuState.OK, GpuState.OK, GpuState.LOST, GpuState.OK]
            assert [stage.value("gpuagent_gpu_lost", gpu=str(gpu)) for gpu in range(4)] == [0, 0, 1, 0]
            assert stage.value("gpuagent_gpus_readable") == 3
            assert [stage.value("gpuagent_gpu_memory_used_bytes", gpu=str(gpu)) is None for gpu in range(4)] == [
                False, False, True, False,
            ]  # fmt: skip

    asyncio.run(run())


def test_a_gpu_lost_before_a_restart_is_known_by_its_uuid(tmp_path: Path) -> None:
    """GPU-01: without a handle the UUID comes from the list of known GPUs."""

    async def run() -> None:
        async with rig(FOUR, inventory=Inventory(tmp_path / "gpus.json", BOOT_ID), events=False) as stage:
            uuid = at(await stage.tick(), 2).identity.uuid
        inventory = Inventory(tmp_path / "gpus.json", BOOT_ID)
        async with rig(FOUR, inventory=inventory, faults=[Fault(FaultKind.LOST, gpu=2)], events=False) as stage:
            await stage.tick()

            assert stage.value("gpuagent_gpu_lost", gpu="2", uuid=uuid) == 1

    asyncio.run(run())


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.GPU_NOT_FOUND])
def test_a_lost_gpu_that_comes_back_is_read_again(code: Code) -> None:
    """GPU-01: at the next slow tick, without a new initialization; the time of its loss is told until then."""

    async def run() -> None:
        async with rig(FOUR, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.LOST, gpu=2, code=code)
            snapshot = await stage.tick()
            lost = at(snapshot, 2)
            later = at(await stage.tick(5), 2)
            stage.node.clear()
            fast = await stage.tick()
            slow = await stage.tick(slow=True)

            assert states(snapshot) == [GpuState.OK, GpuState.OK, GpuState.LOST, GpuState.OK]
            assert later.state is GpuState.LOST
            assert lost.since_seconds == later.since_seconds
            assert state(fast, 2) is GpuState.LOST  # each try makes the driver probe dead hardware: not every second
            assert states(slow) == [GpuState.OK] * 4
            assert slow.node.nvml_initializations == 1

    asyncio.run(run())


@pytest.mark.slow
def test_a_gpu_that_stays_lost_costs_few_initializations(caplog: pytest.LogCaptureFixture) -> None:
    """GPU-07: looked for by a new initialization after 1, 3 and 7 minutes, and the others are not disturbed."""

    async def run() -> None:
        async with rig(FOUR, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.LOST, gpu=2)
            stage.fail(FaultKind.SLOW, calls=("nvmlDeviceGetCount_v2",), seconds=0.005)  # so that it is met in flight
            caplog.clear()
            snapshots = await minutes(stage, 8)

            numbers = [snapshot.node.nvml_initializations for snapshot in snapshots]
            assert (numbers[2], numbers[8], numbers[20], numbers[-1]) == (1, 2, 3, 4)
            assert {snapshot.node.nvml_state for snapshot in snapshots} == {NvmlState.READY}
            assert all(states(s) == [GpuState.OK, GpuState.OK, GpuState.LOST, GpuState.OK] for s in snapshots)

    asyncio.run(run())
    assert len([record for record in caplog.records if "lost" in record.getMessage()]) <= 4


def test_a_gpu_that_vanishes_is_missed() -> None:
    """GPU-02: without any error it is told as gone, and those behind it keep their identity on their new indices."""

    async def run() -> None:
        async with rig(FOUR, events=False) as stage:
            uuids = [gpu.identity.uuid for gpu in (await stage.tick()).gpus]
            stage.fail(FaultKind.VANISH, gpu=1)
            await stage.tick(slow=True)
            snapshot = await stage.tick()

            assert states(snapshot) == [GpuState.OK] * 3 + [GpuState.GONE]
            assert [gpu.identity.uuid for gpu in snapshot.gpus] == [uuids[0], uuids[2], uuids[3], uuids[1]]
            assert [gpu.identity.index for gpu in snapshot.gpus] == [0, 1, 2, 1]
            assert stage.value("gpuagent_gpu_lost", uuid=uuids[1]) == 1
            assert (stage.value("gpuagent_gpus"), stage.value("gpuagent_gpus_expected")) == (3, 4)

    asyncio.run(run())


def test_all_gpus_vanish() -> None:
    """GPU-02: a node that had GPUs and has none is not a node without GPUs."""

    async def run() -> None:
        async with rig(FOUR, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.VANISH)
            await stage.tick(slow=True)
            snapshot = await stage.tick()

            assert states(snapshot) == [GpuState.GONE] * 4
            assert (stage.value("gpuagent_gpus"), stage.value("gpuagent_gpus_expected")) == (0, 4)

    asyncio.run(run())


def test_gpus_that_vanished_are_found_again() -> None:
    """GPU-02: NVML shows them after a new initialization only, which is tried by itself."""

    async def run() -> None:
        async with rig(FOUR, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.VANISH, gpu=1)
            assert GpuState.GONE in states((await minutes(stage, 0.5))[-1])
            stage.node.clear()
            snapshots = await minutes(stage, 2)

            assert states(snapshots[-1]) == [GpuState.OK] * 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("boot_id", "found"), [(BOOT_ID, [GpuState.OK] * 3 + [GpuState.GONE]), ("x", [GpuState.OK] * 3)]
)
def test_a_gpu_that_vanished_while_the_agent_was_down(tmp_path: Path, boot_id: str, found: list[GpuState]) -> None:
    """GPU-02: it is missed after a restart; after a reboot the hardware may have changed."""

    async def run() -> None:
        async with rig(FOUR, inventory=Inventory(tmp_path / "gpus.json", BOOT_ID), events=False) as stage:
            await stage.tick()
        inventory = Inventory(tmp_path / "gpus.json", boot_id)
        async with rig(FOUR, inventory=inventory, faults=[Fault(FaultKind.VANISH, gpu=3)], events=False) as stage:
            assert states(await stage.tick()) == found

    asyncio.run(run())


def test_a_lost_gpu_that_was_replaced_is_expected_no_more(tmp_path: Path) -> None:
    """GPU-01: also where the one in its place is opened for a while before it says which GPU it is."""
    two = "gpus:\n  - {model: h100}\n  - {model: h100, uuid: GPU-%s}\n"
    path = tmp_path / "gpus.json"

    async def run() -> None:
        async with rig(two % "old", inventory=Inventory(path, BOOT_ID), events=False) as stage:
            assert at(await stage.tick(), 1).identity.uuid == "GPU-old"
        inventory = Inventory(path, "another")
        assert inventory.expect(["GPU-old"]) == {"GPU-old"}
        hang = Fault(FaultKind.HANG, gpu=1, calls=("nvmlDeviceGetMemoryInfo_v2",))
        async with rig(two % "new", inventory=inventory, faults=[hang], events=False) as stage:
            for _ in range(3):
                assert at(await stage.hasty_tick(), 1).replaces == ""
            await stage.mend()
            seen = await stage.tick()
            assert states(seen) == [GpuState.OK] * 2
            assert (at(seen, 1).identity.uuid, at(seen, 1).replaces) == ("GPU-new", "GPU-old")
            assert stage.value("gpuagent_gpus_expected") == 2
        assert Inventory(path, "another").expect(["GPU-old"]) == frozenset()

    asyncio.run(run())


def test_more_gpus_on_the_bus_than_the_driver_has() -> None:
    """GPU-02: a GPU that was gone before the agent came is missed by the PCI bus."""

    async def run() -> None:
        async with rig(FOUR, faults=[Fault(FaultKind.VANISH, gpu=3)], events=False) as stage:
            await stage.tick()

            assert (stage.value("gpuagent_gpus"), stage.value("gpuagent_pci_gpus")) == (3, 4)
            assert stage.value("gpuagent_gpus_expected") == 4

    asyncio.run(run())


def test_device_access_taken_away() -> None:
    """GPU-08: "Unknown Error" to everything is a state of its own, with its reason, and over when access is back."""

    async def run() -> None:
        async with rig(FOUR, events=False) as stage:
            await stage.tick()
            stage.fail(FaultKind.ERROR, code=Code.UNKNOWN)
            snapshot = await stage.tick(slow=True)

            assert states(snapshot) == [GpuState.FAILED] * 4
            assert at(snapshot, 0).reason == "nvmlDeviceGetMemoryInfo: unknown error"
            assert stage.value("gpuagent_gpu_lost", gpu="0") is None
            assert stage.value("gpuagent_gpu_reading_age_seconds", gpu="0") == 1
            assert stage.value("gpuagent_gpu_memory_used_bytes", gpu="0") is None
            assert stage.value("gpuagent_collector_success", gpu="0", collector="memory") == 0
            stage.node.clear()
            assert states(await stage.tick()) == [GpuState.OK] * 4

    asyncio.run(run())


def test_a_gpu_that_may_not_be_opened() -> None:
    """PROC-11: without permission a GPU is not lost; it is read when the permission is there."""

    async def run() -> None:
        refused = Fault(FaultKind.ERROR, gpu=1, calls=("nvmlDeviceGetHandleByIndex_v2",), code=Code.NO_PERMISSION)
        async with rig(FOUR, faults=[refused], events=False) as stage:
            snapshot = await stage.tick()

            assert state(snapshot, 1) is GpuState.FAILED
            assert at(snapshot, 1).reason.endswith("no permission")
            stage.node.clear()
            assert states(await stage.tick(slow=True)) == [GpuState.OK] * 4

    asyncio.run(run())
