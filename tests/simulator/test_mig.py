"""MIG: instances as devices of their own."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from tests.simulator.conftest import OpenNode, Stage

GIB = 1024**3
DIVIDED = """
gpus:
  - model: h100
    mig:
      - {gpu_instance: 9, profile: 1g.10gb, memory: 9GiB, until: 20s}
      - {gpu_instance: 1, compute_instance: 0, profile: 1c.3g.40gb, memory: 39GiB, base_used: 1GiB}
      - {gpu_instance: 1, compute_instance: 1, profile: 2c.3g.40gb, memory: 39GiB}
      - {gpu_instance: 9, profile: 1g.10gb, memory: 9GiB, from: 30s, uuid: MIG-again}
    processes:
      - {name: a, memory: 4GiB, gpu_instance: 9, utilization: {sm: 12}, until: 20s}
      - {name: b, memory: 8GiB, gpu_instance: 1, compute_instance: 0, utilization: {sm: 30}}
      - {name: c, memory: 2GiB, gpu_instance: 1, compute_instance: 1}
"""


def _instances(stage: Stage) -> list[Any]:
    handles = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(stage.handle())):
        try:
            handles.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(stage.handle(), slot))
        except pynvml.NVMLError_NotFound:
            continue
    return handles


def _address(handle: Any) -> int:
    return ctypes.addressof(handle.contents)


def test_instances_are_devices(open_node: OpenNode) -> None:
    """Each has a name, a uuid, ids and attributes of its own, and knows its parent."""
    stage = open_node(DIVIDED)
    first, second, third = _instances(stage)

    assert pynvml.nvmlDeviceGetMigMode(stage.handle()) == [1, 1]
    assert pynvml.nvmlDeviceGetName(first) == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert pynvml.nvmlDeviceGetGpuInstanceId(second) == pynvml.nvmlDeviceGetGpuInstanceId(third) == 1
    assert pynvml.nvmlDeviceGetComputeInstanceId(third) == 1
    assert pynvml.nvmlDeviceGetAttributes_v2(first).memorySizeMB == 9 * 1024
    assert bool(pynvml.nvmlDeviceIsMigDeviceHandle(first))
    assert not bool(pynvml.nvmlDeviceIsMigDeviceHandle(stage.handle()))
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in (first, second, third)] == [0, 1, 2]
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(third)
    assert _address(parent) == _address(stage.handle())
    uuids = {pynvml.nvmlDeviceGetUUID(handle) for handle in (first, second, third)}
    assert len(uuids) == 3
    for uuid in uuids:
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid


def test_memory_of_a_gpu_instance_is_shared(open_node: OpenNode) -> None:
    """PROC-09: compute instances of one GPU instance tell the same memory; the parent counts it once."""
    stage = open_node(DIVIDED)
    used = [pynvml.nvmlDeviceGetMemoryInfo(handle).used // GIB for handle in _instances(stage)]

    assert used == [4, 11, 11]
    assert stage.used_bytes() == 15 * GIB


def test_processes_belong_to_instances(open_node: OpenNode) -> None:
    """The parent lists all processes with their instance, an instance only its own."""
    stage = open_node(DIVIDED)
    on_parent = pynvml.nvmlDeviceGetComputeRunningProcesses(stage.handle())
    on_instances = [
        [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] for handle in _instances(stage)
    ]

    assert [(p.gpuInstanceId, p.computeInstanceId) for p in on_parent] == [(9, 0), (1, 0), (1, 1)]
    assert on_instances == [[process.pid] for process in on_parent]


def test_a_divided_gpu_tells_no_utilization(open_node: OpenNode) -> None:
    """NUM-06: utilization, samples and remapped rows are NOT_SUPPORTED; power and the list are not."""
    handle = open_node(DIVIDED).handle()

    for call, *arguments in (
        (pynvml.nvmlDeviceGetUtilizationRates,),
        (pynvml.nvmlDeviceGetEncoderUtilization,),
        (pynvml.nvmlDeviceGetProcessUtilization, 0),
        (pynvml.nvmlDeviceGetRemappedRows,),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(handle, *arguments)
    assert pynvml.nvmlDeviceGetPowerUsage(handle) > 0


def test_an_instance_is_not_a_whole_gpu(open_node: OpenNode) -> None:
    """What only the parent can tell is NOT_SUPPORTED on an instance, and the other way round."""
    stage = open_node(DIVIDED)

    for call in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetMigMode):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(_instances(stage)[0])
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceId(stage.handle())
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(stage.handle())


def test_reconfigured_while_running(open_node: OpenNode) -> None:
    """PROC-10: a destroyed instance's handle is INVALID_ARGUMENT; one made again is another device."""
    stage = open_node(DIVIDED)
    gone = _instances(stage)[0]
    stage.clock.advance(25)

    assert len(_instances(stage)) == 2
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMemoryInfo(gone)
    stage.clock.advance(10)
    again = _instances(stage)[-1]
    assert pynvml.nvmlDeviceGetUUID(again) == "MIG-again"
    assert pynvml.nvmlDeviceGetMemoryInfo(again).used == 0
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(gone)


def test_without_mig_there_are_no_instances(open_node: OpenNode) -> None:
    """A GPU that could be divided, but is not."""
    handle = open_node().handle()

    assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 0]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
