"""Entry points: which processes use a GPU, how much memory and how busily.

The driver's ring of utilization samples has a new batch each full second of the scenario.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from gpuagent_simulator.abi import (
    NO_INSTANCE,
    NOT_AVAILABLE,
    PROCESS,
    PROCESS_DETAIL,
    PROCESS_SHORT,
    SAMPLE,
    SAMPLE_INFO,
    AccountingStats,
    Code,
    NvmlError,
    ProcessDetailList,
    ProcessesUtilizationInfo,
    address,
    check_version,
    number,
    put_bytes,
    view,
)
from gpuagent_simulator.device import Device, Gpu, ListedProcess
from gpuagent_simulator.faults import FaultKind
from gpuagent_simulator.process import FIRST_NEWCOMER_PID
from gpuagent_simulator.session import Body, EntrySpec, EntryTable, gauges, on_device
from gpuagent_simulator.spec import Feature

RING_SIZE = 100
"""Size that the size call answers, however many processes there are (https://github.com/NVIDIA/go-nvml/issues/11)."""
_MINUTE = 60_000_000


class RingSample(NamedTuple):
    """`stamp` in unix microseconds; percent of SM, memory, encoder, decoder, jpeg, ofa."""

    pid: int
    stamp: int
    percent: tuple[int, ...]


def samples(gpu: Gpu, since: int) -> list[RingSample]:
    """Return the busy processes sampled after `since` (unix microseconds).

    Raises:
        Refusal: NOT_FOUND, nobody was active since
        (https://github.com/rust-nvml/nvml-wrapper/issues/56).
    """
    found = _garbage(gpu) if gpu.faults.find(FaultKind.GARBAGE_SAMPLES, gpu.index) else []
    stamp = gpu.scenario_clock.batch_stamp()
    if stamp > since:
        found += [RingSample(row.pid, stamp, tuple(row.load)) for row in gpu.rows() if any(row.load)]
    if not found:
        raise NvmlError(Code.NOT_FOUND)
    return found


def _garbage(gpu: Gpu) -> list[RingSample]:
    """Return what drivers have been seen to answer, whatever `since` says (https://github.com/Syllo/nvtop/issues/110)."""
    now = gpu.scenario_clock.batch_stamp()
    listed = gpu.rows()[0].pid if gpu.rows() else 1
    return [
        RingSample(listed, now, (37100, 0, 0, 0, 0, 0)),
        RingSample(listed, now, (2**32 - 1,) * 6),
        RingSample(listed, now + _MINUTE, (55, 0, 0, 0, 0, 0)),
        RingSample(listed, now - 10 * _MINUTE, (99, 0, 0, 0, 0, 0)),
        RingSample(999_999, now, (50, 0, 0, 0, 0, 0)),
        RingSample(0, now, (50, 0, 0, 0, 0, 0)),
    ]


ENTRIES: EntryTable = {}

_GROWS_AT_MOST = 8
ACCOUNTING_BUFFER = 4000

# ---- lists ---------------------------------------------------------------------------------------


def _rows(device: Device, kinds: str) -> list[ListedProcess]:
    return [row for row in device.rows() if any(kind in row.process.spec.kind for kind in kinds)]


def _packed(device: Device, rows: list[ListedProcess], extra: int, *, entry_bytes: int = PROCESS.size) -> bytes:
    """Return the list as bytes, with entries of 16, 24 or 32 bytes."""
    gpu = device.parent
    hidden = gpu.faults.find(FaultKind.UNAVAILABLE_MEMORY, gpu.index) is not None
    impossible = gpu.faults.find(FaultKind.IMPOSSIBLE_MEMORY, gpu.index)
    forced = impossible.size if impossible is not None else None
    entries: list[tuple[int, ...]] = [
        (
            row.pid,
            NOT_AVAILABLE if hidden or row.used_bytes is None else forced if forced is not None else row.used_bytes,
            row.process.gpu_instance,
            row.process.compute_instance,
        )
        for row in rows
    ]
    entries += [(FIRST_NEWCOMER_PID + new, 0, NO_INSTANCE, NO_INSTANCE) for new in range(extra)]
    if entry_bytes == PROCESS_DETAIL.size:
        return b"".join(PROCESS_DETAIL.pack(*entry, 0) for entry in entries)
    if entry_bytes == PROCESS_SHORT.size:
        return b"".join(PROCESS_SHORT.pack(*entry[:2]) for entry in entries)
    return b"".join(PROCESS.pack(*entry) for entry in entries)


def _grow(gpu: Gpu, symbol: str) -> None:
    """Grow the list after a call that found its buffer too small: it is longer for the next one."""
    fault = gpu.faults.find(FaultKind.PROCESS_LIST_GROWS, gpu.index)
    if fault is not None:
        gpu.grown[symbol] = min(gpu.grown.get(symbol, 0) + fault.by, fault.by * _GROWS_AT_MOST)


def _process_list(symbol: str, kind: str, *, third: bool) -> Body:
    """Count 0 and no buffer.

    INSUFFICIENT_SIZE with the count, or SUCCESS if there is nothing to list.
    """

    def body(device: Device, count: Any, out: Any) -> None:
        gpu, rows, buffer_size = device.parent, _rows(device, kind), view(ctypes.c_uint, count)
        extra = gpu.grown.get(symbol, 0)
        needed = len(rows) + extra
        if buffer_size.value < needed or (needed and not address(out)):
            buffer_size.value = needed
            _grow(gpu, symbol)
            raise NvmlError(Code.INSUFFICIENT_SIZE)
        gpu.grown.pop(symbol, None)
        buffer_size.value = needed
        if needed:
            stride = gpu.faults.find(FaultKind.PROCESS_STRIDE, gpu.index) if third else None
            length = PROCESS.size if stride is None else stride.entry_bytes
            put_bytes(out, _packed(device, rows, extra, entry_bytes=length))

    return body


for _kind, _list in (("C", "Compute"), ("G", "Graphics"), ("M", "MPSCompute")):
    for _version in (2, 3):
        _symbol = f"nvmlDeviceGet{_list}RunningProcesses_v{_version}"
        ENTRIES[_symbol] = EntrySpec(_process_list(_symbol, _kind, third=_version == 3), takes_device=True, mig=True)


@on_device(ENTRIES, "nvmlDeviceGetRunningProcessDetailList", mig=True)
def running_process_detail_list(device: Device, out: Any) -> None:
    """Answer the list of 24 bytes; drivers with the 32-byte list lack this, for it came with the way back."""
    gpu = device.parent
    if gpu.faults.find(FaultKind.PROCESS_STRIDE, gpu.index) is not None:
        raise NvmlError(Code.FUNCTION_NOT_FOUND)
    details = view(ProcessDetailList, out)
    check_version(details, 1)
    if details.mode > 3:
        raise NvmlError(Code.INVALID_ARGUMENT)
    symbol = "nvmlDeviceGetRunningProcessDetailList"
    rows, extra = _rows(device, ("C", "G", "M", "CGM")[details.mode]), gpu.grown.get(symbol, 0)
    needed = len(rows) + extra
    if details.count < needed or (needed and not details.array):
        details.count = needed
        _grow(gpu, symbol)
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    gpu.grown.pop(symbol, None)
    details.count = needed
    if needed:
        put_bytes(details.array, _packed(device, rows, extra, entry_bytes=PROCESS_DETAIL.size))


# ---- utilization ---------------------------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetProcessUtilization", feature=Feature.PROCESS_UTILIZATION)
def process_utilization(gpu: Gpu, out: Any, count: Any, since: Any) -> None:
    found = samples(gpu, number(since))
    buffer_size = view(ctypes.c_uint, count)
    if not address(out):
        buffer_size.value = max(RING_SIZE, len(found))
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    if buffer_size.value < len(found):
        buffer_size.value = len(found)
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    buffer_size.value = len(found)
    put_bytes(out, b"".join(SAMPLE.pack(s.pid, s.stamp, *s.percent[:4]) for s in found))


@on_device(ENTRIES, "nvmlDeviceGetProcessesUtilizationInfo", feature=Feature.PROCESS_UTILIZATION)
def processes_utilization_info(gpu: Gpu, out: Any) -> None:
    info = view(ProcessesUtilizationInfo, out)
    check_version(info, 1)
    found = samples(gpu, info.lastSeenTimeStamp)
    if not info.array or info.count < len(found):
        info.count = len(found) if info.array else max(RING_SIZE, len(found))
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    info.count = len(found)
    put_bytes(info.array, b"".join(SAMPLE_INFO.pack(s.stamp, s.pid, *s.percent) for s in found))


# ---- accounting ----------------------------------------------------------------------------------

gauges(
    ENTRIES,
    {"nvmlDeviceGetAccountingMode": lambda gpu: gpu.spec.accounting},
    feature=Feature.ACCOUNTING,
)
gauges(ENTRIES, {"nvmlDeviceGetAccountingBufferSize": lambda _: ACCOUNTING_BUFFER})


@on_device(ENTRIES, "nvmlDeviceGetAccountingPids", feature=Feature.ACCOUNTING)
def accounting_pids(gpu: Gpu, count: Any, pids: Any) -> None:
    rows = _accounted(gpu)
    buffer_size = view(ctypes.c_uint, count)
    if buffer_size.value < len(rows) or (rows and not address(pids)):
        buffer_size.value = len(rows)
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    buffer_size.value = len(rows)
    if rows:
        view(ctypes.c_uint * len(rows), pids)[:] = [row.pid for row in rows]


@on_device(ENTRIES, "nvmlDeviceGetAccountingStats", feature=Feature.ACCOUNTING)
def accounting_stats(gpu: Gpu, pid: Any, out: Any) -> None:
    row = next((row for row in _accounted(gpu) if row.pid == number(pid)), None)
    if row is None:
        raise NvmlError(Code.NOT_FOUND)
    stats, age = view(AccountingStats, out), gpu.scenario_clock.now() - row.process.begins
    stats.gpuUtilization, stats.memoryUtilization = row.load.sm, row.load.memory
    stats.maxMemoryUsage = NOT_AVAILABLE if row.used_bytes is None else row.used_bytes
    stats.time = 0  # milliseconds; 0 while it runs (nvml.h)
    stats.startTime = gpu.scenario_clock.wall_microseconds() - int(age * 1e6)
    stats.isRunning = 1


def _accounted(gpu: Gpu) -> tuple[ListedProcess, ...]:
    if not gpu.spec.accounting:
        raise NvmlError(Code.NOT_SUPPORTED)
    return gpu.rows()


# ---- present, but not on these GPUs --------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetConfComputeMemSizeInfo")
def conf_compute_mem_size_info(_: Gpu, __: Any) -> None:
    """Answer for callers who probe for the symbol to tell drivers apart (https://github.com/XuehaiPan/nvitop/pull/79)."""
    raise NvmlError(Code.NOT_SUPPORTED)
