"""Memory limits that the driver keeps for cgroups: what it tells an agent that has one is not the GPU's memory."""

from __future__ import annotations

import pytest

from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open

GIB = 2**30
GPU = "{model: h100, memory: {base_used: 1GiB, total: 80GiB}}"
OWN, ABOVE, OTHER = "/sys/fs/cgroup/a.slice/b.service", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup/c.slice"
MAX = 2**64 - 1


def limit(bench: Bench, cgroup: str, soft: int, hard: int) -> None:
    """Set a limit, as nvidia-smi and container runtimes do."""
    limits = bench.library.struct("c_nvmlSetMemoryLimits_v1_t")
    limits.nameSpace, limits.softLimit, limits.hardLimit = cgroup.encode(), soft, hard
    bench.library.call("nvmlDeviceSetMemoryLimits_v1", bench.device.handle, limits)


def seen(bench: Bench) -> tuple[int | None, float | None]:
    """Memory in total, and the limit, as the next slow collection finds them."""
    reading = bench.collect(slow=True).reading
    assert [run.reason for run in reading.runs if not run.ok] == []
    assert reading.memory is not None
    return reading.memory.total_bytes, reading.figures.get("memory_own_limit_bytes")


@pytest.mark.parametrize(("cgroup", "limited"), [(OWN, True), (ABOVE, True), (OTHER, False)])
def test_a_limit_of_the_agents_own_cgroup(open_gpu: Open, cgroup: str, *, limited: bool) -> None:
    """NUM-05: while the driver tells of a limit, nothing is told of the GPU's memory; once it is off, all is again."""
    bench = open_gpu(GPU, driver="615.36.01")
    bench.device.own_cgroup = OWN
    assert seen(bench) == (80 * GIB, None)
    limit(bench, cgroup, 4 * GIB, 8 * GIB)
    assert seen(bench) == ((None, 8 * GIB) if limited else (80 * GIB, None))
    limit(bench, cgroup, 0, MAX)
    assert seen(bench) == (80 * GIB, None)


def test_what_the_driver_counts_against_a_limit(open_gpu: Open) -> None:
    """NUM-05: the simulated driver counts the processes below the cgroup, as `currentUsed` does."""
    processes = "[{name: a, memory: 2GiB, cgroup: /a.slice/b.service}, {name: b, memory: 4GiB, cgroup: /c.slice}]"
    bench = open_gpu(f"{{model: h100, processes: {processes}}}", driver="615.36.01")
    limit(bench, ABOVE, 0, 8 * GIB)
    limits = bench.library.struct("c_nvmlGetMemoryLimits_v1_t")
    limits.nameSpace = OWN.encode()
    bench.library.call("nvmlDeviceGetMemoryLimits_v1", bench.device.handle, limits)
    assert (limits.softLimit, limits.hardLimit, limits.currentUsed) == (0, 8 * GIB, 2 * GIB)


def test_an_agent_whose_cgroup_is_not_known(open_gpu: Open) -> None:
    """NUM-05: where there is no cgroup of version 2, there is no limit, and nothing is asked."""
    bench = open_gpu(GPU, driver="615.36.01")
    limit(bench, OWN, 0, 8 * GIB)
    assert seen(bench) == (80 * GIB, None)


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, Code.NOT_FOUND, Code.UNKNOWN])
def test_a_driver_that_does_not_tell(open_gpu: Open, code: Code) -> None:
    """NUM-05: a refusal is no limit and no failure, and it is asked again: a limit may be set at any time."""
    bench = open_gpu(GPU, driver="615.36.01")
    bench.device.own_cgroup = OWN
    limit(bench, OWN, 0, 8 * GIB)
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMemoryLimits_v1",), code=code)
    assert seen(bench) == (80 * GIB, None)
    bench.node.clear()
    assert seen(bench) == (None, 8 * GIB)


def test_a_driver_before_615(open_gpu: Open) -> None:
    """NUM-05: a driver without limits is asked once."""
    bench = open_gpu(GPU)
    bench.device.own_cgroup = OWN
    assert seen(bench) == (80 * GIB, None)
    assert bench.device.lacks("nvmlDeviceGetMemoryLimits_v1")
