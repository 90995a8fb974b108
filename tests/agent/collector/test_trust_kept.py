"""Whom distrust follows: over restarts of the agent, and whatever the driver does not tell of a GPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuagent.collector.inventory import Inventory
from gpuagent.collector.trust import TRUST_AFTER_SECONDS, TrustRegistry
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.core.wording import MPS_UNKNOWN, NO_PCI_ADDRESS
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.fakes.rig import BOOT_ID, rig

GIB = 2**30
ONE = "gpus:\n  - {model: h100, uuid: GPU-a, processes: [{name: a, memory: 1GiB}]}\n"
GPU = GpuIdentity(0, "GPU-a", pci_bus_id="00000000:18:00.0")
PCI = "nvmlDeviceGetPciInfo*"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where it is kept."""
    return tmp_path / "trust.json"


def distrusted(path: Path, gpu: GpuIdentity = GPU) -> TrustRegistry:
    """A registry that has written down that a GPU is distrusted."""
    registry = TrustRegistry(path, "boot")
    registry.for_gpu(gpu).observe("impossible", 0.0)
    registry.save()
    return registry


@pytest.mark.parametrize(
    ("other", "inherits"),
    [
        (GpuIdentity(3, "GPU-a", pci_bus_id="00000000:18:00.0"), True),
        (GpuIdentity(0, "GPU-a"), True),
        (GpuIdentity(0, "GPU-a", pci_bus_id="00000000:20:00.0"), True),
        (GpuIdentity(0, "GPU-b", pci_bus_id="00000000:18:00.0"), True),
        (GpuIdentity(0, "GPU-b", pci_bus_id="00000000:20:00.0"), False),
        (GpuIdentity(0, "GPU-b"), False),
        (GpuIdentity(0, ""), False),
    ],
    ids=["another index", "no address", "another address", "another UUID", "another GPU", "unknown", "not identified"],
)
def test_distrust_follows_uuid_and_address(path: Path, other: GpuIdentity, inherits: bool) -> None:
    """NUM-12: what may be the distrusted GPU is distrusted, in this agent and in the next one; its index is nothing."""
    assert bool(distrusted(path).for_gpu(other).refusal) is inherits
    assert bool(TrustRegistry(path, "boot").for_gpu(other).refusal) is inherits


def test_an_address_that_was_not_told_is_nobody_s() -> None:
    """NUM-12: two GPUs without an address are not one GPU, and an unidentified one shares nothing."""
    registry = TrustRegistry()
    registry.for_gpu(GpuIdentity(0, "GPU-a")).observe("impossible", 0.0)

    assert registry.for_gpu(GpuIdentity(1, "GPU-b")).refusal == ""
    assert registry.for_gpu(GpuIdentity(0, "")) is not registry.for_gpu(GpuIdentity(1, ""))


def test_the_minute_begins_anew_after_a_restart(path: Path) -> None:
    """NUM-12: the same refusal, until 60 s of readings by this agent; the file says when it is over."""
    before = distrusted(path).for_gpu(GPU).refusal
    registry = TrustRegistry(path, "boot")
    trust = registry.for_gpu(GPU)
    for second in range(int(TRUST_AFTER_SECONDS)):
        trust.observe("", float(second))
        assert trust.refusal == before
    trust.observe("", TRUST_AFTER_SECONDS)
    registry.save()

    assert trust.refusal == TrustRegistry(path, "boot").for_gpu(GPU).refusal == ""


def test_a_new_boot_begins_with_trust(path: Path) -> None:
    """NUM-12: the driver has been loaded anew."""
    distrusted(path)

    assert TrustRegistry(path, "another", seen_before=True).for_gpu(GPU).refusal == ""


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_missing_file(path: Path, seen_before: bool) -> None:
    """NUM-12: at the first start nothing can have been forgotten; later a file that is not there was lost."""
    assert bool(TrustRegistry(path, "boot", seen_before=seen_before).for_gpu(GPU).refusal) is seen_before


@given(garbage=st.binary(max_size=200))
@example(garbage=b"[" * 100_000)
@example(garbage=b'{"boot_id": "boot"}')
@example(garbage=b'{"boot_id": "boot", "schema": 2, "distrusted": []}')
@example(garbage=b'{"boot_id": "boot", "schema": 1, "distrusted": [{"uuid": "GPU-b"}]}')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_damaged_file_is_distrust_of_everybody(path: Path, garbage: bytes) -> None:
    """NUM-12: what was known is lost, which is not the same as trust; the file is good again after the next tick."""
    path.write_bytes(garbage)
    registry = TrustRegistry(path, "boot")
    assert registry.for_gpu(GPU).refusal
    registry.save()

    assert "before the agent's start" in TrustRegistry(path, "boot").for_gpu(GPU).refusal


def test_it_is_written_when_it_changes_and_not_otherwise(path: Path) -> None:
    """EXP-08: a tick a second writes no file a second."""
    registry = TrustRegistry(path, "boot")
    registry.save()
    path.unlink()
    registry.for_gpu(GPU)
    registry.save()
    assert not path.exists()

    registry.for_gpu(GPU).observe("impossible", 0.0)
    registry.save()
    assert path.exists()


def test_a_file_that_cannot_be_written_is_removed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NUM-12: an old file would clear a GPU that is distrusted by now."""
    registry = TrustRegistry(path, "boot")
    registry.save()
    path.with_suffix(".new").mkdir()
    registry.for_gpu(GPU).observe("impossible", 0.0)
    registry.save()

    assert "cannot be saved" in caplog.text
    assert TrustRegistry(path, "boot", seen_before=True).for_gpu(GPU).refusal


# ---- over a monitor and a simulated node ------------------------------------------------------------------------


def test_a_gpu_that_does_not_tell_its_address_once(tmp_path: Path) -> None:
    """GPU-13: after a restart it is the GPU that it was: known by its UUID, and distrusted if it was."""

    async def run() -> None:
        gpus = tmp_path / "gpus.json"
        async with rig(ONE, inventory=Inventory(gpus, BOOT_ID), events=False) as stage:
            (first,) = (await stage.tick()).gpus
        fault = Fault(FaultKind.ERROR, calls=(PCI,), code=Code.UNKNOWN)
        async with rig(ONE, inventory=Inventory(gpus, BOOT_ID), faults=[fault], events=False) as stage:
            (again,) = (await stage.tick()).gpus
        assert first.identity.pci_bus_id
        assert (again.identity.pci_bus_id, again.act_refusal) == (first.identity.pci_bus_id, "")
        assert Inventory(gpus, BOOT_ID).address_of("GPU-a") == first.identity.pci_bus_id

    asyncio.run(run())


def test_a_gpu_that_has_never_told_its_address() -> None:
    """GPU-13: nobody on it is acted on until it does, at the slow rate."""

    async def run() -> None:
        fault = Fault(FaultKind.ERROR, calls=(PCI,), code=Code.UNKNOWN)
        async with rig(ONE, faults=[fault], events=False) as stage:
            assert (await stage.tick()).gpus[0].act_refusal == NO_PCI_ADDRESS
            stage.node.clear()
            assert (await stage.tick()).gpus[0].act_refusal == NO_PCI_ADDRESS
            assert (await stage.tick(slow=True)).gpus[0].act_refusal == ""

    asyncio.run(run())


def test_an_mps_list_that_may_not_be_read_forbids_acts() -> None:
    """PROC-08: whoever may be a client of MPS is not acted on."""

    async def run() -> None:
        fault = Fault(FaultKind.ERROR, calls=("nvmlDeviceGetMPSComputeRunningProcesses*",), code=Code.NO_PERMISSION)
        async with rig(ONE, faults=[fault], events=False) as stage:
            assert {(await stage.tick()).gpus[0].act_refusal for _ in range(3)} == {MPS_UNKNOWN}

    asyncio.run(run())
