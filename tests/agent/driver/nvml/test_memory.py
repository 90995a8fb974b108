"""Device memory, by both versions of the call, and BAR1."""

from __future__ import annotations

from gpuagent.core.hardware import Memory
from gpuagent.driver.nvml import memory
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open

GIB = 2**30
GPU = "{model: h100, memory: {base_used: 1GiB, total: 80GiB, reserved: 1GiB}}"
VERSION_2 = "nvmlDeviceGetMemoryInfo_v2"
EVERY_VERSION = "nvmlDeviceGetMemoryInfo*"


def read(bench: Bench) -> Memory:
    """What the collector finds."""
    bench.device.clear_failures()
    return memory.collect(bench.device)


def test_reserved_is_not_used(open_gpu: Open) -> None:
    """NUM-04: an idle GPU uses next to nothing; total = used + free + reserved."""
    found = read(open_gpu(GPU))

    assert (found.total_bytes, found.used_bytes, found.reserved_bytes) == (80 * GIB, GIB, GIB)
    assert found.free_bytes == 78 * GIB


def test_a_driver_before_r510(open_gpu: Open) -> None:
    """NUM-04: version 1 has no reserved: it is part of used, and told as absent."""
    bench = open_gpu(GPU, Fault(FaultKind.MISSING, calls=(VERSION_2,)))
    found = read(bench)

    assert (found.used_bytes, found.free_bytes, found.reserved_bytes) == (2 * GIB, 78 * GIB, None)
    assert bench.device.failures == []


def test_wsl(open_gpu: Open) -> None:
    """NUM-04: where version 2 has never worked its UNKNOWN is no failure."""
    bench = open_gpu(GPU, Fault(FaultKind.ERROR, calls=(VERSION_2,), code=Code.UNKNOWN))

    assert read(bench).used_bytes == 2 * GIB
    assert bench.device.failures == []


def test_version_2_fails_for_once(open_gpu: Open) -> None:
    """NUM-04: that is a failure: the other version would make reserved memory look like a leak for a second."""
    bench = open_gpu(GPU)
    read(bench)
    bench.fail(FaultKind.ERROR, calls=(VERSION_2,), code=Code.UNKNOWN)

    assert read(bench) == Memory()
    assert len(bench.device.failures) == 1
    bench.node.clear()
    assert read(bench).used_bytes == GIB


def test_a_failure_of_version_2_is_not_hidden_by_version_1(open_gpu: Open) -> None:
    """EXP-05: only UNKNOWN is what WSL answers; a timeout is a timeout."""
    bench = open_gpu(GPU, Fault(FaultKind.ERROR, calls=(VERSION_2,), code=Code.TIMEOUT))
    read(bench)

    assert [failure.code for failure in bench.device.failures] == [Code.TIMEOUT]


def test_no_memory_of_its_own(open_gpu: Open) -> None:
    """NUM-05: it is the host's: what is not available is used, and nothing has failed."""
    bench = open_gpu("{model: gb10, processes: [{name: a, memory: 30GiB}]}")
    found = read(bench)
    host = bench.node.host_memory()

    assert found == Memory(host.total_bytes, host.total_bytes - host.available_bytes, host.available_bytes)
    assert (found.used_bytes or 0) > 30 * 2**30
    assert bench.device.failures == []


def test_no_memory_of_its_own_and_none_of_the_host(open_gpu: Open) -> None:
    """NUM-05: nothing is told, nothing is divided."""
    bench = open_gpu("{model: gb10}")
    bench.device.host_memory = lambda: None

    assert read(bench) == Memory()
    assert read(bench).used_ratio is None


def test_a_total_of_zero() -> None:
    """NUM-05: no ZeroDivisionError."""
    assert Memory(total_bytes=0, used_bytes=0).used_ratio is None
    assert Memory(total_bytes=4, used_bytes=1).used_ratio == 0.25


def test_figures_that_cannot_be(open_gpu: Open) -> None:
    """NUM-01, NUM-02: what no GPU can have is a failure, and is never shown: no alert follows from it."""
    bench = open_gpu(GPU)
    bench.fail(FaultKind.GARBAGE_VALUES)
    found = [read(bench) for _ in range(40)]

    assert all(memory.used_bytes is None or memory.used_bytes <= (memory.total_bytes or 0) < 2**48 for memory in found)
    assert found.count(Memory()) > 20
    assert "cannot be true" in str(bench.device.failures[0])


def test_bar1_is_carried_until_it_fails(open_gpu: Open) -> None:
    """EXP-05: read at the slow rate, shown in between, and gone with the first failure."""
    bench = open_gpu("{model: h100, bar1: {total: 8GiB, used: 1GiB}}")
    assert read(bench).bar1_total_bytes is None
    memory.collect_bar1(bench.device)
    found = read(bench)
    assert (found.bar1_total_bytes, found.bar1_used_bytes) == (8 * GIB, GIB)

    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetBAR1MemoryInfo",), code=Code.UNKNOWN)
    memory.collect_bar1(bench.device)
    found = read(bench)
    assert (found.bar1_total_bytes, found.bar1_used_bytes) == (None, None)
    assert found.total_bytes is not None
