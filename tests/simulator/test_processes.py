"""Process lists and utilization samples, through pynvml and with a buffer of one's own."""

from __future__ import annotations

import ctypes
from struct import Struct

import pynvml
import pytest

from gpuagent_simulator.spec import FIRST_MADE_UP_PID
from tests.simulator.conftest import OpenNode, Stage

ENTRY = Struct("<IxxxxQII")
SAMPLE = Struct("<IxxxxQIIII")
GIB = 1024**3
COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"


def _read(stage: Stage, capacity: int, symbol: str = COMPUTE) -> tuple[int, int, list[tuple[int, ...]]]:
    """(code, count, entries) of a direct call with a char buffer."""
    buffer = (ctypes.c_char * (capacity * 32))()
    count = ctypes.c_uint(capacity)
    code = getattr(stage.node.library, symbol)(stage.handle(), ctypes.byref(count), buffer)
    size = min(count.value, capacity) * ENTRY.size
    return code, count.value, list(ENTRY.iter_unpack(memoryview(buffer)[:size])) if not code else []


def test_the_two_call_dance(open_node: OpenNode) -> None:
    """No buffer: the count and INSUFFICIENT_SIZE; then the list, by pynvml's own wrapper."""
    stage = open_node()
    count = ctypes.c_uint(0)

    code = getattr(stage.node.library, COMPUTE)(stage.handle(), ctypes.byref(count), None)
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(stage.handle())

    assert (code, count.value) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2)
    assert [process.pid for process in listed] == [FIRST_MADE_UP_PID, FIRST_MADE_UP_PID + 1]
    assert [process.usedGpuMemory for process in listed] == [2 * GIB, 1 * GIB]
    assert {process.gpuInstanceId for process in listed} == {0xFFFFFFFF}


def test_an_empty_list_is_success_at_once(open_node: OpenNode) -> None:
    """Nothing to list: SUCCESS without a buffer."""
    stage = open_node("gpus: [{model: h100}]")
    count = ctypes.c_uint(0)

    code = getattr(stage.node.library, COMPUTE)(stage.handle(), ctypes.byref(count), None)

    assert (code, count.value) == (0, 0)
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(stage.handle()) == []


def test_a_direct_call_with_a_large_buffer(open_node: OpenNode) -> None:
    """One call with room enough gets the list; with too little, the count that is needed."""
    stage = open_node()

    assert _read(stage, 64)[:2] == (0, 2)
    assert _read(stage, 2)[2] == [
        (FIRST_MADE_UP_PID, 2 * GIB, 0xFFFFFFFF, 0xFFFFFFFF),
        (FIRST_MADE_UP_PID + 1, GIB, 0xFFFFFFFF, 0xFFFFFFFF),
    ]
    assert _read(stage, 1)[:2] == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2)


def test_a_process_is_in_the_list_of_each_of_its_kinds(open_node: OpenNode) -> None:
    """NUM-08: compute, graphics and MPS lists; one process may be in several, and is used once."""
    stage = open_node(
        """
gpus:
  - model: h100
    processes:
      - {name: both, memory: 1GiB, kind: CG}
      - {name: screen, memory: 2GiB, kind: G}
      - {name: client, memory: 4GiB, kind: CM}
"""
    )
    first = FIRST_MADE_UP_PID

    def listed(symbol: str) -> list[int]:
        return [pid - first for pid, *_ in _read(stage, 9, symbol)[2]]

    for version in ("_v2", "_v3"):
        assert listed(f"nvmlDeviceGetComputeRunningProcesses{version}") == [0, 2]
        assert listed(f"nvmlDeviceGetGraphicsRunningProcesses{version}") == [0, 1]
        assert listed(f"nvmlDeviceGetMPSComputeRunningProcesses{version}") == [2]
    details = pynvml.nvmlDeviceGetRunningProcessDetailList(stage.handle(), 0x1000018, 3)
    assert [detail.pid - first for detail in details] == [0, 1, 2]
    assert stage.used_bytes() == 7 * GIB


def test_processes_come_and_go(open_node: OpenNode) -> None:
    """`from`, `until` and `life` decide who is listed; memory goes with the process."""
    stage = open_node(
        """
gpus:
  - model: h100
    processes:
      - {name: a, memory: 1GiB, until: 5s}
      - {name: b, memory: 2GiB, from: 5s, life: 5s}
"""
    )
    seen = []
    for _ in range(3):
        seen.append(stage.used_bytes() // GIB)
        stage.clock.advance(5)

    assert seen == [1, 2, 0]


@pytest.mark.slow
def test_ten_thousand_short_lives(open_node: OpenNode) -> None:
    """EXP-03: `every` starts one copy after the other, each with a pid of its own."""
    stage = open_node(
        "gpus: [{model: h100, processes: [{name: job, memory: 1MiB, count: 10000, every: 1s, life: 3s}]}]"
    )
    seen: set[int] = set()
    for second in range(60):
        pids = stage.pids()
        assert len(pids) == min(second + 1, 3)
        seen.update(pids)
        stage.clock.advance(1)

    assert seen == set(range(FIRST_MADE_UP_PID, FIRST_MADE_UP_PID + 60))


def test_pids_are_stable_and_above_the_kernels(open_node: OpenNode) -> None:
    """Pids follow the order of the file, skip those that are given, and can be no real process."""
    stage = open_node(
        """
gpus:
  - model: h100
    count: 2
    processes:
      - {name: a, memory: 1}
      - {name: b, memory: 1, pid: 4194306}
"""
    )

    assert (stage.pids(0), stage.pids(1)) == ([4194305, 4194306], [4194307, 4194306])


def test_memory_follows_its_function_of_time(open_node: OpenNode) -> None:
    """A ramp counts from the start of the process, and one second is one picture."""
    stage = open_node("gpus: [{model: h100, processes: [{name: a, from: 5s, memory: {shape: ramp, rate: 1GiB}}]}]")
    stage.clock.advance(8)

    assert stage.used_bytes() == 3 * GIB
    stage.clock.advance(0.5)
    assert stage.used_bytes() == 3 * GIB
    stage.clock.advance(0.5)
    assert stage.used_bytes() == 4 * GIB


def test_no_more_memory_than_there_is(open_node: OpenNode) -> None:
    """Processes together never hold more than the GPU has: used stays their sum."""
    stage = open_node("gpus: [{model: h100, processes: [{name: a, memory: 50GiB, count: 2}]}]")
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(stage.handle())
    memory = pynvml.nvmlDeviceGetMemoryInfo(stage.handle(), pynvml.nvmlMemory_v2)

    assert memory.free == 0
    assert sum(process.usedGpuMemory for process in listed) == memory.used


def test_memory_that_is_not_told(open_node: OpenNode) -> None:
    """NUM-01: `unavailable` is 2^64-1 in the list and nothing in the GPU's sum."""
    stage = open_node("gpus: [{model: h100, processes: [{name: a, memory: unavailable}]}]")

    assert _read(stage, 4)[2][0][1] == 2**64 - 1
    assert stage.used_bytes() == 0


def test_samples_once_a_second(open_node: OpenNode) -> None:
    """NUM-06: busy processes only, one batch each full second, NOT_FOUND when none is new."""
    stage = open_node()
    stage.clock.advance(7.25)
    wall = 1_700_000_007_000_000

    (sample,) = pynvml.nvmlDeviceGetProcessUtilization(stage.handle(), 0)
    assert (sample.pid, sample.timeStamp, sample.smUtil, sample.memUtil) == (FIRST_MADE_UP_PID, wall, 60, 30)
    stage.clock.advance(0.5)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(stage.handle(), wall)
    stage.clock.advance(0.5)
    (sample,) = pynvml.nvmlDeviceGetProcessUtilization(stage.handle(), wall)
    assert sample.timeStamp == wall + 1_000_000


def test_samples_by_the_new_call(open_node: OpenNode) -> None:
    """The newer call tells the same, with jpeg and ofa."""
    stage = open_node("gpus: [{model: h100, processes: [{name: a, memory: 1, utilization: {sm: 9, jpeg: 4, ofa: 5}}]}]")

    (sample,) = pynvml.nvmlDeviceGetProcessesUtilizationInfo(stage.handle(), 0)

    assert (sample.pid, sample.smUtil, sample.jpgUtil, sample.ofaUtil) == (FIRST_MADE_UP_PID, 9, 4, 5)


def test_samples_with_a_buffer_of_ones_own(open_node: OpenNode) -> None:
    """One direct call with room enough; without a buffer the size of the driver's ring."""
    stage = open_node()
    call = stage.node.library.nvmlDeviceGetProcessUtilization
    buffer = (ctypes.c_char * (40 * 8))()
    count = ctypes.c_uint(8)

    assert call(stage.handle(), buffer, ctypes.byref(count), ctypes.c_ulonglong(0)) == 0
    assert count.value == 1
    assert SAMPLE.unpack_from(buffer)[2:] == (60, 30, 0, 0)
    assert call(stage.handle(), None, ctypes.byref(count), ctypes.c_ulonglong(0)) == 7
    assert count.value == 100
    count.value = 0
    assert call(stage.handle(), buffer, ctypes.byref(count), ctypes.c_ulonglong(0)) == 7


def test_accounting(open_node: OpenNode) -> None:
    """Accounting lists the processes where it is on, and is NOT_SUPPORTED where it is off."""
    stage = open_node("gpus: [{model: l40s, accounting: true, processes: [{name: a, memory: 1GiB}]}]")
    stage.clock.advance(4)

    assert pynvml.nvmlDeviceGetAccountingMode(stage.handle()) == 1
    assert pynvml.nvmlDeviceGetAccountingPids(stage.handle()) == [FIRST_MADE_UP_PID]
    stats = pynvml.nvmlDeviceGetAccountingStats(stage.handle(), FIRST_MADE_UP_PID)
    assert (stats.maxMemoryUsage, stats.isRunning) == (GIB, 1)
    assert stats.startTime == 1_700_000_000_000_000
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetAccountingStats(stage.handle(), 1)
    other = open_node()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetAccountingPids(other.handle())


def test_dead_processes_hold_their_memory(open_node: OpenNode) -> None:
    """PROC-01: after `dead_after` the driver lists it on, memory stands still, and it works no more."""
    stage = open_node(
        """
gpus:
  - model: h100
    processes:
      - {name: a, memory: {shape: ramp, rate: 1GiB}, dead_after: 3s, utilization: {sm: 9}}
"""
    )
    stage.clock.advance(10)

    assert stage.pids() == [FIRST_MADE_UP_PID]
    assert stage.used_bytes() == 3 * GIB
    assert not stage.node.proc.exists(FIRST_MADE_UP_PID)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(stage.handle(), 0)
