"""Entry points: ECC errors, remapped rows, retired pages, NVLink, and nvmlDeviceGetFieldValues.

The last is one call for many values, most of them of these, that each succeed or fail alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gpuagent_simulator.abi import (
    Code,
    EccSramErrorStatus,
    FieldValue,
    NvmlError,
    RemappedRows_v2,
    RowRemapperHistogram,
    address,
    check_version,
    number,
    put_uint,
    put_ulonglong,
    view,
)
from gpuagent_simulator.curves import Shape
from gpuagent_simulator.device import Device, Gpu
from gpuagent_simulator.session import EntryTable, gauges, on_device
from gpuagent_simulator.spec import C2cSpec, Feature

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
    gpu.require_feature(Feature.ECC)
    ecc = gpu.spec.ecc
    if not ecc.enabled:
        raise NvmlError(Code.NOT_SUPPORTED)
    if kind not in (0, 1) or counter not in (0, 1):
        raise NvmlError(Code.INVALID_ARGUMENT)
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
    buffer_size = view(ctypes.c_uint, count)
    if buffer_size.value < pages:
        buffer_size.value = pages
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    buffer_size.value = pages
    if pages and address(addresses):
        view(ctypes.c_ulonglong * pages, addresses)[:] = [0x1000 * (page + 1) for page in range(pages)]
    if pages and address(times):
        view(ctypes.c_ulonglong * pages, times)[:] = [gpu.scenario_clock.wall_microseconds()] * pages


gauges(
    ENTRIES,
    {"nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu: bool(gpu.now(gpu.spec.ecc.retired_pending))},
    feature=Feature.RETIRED_PAGES,
)


# ---- NVLink --------------------------------------------------------------------------------------


def _link(gpu: Gpu, link: Any) -> int:
    if not gpu.spec.nvlink.links:
        raise NvmlError(Code.NOT_SUPPORTED)
    if not 0 <= number(link) < gpu.spec.nvlink.links:
        raise NvmlError(Code.INVALID_ARGUMENT)
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
    if gpu.spec.nvlink.version >= _NVLINK_5:
        raise NvmlError(Code.NOT_SUPPORTED)
    nvlink = gpu.spec.nvlink
    counters = (
        nvlink.replay_errors,
        nvlink.recovery_errors,
        nvlink.crc_flit_errors,
        nvlink.crc_data_errors,
    )
    if not 0 <= number(counter) < len(counters):
        raise NvmlError(Code.INVALID_ARGUMENT)
    put_ulonglong(out, gpu.since_load(counters[number(counter)]))


ALL_LINKS = 0xFFFFFFFF
"""Scope of the sum over all NVLinks."""
UNSIGNED, UNSIGNED_LONG_LONG, SIGNED = 1, 3, 5  # nvmlValueType_t

_UNION_MEMBERS = {UNSIGNED: "uiVal", UNSIGNED_LONG_LONG: "ullVal", SIGNED: "siVal"}

Getter = Callable[[Gpu, int], float]
"""The value of a field for a GPU and a scope."""

FIELDS: dict[int, tuple[int, Feature | None, Getter]] = {}
"""Type, feature it needs, value; by field id (NVML_FI_DEV_* in nvml.h)."""


@on_device(ENTRIES, "nvmlDeviceGetFieldValues", mig=True)
def field_values(device: Device, count: Any, values: Any) -> None:
    """Answer each field alone: one that there is not gets a code of its own, and the call succeeds."""
    stamp = device.parent.scenario_clock.wall_microseconds()
    for entry in view(FieldValue * number(count), values):
        entry.timestamp, entry.latencyUsec = stamp, 5
        kind, feature, getter = FIELDS.get(entry.fieldId, (UNSIGNED, None, _unknown))
        entry.valueType, entry.nvmlReturn, entry.value.ullVal = kind, Code.SUCCESS, 0
        try:
            if feature is not None:
                device.require_feature(feature)
            value = int(getter(device.parent, entry.scopeId))
        except NvmlError as refusal:
            entry.nvmlReturn = refusal.code
            continue
        setattr(entry.value, _UNION_MEMBERS[kind], value)


def _unknown(_: Gpu, __: int) -> float:
    raise NvmlError(Code.NOT_SUPPORTED)


# ---- NVLink, by link -----------------------------------------------------------------------------


def _over_links(gpu: Gpu, scope: int, amount: int) -> int:
    """Return the amount of one link, or of all that are up. All links are alike."""
    nvlink = gpu.spec.nvlink
    if not nvlink.links:
        raise NvmlError(Code.NOT_SUPPORTED)
    if scope == ALL_LINKS:
        return amount * sum(link not in nvlink.inactive for link in range(nvlink.links))
    if scope >= nvlink.links:
        raise NvmlError(Code.INVALID_ARGUMENT)
    return 0 if scope in nvlink.inactive else amount


def _link_counter(name: str, unit: int = 1, overhead: float = 1.0) -> Getter:
    def value(gpu: Gpu, scope: int) -> float:
        counted = gpu.since_load(getattr(gpu.spec.nvlink, name))
        return _over_links(gpu, scope, int(counted * overhead) // unit)

    return value


def _link_total(name: str) -> Getter:
    counter = _link_counter(name)
    return lambda gpu, _: counter(gpu, ALL_LINKS)


_NVLINK_5 = 5


def _link_4_counter(name: str) -> Getter:
    """Answer a counter of NVLink 4 alone: before it there is a call for each, after it there are other kinds."""
    return _of_generation(name, lambda version: version == _NVLINK_5 - 1)


def _link_5_counter(name: str) -> Getter:
    """Answer a counter that came with NVLink 5; Hopper and earlier have bytes in KiB, and other kinds of errors."""
    return _of_generation(name, lambda version: version >= _NVLINK_5)


def _of_generation(name: str, there: Callable[[int], bool]) -> Getter:
    counter = _link_counter(name)

    def value(gpu: Gpu, scope: int) -> float:
        if not there(gpu.spec.nvlink.version):
            raise NvmlError(Code.NOT_SUPPORTED)
        return counter(gpu, scope)

    return value


def _c2c(of: Callable[[C2cSpec, int], float]) -> Getter:
    """Answer for one link between GPU and CPU; all are alike but for those that are down."""

    def value(gpu: Gpu, scope: int) -> float:
        c2c = gpu.spec.c2c
        if not c2c.links:
            raise NvmlError(Code.NOT_SUPPORTED)
        if scope >= c2c.links:
            raise NvmlError(Code.INVALID_ARGUMENT)
        return of(c2c, scope)

    return value


# ---- the rest ------------------------------------------------------------------------------------


def _ecc(kind: int, counter: int) -> Getter:
    return lambda gpu, _: ecc_errors(gpu, kind, counter)


def _ecc_gauge(name: str) -> Getter:
    return lambda gpu, _: gpu.now(getattr(gpu.spec.ecc, name))


def _throttled(name: str) -> Getter:
    """Return nanoseconds."""

    def value(gpu: Gpu, _: int) -> float:
        seconds: Shape = getattr(gpu.spec.clocks.throttled, name)
        return gpu.now(seconds) * 1e9

    return value


def _milliwatts(name: str) -> Getter:
    return lambda gpu, _: getattr(gpu.spec.power, name) * 1000


def _margin(name: str) -> Getter:
    """Return a threshold as a distance from the slowdown temperature."""
    return lambda gpu, _: gpu.spec.temperature.slowdown - getattr(gpu.spec.temperature, name)


def _add(kind: int, feature: Feature | None, getters: dict[int, Getter]) -> None:
    FIELDS.update({field: (kind, feature, getter) for field, getter in getters.items()})


_add(UNSIGNED, Feature.ECC, {field: lambda gpu, _: gpu.spec.ecc.enabled for field in (1, 2)})
_add(UNSIGNED_LONG_LONG, Feature.ECC, {3: _ecc(0, 0), 4: _ecc(1, 0), 5: _ecc(0, 1), 6: _ecc(1, 1)})
_add(
    UNSIGNED,
    Feature.RETIRED_PAGES,
    {
        29: _ecc_gauge("retired_single_bit"),
        30: _ecc_gauge("retired_double_bit"),
        31: _ecc_gauge("retired_pending"),
    },
)
_add(
    UNSIGNED_LONG_LONG,
    Feature.NVLINK,
    {
        38: _link_total("crc_flit_errors"),
        45: _link_total("crc_data_errors"),
        52: _link_total("replay_errors"),
        59: _link_total("recovery_errors"),
        138: _link_counter("transmit", unit=1024),
        139: _link_counter("receive", unit=1024),
        140: _link_counter("transmit", unit=1024, overhead=1.1),
        141: _link_counter("receive", unit=1024, overhead=1.1),
        161: _link_4_counter("replay_errors"),
        162: _link_4_counter("recovery_errors"),
        163: _link_4_counter("crc_data_errors"),
        202: _link_5_counter("transmit"),
        204: _link_5_counter("receive"),
        208: _link_5_counter("crc_data_errors"),
        211: _link_5_counter("replay_errors"),
        215: _link_5_counter("recovery_errors"),
    },
)
_add(
    UNSIGNED,
    Feature.NVLINK,
    {
        91: lambda gpu, _: gpu.spec.nvlink.links,
        164: lambda gpu, scope: _over_links(gpu, scope, gpu.spec.nvlink.megabytes_per_second),
        165: lambda gpu, scope: _over_links(gpu, scope, 1),
        166: lambda gpu, _: gpu.spec.nvlink.version,
    },
)
_add(
    UNSIGNED,
    None,
    {
        170: lambda gpu, _: gpu.spec.c2c.links,
        171: _c2c(lambda c2c, link: link not in c2c.inactive),
        172: _c2c(lambda c2c, _: c2c.megabytes_per_second),
        231: _c2c(lambda c2c, _: c2c.interrupt_errors),
        232: _c2c(lambda c2c, _: c2c.replay_errors),
        233: _c2c(lambda _, __: 0),
    },
)
_add(
    UNSIGNED_LONG_LONG,
    Feature.CLOCK_REASONS,
    {
        74: _throttled("power_cap"),
        76: _throttled("sync_boost"),
        269: _throttled("sw_thermal"),
        270: _throttled("hw_thermal"),
        271: _throttled("hw_power_brake"),
    },
)
_add(UNSIGNED, Feature.MEMORY_TEMPERATURE, {82: lambda gpu, _: gpu.engines.memory_celsius()})
_add(
    UNSIGNED_LONG_LONG,
    Feature.ENERGY,
    {field: lambda gpu, _: gpu.engines.energy_millijoules() for field in (83, 191)},
)
_add(UNSIGNED, Feature.PCIE, {94: lambda gpu, _: gpu.since_load(gpu.spec.pcie.replays)})
_add(UNSIGNED, Feature.PCIE, {95: lambda *_: 0, **dict.fromkeys(range(173, 184), lambda *_: 0)})
_add(
    UNSIGNED_LONG_LONG,
    Feature.PCIE,
    {
        197: lambda gpu, _: gpu.since_load(gpu.spec.pcie.transmit),
        198: lambda gpu, _: gpu.since_load(gpu.spec.pcie.receive),
    },
)
_add(
    UNSIGNED,
    Feature.REMAPPED_ROWS,
    {
        142: _ecc_gauge("remapped_corrected"),
        143: _ecc_gauge("remapped_uncorrected"),
        144: _ecc_gauge("remap_pending"),
        145: _ecc_gauge("remap_failed"),
        301: lambda *_: 0,
        302: lambda *_: 0,
    },
)
_add(UNSIGNED, Feature.POWER_AVERAGE, {185: lambda gpu, _: gpu.engines.watts() * 1000})
_add(UNSIGNED, None, {186: lambda gpu, _: gpu.engines.watts() * 1000})
_add(
    UNSIGNED,
    Feature.POWER_LIMITS,
    {
        187: _milliwatts("min_limit"),
        188: _milliwatts("max_limit"),
        189: _milliwatts("limit"),
        190: _milliwatts("limit"),
        192: _milliwatts("limit"),
    },
)
_add(
    SIGNED,
    Feature.MARGIN,
    {
        193: _margin("shutdown"),
        194: _margin("slowdown"),
        195: _margin("memory_max"),
        196: _margin("gpu_max"),
    },
)
_add(UNSIGNED, Feature.RECOVERY_ACTION, {230: _ecc_gauge("recovery_action")})
