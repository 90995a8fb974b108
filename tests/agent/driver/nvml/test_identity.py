"""What a GPU is."""

from __future__ import annotations

import pytest

from gpuagent.core.hardware import MemoryKind
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.driver.nvml.driver import Collector
from gpuagent.driver.nvml.identity import open_device, refresh_mig_mode, refresh_pci_address
from gpuagent.driver.nvml.library import NvmlFailure
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.agent.driver.nvml.conftest import Open

MEMORY = "nvmlDeviceGetMemoryInfo*"


def test_an_h100(open_gpu: Open) -> None:
    """Everything that a data center GPU tells."""
    gpu = "{model: h100, uuid: GPU-1, serial: '42', pci_bus_id: '00000000:18:00.0', vbios: 96.00.1}"

    assert open_gpu(gpu).device.identity == GpuIdentity(
        index=0,
        uuid="GPU-1",
        name="NVIDIA H100 80GB HBM3",
        serial="42",
        pci_bus_id="00000000:18:00.0",
        vbios_version="96.00.1",
        brand="NVIDIA",
        compute_capability="9.0",
        mig_enabled=False,
    )


def test_a_consumer_card(open_gpu: Open) -> None:
    """GPU-09: it has no serial number and no MIG: unknown, and no failure."""
    bench = open_gpu("{model: rtx-4080-super}")

    assert (bench.device.identity.serial, bench.device.identity.mig_enabled) == ("", None)
    assert bench.device.identity.brand == "GeForce"
    assert bench.device.failures == []


def test_an_address_that_could_not_be_read(open_gpu: Open) -> None:
    """GPU-13: the GPU keeps the address known for its UUID, and is asked again at the slow rate only."""
    gpu = "{model: h100, uuid: GPU-1, pci_bus_id: '00000000:18:00.0'}"
    bench = open_gpu(gpu, Fault(FaultKind.ERROR, calls=("nvmlDeviceGetPciInfo*",), code=Code.UNKNOWN))
    known = open_device(bench.library, 0, bench.clock, {"GPU-1": "00000000:17:00.0"}.__getitem__)
    assert (bench.device.identity.pci_bus_id, known.identity.pci_bus_id) == ("", "00000000:17:00.0")
    bench.collect(slow=True)
    bench.node.clear()
    bench.collect()
    assert bench.device.identity.pci_bus_id == ""

    bench.collect(slow=True)
    refresh_pci_address(known)
    assert bench.device.identity.pci_bus_id == known.identity.pci_bus_id == "00000000:18:00.0"


def test_a_gb10(open_gpu: Open) -> None:
    """NUM-05: its memory is the host's."""
    assert open_gpu("{model: gb10}").device.identity.unified_memory


def test_a_gb10_that_tells_the_figures_of_the_host(open_gpu: Open) -> None:
    """NUM-05: where the memory call succeeds, it is known by its size and by what it lacks; cache is no use."""
    bench = open_gpu("{model: gb10, memory: {total: 127GiB, base_used: 100GiB}, lacks: [bar1]}")
    memory = bench.collect().reading.memory

    assert bench.device.identity.memory_kind is MemoryKind.UNIFIED
    assert memory
    assert memory.total_bytes == 128 * 2**30
    assert (memory.used_bytes or 0) < 10 * 2**30


def test_a_board_as_large_as_the_host(open_gpu: Open) -> None:
    """NUM-05: the size alone says nothing."""
    assert open_gpu("{model: h100, memory: {total: 128GiB}}").device.identity.memory_kind is MemoryKind.DEDICATED


def test_whoever_knows_better_is_believed(open_gpu: Open) -> None:
    """NUM-05: the configuration corrects a wrong guess."""
    bench = open_gpu("{model: h100}")
    device = open_device(bench.library, 0, bench.clock, host_memory=bench.node.host_memory, kind=MemoryKind.UNIFIED)
    reading = Collector(device).collect(slow=False).reading

    assert reading.identity.memory_kind is MemoryKind.UNIFIED
    assert reading.memory
    assert reading.memory.total_bytes == bench.node.host_memory().total_bytes


def test_a_gh200(open_gpu: Open) -> None:
    """NUM-05: has memory of its own, beside a CPU that reads it."""
    assert open_gpu("{model: gh200}").device.identity.memory_kind is MemoryKind.COHERENT


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.TIMEOUT, Code.NO_PERMISSION])
def test_memory_that_cannot_be_read_is_not_unified(open_gpu: Open, code: Code) -> None:
    """NUM-05: a GPU that is in trouble is not taken for one without memory."""
    bench = open_gpu("{model: h100}", Fault(FaultKind.ERROR, calls=(MEMORY,), code=code))

    assert not bench.device.identity.unified_memory


def test_a_name_that_is_not_utf_8(open_gpu: Open) -> None:
    """EXP-04: comes back escaped, not as an exception."""
    identity = open_gpu("{model: h100}", Fault(FaultKind.NON_UTF8_NAME)).device.identity

    assert identity.name == r"NVIDIA \xff\xfe\x80"


def test_no_uuid_no_gpu(open_gpu: Open) -> None:
    """GPU-01: without an identity nothing can be said of a GPU: the reason is raised."""
    with pytest.raises(NvmlFailure, match="nvmlDeviceGetUUID: timeout"):
        open_gpu("{model: h100}", Fault(FaultKind.ERROR, gpu=0, calls=("nvmlDeviceGetUUID",), code=Code.TIMEOUT))


def test_the_mig_mode_that_cannot_be_read_stays(open_gpu: Open) -> None:
    """PROC-10: an answer that fails does not make instances vanish."""
    bench = open_gpu("{model: h100, mig: []}")
    assert bench.device.identity.mig_enabled
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMigMode",), code=Code.UNKNOWN)
    bench.device.clear_failures()
    refresh_mig_mode(bench.device)

    assert bench.device.identity.mig_enabled
    assert len(bench.device.failures) == 1
