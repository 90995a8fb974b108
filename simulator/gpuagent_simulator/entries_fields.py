"""Entry point: nvmlDeviceGetFieldValues, one call for many values that each succeed or fail alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuagent_simulator.abi import Code, Refusal, number, view
from gpuagent_simulator.device import Device, Gpu
from gpuagent_simulator.entries_health import ecc_errors
from gpuagent_simulator.entry import EntryTable, on_device
from gpuagent_simulator.functions import Shape
from gpuagent_simulator.models import Feature
from gpuagent_simulator.structs import FieldValue

ENTRIES: EntryTable = {}

ALL_LINKS = 0xFFFFFFFF
"""As a scope: the sum over all NVLinks."""
UNSIGNED, UNSIGNED_LONG_LONG, SIGNED = 1, 3, 5  # nvmlValueType_t

_UNION_MEMBERS = {UNSIGNED: "uiVal", UNSIGNED_LONG_LONG: "ullVal", SIGNED: "siVal"}

Getter = Callable[[Gpu, int], float]
"""The value of a field for a GPU and a scope."""

FIELDS: dict[int, tuple[int, Feature | None, Getter]] = {}
"""Type, feature it needs, value; by field id (NVML_FI_DEV_* in nvml.h)."""


@on_device(ENTRIES, "nvmlDeviceGetFieldValues", mig=True)
def field_values(device: Device, count: Any, values: Any) -> None:
    """Answer each field alone: one that there is not gets a code of its own, and the call succeeds."""
    stamp = device.parent.story.wall_microseconds()
    for entry in view(FieldValue * number(count), values):
        entry.timestamp, entry.latencyUsec = stamp, 5
        kind, feature, getter = FIELDS.get(entry.fieldId, (UNSIGNED, None, _unknown))
        entry.valueType, entry.nvmlReturn, entry.value.ullVal = kind, Code.SUCCESS, 0
        try:
            if feature is not None:
                device.need(feature)
            value = int(getter(device.parent, entry.scopeId))
        except Refusal as refusal:
            entry.nvmlReturn = refusal.code
            continue
        setattr(entry.value, _UNION_MEMBERS[kind], value)


def _unknown(_: Gpu, __: int) -> float:
    raise Refusal(Code.NOT_SUPPORTED)


# ---- NVLink, by link -----------------------------------------------------------------------------


def _over_links(gpu: Gpu, scope: int, amount: int) -> int:
    """Return the amount of one link, or of all that are up. All links are alike."""
    nvlink = gpu.spec.nvlink
    if not nvlink.links:
        raise Refusal(Code.NOT_SUPPORTED)
    if scope == ALL_LINKS:
        return amount * sum(link not in nvlink.inactive for link in range(nvlink.links))
    if scope >= nvlink.links:
        raise Refusal(Code.INVALID_ARGUMENT)
    return 0 if scope in nvlink.inactive else amount


def _link_counter(name: str, unit: int = 1, overhead: float = 1.0) -> Getter:
    def value(gpu: Gpu, scope: int) -> float:
        counted = gpu.since_load(getattr(gpu.spec.nvlink, name))
        return _over_links(gpu, scope, int(counted * overhead) // unit)

    return value


def _link_total(name: str) -> Getter:
    counter = _link_counter(name)
    return lambda gpu, _: counter(gpu, ALL_LINKS)


def _link_5_counter(name: str) -> Getter:
    """Answer a counter that came with NVLink 5; Hopper and earlier have the fields in KiB."""
    counter = _link_counter(name)

    def value(gpu: Gpu, scope: int) -> float:
        if gpu.spec.nvlink.version < 5:
            raise Refusal(Code.NOT_SUPPORTED)
        return counter(gpu, scope)

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
        202: _link_5_counter("transmit"),
        204: _link_5_counter("receive"),
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
