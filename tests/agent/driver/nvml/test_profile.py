"""GPM: what the engines did between two samples."""

from __future__ import annotations

from gpuagent.core.hardware import Profile
from gpuagent.driver.nvml import profile
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open

GPU = """{model: h100, utilization: {gpu: 50}, gpm: {sm: 40, tensor: 30, dram: 20},
          pcie: {transmit: {shape: ramp, rate: 1048576}}}"""
SAMPLE = "nvmlGpmSampleGet"


def read(bench: Bench, seconds: float = 15.0) -> Profile | None:
    """The profile since the last call."""
    bench.clock.advance(seconds)
    bench.device.clear_failures()
    return profile.collect(bench.device)


def test_the_mean_since_the_last_collection(open_gpu: Open) -> None:
    """Ratios of 0 to 1, and bytes per second; the first collection has nothing to compare with."""
    bench = open_gpu(GPU)

    assert read(bench) is None
    found = read(bench)
    assert found is not None
    assert (found.sm_active_ratio, found.tensor_active_ratio, found.dram_bandwidth_ratio) == (0.4, 0.3, 0.2)
    assert found.pcie_transmit_bytes_per_second == 2**20


def test_samples_too_close(open_gpu: Open) -> None:
    """Less than 0.1 s apart they say nothing (nvml.h)."""
    bench = open_gpu(GPU)
    read(bench)

    assert read(bench, 0.05) is None
    assert read(bench) is not None


def test_a_gpu_without_gpm(open_gpu: Open) -> None:
    """GPU-09: before Hopper there is none, and no sample is taken."""
    bench = open_gpu("{model: a100}")

    assert read(bench) is None
    assert read(bench) is None
    assert bench.device.failures == []


def test_a_sample_that_fails_costs_one_collection(open_gpu: Open) -> None:
    """EXP-05: the next one compares with the last good sample, from the very start on."""
    bench = open_gpu(GPU)
    read(bench)
    bench.fail(FaultKind.ERROR, calls=(SAMPLE,), code=Code.UNKNOWN)
    assert read(bench) is None
    assert len(bench.device.failures) == 1
    bench.node.clear()

    found = read(bench)
    assert bench.device.failures == []
    assert found is not None
    assert found.pcie_transmit_bytes_per_second == 2**20


def test_samples_are_given_back(open_gpu: Open) -> None:
    """EXP-01: as many are freed as were allocated, of GPU and MIG instances alike."""
    gpu = "{model: h100, mig: [{gpu_instance: 1, profile: 1g.10gb, memory: 10GiB, until: 60s}]}"
    bench = open_gpu(gpu)
    pointers = bench.node.library._session.pointers
    before = len(pointers._cells)
    for _ in range(3):
        bench.collect(15, slow=True)
    samples = len(pointers._cells) - before
    bench.collect(60, slow=True)
    fewer = len(pointers._cells) - before
    bench.collector.close()

    assert samples - fewer == 2
    assert len(pointers._cells) - before == samples - 4
