"""Entry points: ECC errors, remapped rows, retired pages, NVLink."""

from __future__ import annotations

import ctypes
from typing import Any

from gpuagent_simulator.abi import Code, Refusal, address, number, put_uint, put_ulonglong, view
from gpuagent_simulator.device import Device, Gpu
from gpuagent_simulator.entry import EntryTable, gauges, on_device
from gpuagent_simulator.models import Feature
from gpuagent_simulator.structs import EccSramErrorStatus, RemappedRows_v2, RowRemapperHistogram, check_version

ENTRIES: EntryTable = {}

SPARE_ROW_BANKS = 640
_DEVICE_MEMORY = 2  # NVML_MEMORY_LOCATION_DEVICE_MEMORY

# ---- ECC -----------------------------------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetEccMode", feature=Feature.ECC, mig=True)
def ecc_mode(device: Device, current: Any, pending: Any) -> None:
    put_uint(current, device.parent.spec.ecc.enabled)
    put_uint(pending, device.parent.spec.ecc.enabled)


def ecc_errors(gpu: Gpu, kind: int, counter: int) -> int:
    """Return the errors by nvmlMemoryErrorType_t and nvmlEccCounterType_t.

    `kind`: 0 corrected, 1 uncorrected. `counter`: 0 volatile, 1 aggregate.

    Raises:
        Refusal: no ECC, or none of these.
    """
    gpu.need(Feature.ECC)
    ecc = gpu.spec.ecc
    if not ecc.enabled:
        raise Refusal(Code.NOT_SUPPORTED)
    if kind not in (0, 1) or counter not in (0, 1):
        raise Refusal(Code.INVALID_ARGUMENT)
    if counter == 0:
        return gpu.since_load(ecc.volatile_uncorrected if kind else ecc.volatile_corrected)
    return int(gpu.now(ecc.aggregate_uncorrected if kind else ecc.aggregate_corrected))


@on_device(ENTRIES, "nvmlDeviceGetTotalEccErrors")
def total_ecc_errors(gpu: Gpu, kind: Any, counter: Any, out: Any) -> None:
    put_ulonglong(out, ecc_errors(gpu, number(kind), number(counter)))


@on_device(ENTRIES, "nvmlDeviceGetMemoryErrorCounter")
def memory_error_counter(gpu: Gpu, kind: Any, counter: Any, location: Any, out: Any) -> None:
    """Answer for one kind of memory: all errors of the scenario are in device memory."""
    errors = ecc_errors(gpu, number(kind), number(counter))
    put_ulonglong(out, errors if number(location) == _DEVICE_MEMORY else 0)


@on_device(ENTRIES, "nvmlDeviceGetSramEccErrorStatus", feature=Feature.ECC)
def sram_ecc_error_status(gpu: Gpu, out: Any) -> None:
    status = view(EccSramErrorStatus, out)
    check_version(status, 1)
    version = status.version
    ctypes.memset(ctypes.addressof(status), 0, ctypes.sizeof(status))
    status.version = version
    status.bThresholdExceeded = bool(gpu.now(gpu.spec.ecc.sram_threshold_exceeded))


# ---- rows and pages ------------------------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetRemappedRows", feature=Feature.REMAPPED_ROWS)
def remapped_rows(gpu: Gpu, corrected: Any, uncorrected: Any, pending: Any, failed: Any) -> None:
    ecc = gpu.spec.ecc
    put_uint(corrected, gpu.now(ecc.remapped_corrected))
    put_uint(uncorrected, gpu.now(ecc.remapped_uncorrected))
    put_uint(pending, bool(gpu.now(ecc.remap_pending)))
    put_uint(failed, bool(gpu.now(ecc.remap_failed)))


@on_device(ENTRIES, "nvmlDeviceGetRemappedRows_v2", feature=Feature.REMAPPED_ROWS)
def remapped_rows_v2(gpu: Gpu, out: Any) -> None:
    rows, ecc = view(RemappedRows_v2, out), gpu.spec.ecc
    rows.corrActiveRemaps = int(gpu.now(ecc.remapped_corrected))
    rows.uncActiveRemaps = int(gpu.now(ecc.remapped_uncorrected))
    rows.corrInactiveRemaps = rows.uncInactiveRemaps = 0
    rows.bPending = bool(gpu.now(ecc.remap_pending))
    rows.bfailureOccurred = bool(gpu.now(ecc.remap_failed))


@on_device(ENTRIES, "nvmlDeviceGetRowRemapperHistogram", feature=Feature.REMAPPED_ROWS)
def row_remapper_histogram(gpu: Gpu, out: Any) -> None:
    banks, ecc = view(RowRemapperHistogram, out), gpu.spec.ecc
    used = int(gpu.now(ecc.remapped_corrected) + gpu.now(ecc.remapped_uncorrected))
    banks.max, banks.high = max(0, SPARE_ROW_BANKS - used), min(used, SPARE_ROW_BANKS)
    banks.partial = banks.low = banks.none = 0


@on_device(ENTRIES, "nvmlDeviceGetRetiredPages", feature=Feature.RETIRED_PAGES)
def retired_pages(gpu: Gpu, cause: Any, count: Any, addresses: Any) -> None:
    _pages(gpu, cause, count, addresses, None)


@on_device(ENTRIES, "nvmlDeviceGetRetiredPages_v2", feature=Feature.RETIRED_PAGES)
def retired_pages_v2(gpu: Gpu, cause: Any, count: Any, addresses: Any, times: Any = None) -> None:
    """Answer version 2; `times` is missing in pynvml's first call, which only asks for the size."""
    _pages(gpu, cause, count, addresses, times)


def _pages(gpu: Gpu, cause: Any, count: Any, addresses: Any, times: Any) -> None:
    ecc = gpu.spec.ecc
    pages = int(gpu.now(ecc.retired_double_bit if number(cause) else ecc.retired_single_bit))
    room = view(ctypes.c_uint, count)
    if room.value < pages:
        room.value = pages
        raise Refusal(Code.INSUFFICIENT_SIZE)
    room.value = pages
    if pages and address(addresses):
        view(ctypes.c_ulonglong * pages, addresses)[:] = [0x1000 * (page + 1) for page in range(pages)]
    if pages and address(times):
        view(ctypes.c_ulonglong * pages, times)[:] = [gpu.story.wall_microseconds()] * pages


gauges(
    ENTRIES,
    {"nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu: bool(gpu.now(gpu.spec.ecc.retired_pending))},
    feature=Feature.RETIRED_PAGES,
)


# ---- NVLink --------------------------------------------------------------------------------------


def _link(gpu: Gpu, link: Any) -> int:
    if not gpu.spec.nvlink.links:
        raise Refusal(Code.NOT_SUPPORTED)
    if not 0 <= number(link) < gpu.spec.nvlink.links:
        raise Refusal(Code.INVALID_ARGUMENT)
    return number(link)


@on_device(ENTRIES, "nvmlDeviceGetNvLinkState", feature=Feature.NVLINK)
def nvlink_state(gpu: Gpu, link: Any, out: Any) -> None:
    put_uint(out, _link(gpu, link) not in gpu.spec.nvlink.inactive)


@on_device(ENTRIES, "nvmlDeviceGetNvLinkVersion", feature=Feature.NVLINK)
def nvlink_version(gpu: Gpu, link: Any, out: Any) -> None:
    _link(gpu, link)
    put_uint(out, gpu.spec.nvlink.version)


@on_device(ENTRIES, "nvmlDeviceGetNvLinkErrorCounter", feature=Feature.NVLINK)
def nvlink_error_counter(gpu: Gpu, link: Any, counter: Any, out: Any) -> None:
    _link(gpu, link)
    nvlink = gpu.spec.nvlink
    counters = (
        nvlink.replay_errors,
        nvlink.recovery_errors,
        nvlink.crc_flit_errors,
        nvlink.crc_data_errors,
    )
    if not 0 <= number(counter) < len(counters):
        raise Refusal(Code.INVALID_ARGUMENT)
    put_ulonglong(out, gpu.since_load(counters[number(counter)]))
