"""MIG instances, looked up anew at each collection."""

from __future__ import annotations

from dataclasses import replace

from gpuagent.driver.nvml import mig
from gpuagent.driver.nvml.mig import MigDevices
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open

GIB = 2**30
GPU = """{model: h100, mig: [
  {gpu_instance: 1, compute_instance: 0, profile: 1c.3g.40gb, memory: 40GiB, uuid: MIG-a},
  {gpu_instance: 1, compute_instance: 1, profile: 2c.3g.40gb, memory: 40GiB, uuid: MIG-b},
  {gpu_instance: 5, profile: 1g.10gb, memory: 10GiB, uuid: MIG-c, until: 30s}],
  processes: [{name: a, memory: 3GiB, gpu_instance: 1, compute_instance: 1}]}"""


def read(bench: Bench, *, slow: bool = True) -> MigDevices:
    """The instances now."""
    bench.device.clear_failures()
    return mig.collect(bench.device, slow=slow)


def test_instances(open_gpu: Open) -> None:
    """PROC-09: each with its ids, its profile, and the memory of its GPU instance."""
    found = read(open_gpu(GPU)).instances

    assert [(i.uuid, i.gpu_instance_id, i.compute_instance_id, i.profile) for i in found] == [
        ("MIG-a", 1, 0, "1c.3g.40gb"),
        ("MIG-b", 1, 1, "2c.3g.40gb"),
        ("MIG-c", 5, 0, "1g.10gb"),
    ]
    assert [(i.memory.total_bytes, i.memory.used_bytes) for i in found] == [
        (40 * GIB, 3 * GIB),
        (40 * GIB, 3 * GIB),
        (10 * GIB, 0),
    ]


def test_an_instance_that_goes(open_gpu: Open) -> None:
    """PROC-10: is gone at the next collection, without a failure."""
    bench = open_gpu(GPU)
    read(bench)
    bench.clock.advance(31)

    assert [instance.uuid for instance in read(bench, slow=False).instances] == ["MIG-a", "MIG-b"]
    assert bench.device.failures == []


def test_mig_off_costs_nothing(open_gpu: Open) -> None:
    """A GPU that is whole has no instances."""
    bench = open_gpu()

    assert read(bench) == MigDevices()
    assert bench.device.failures == []


def test_mig_that_is_switched(open_gpu: Open) -> None:
    """GPU-09: what the GPU did not support before it may support now, and is asked anew."""
    bench = open_gpu(GPU)
    call = "nvmlDeviceGetUtilizationRates"
    assert bench.device.ask(call) is None
    read(bench)
    assert not bench.device.supports(call)
    bench.device.identity = replace(bench.device.identity, mig_enabled=False)
    read(bench)

    assert bench.device.identity.mig_enabled
    assert bench.device.supports(call)


def test_instances_that_may_not_be_seen(open_gpu: Open) -> None:
    """PROC-11: are absent, with the reason, and no failure at each collection."""
    bench = open_gpu(GPU)
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMigDeviceHandleByIndex",), code=Code.NO_PERMISSION)

    assert read(bench) == MigDevices()
    assert bench.device.failures == []
    assert ("MIG device 0", "no permission") in bench.device.unsupported()


def test_instances_that_cannot_be_read(open_gpu: Open) -> None:
    """EXP-05: are a failure each, and are asked for again."""
    bench = open_gpu(GPU)
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMigDeviceHandleByIndex",), code=Code.UNKNOWN)
    assert read(bench).instances == ()
    assert bench.device.failures
    bench.node.clear()

    assert len(read(bench).instances) == 3


def test_instances_whose_memory_cannot_be(open_gpu: Open) -> None:
    """NUM-01, NUM-02: an instance with a memory that nobody can have is a failure, and is not shown."""
    bench = open_gpu(GPU)
    bench.fail(FaultKind.GARBAGE_VALUES, calls=("nvmlDeviceGetMemoryInfo*",))
    found = [instance.memory for _ in range(20) for instance in read(bench).instances]

    assert len(found) < 30
    assert all((memory.used_bytes or 0) <= (memory.total_bytes or 0) < 2**48 for memory in found)
    assert bench.device.failures


def test_memory_of_instances_on_an_older_driver(open_gpu: Open) -> None:
    """GPU-09: by version 1 where version 2 is missing."""
    bench = open_gpu(GPU, Fault(FaultKind.MISSING, calls=("nvmlDeviceGetMemoryInfo_v2",)))

    assert read(bench).instances[0].memory.total_bytes == 40 * GIB
