"""Entry points: memory, utilization, temperature, power, clocks, fans, the PCIe link, and GPM.

GPM, the profiling metrics of Hopper and later, answers the difference of two samples.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuagent_simulator.abi import (
    Code,
    GetMemoryLimits,
    GpmMetric,
    GpmMetricsGet,
    GpmSupport,
    MarginTemperature,
    Memory,
    Memory_v2,
    NvmlError,
    SetMemoryLimits,
    Temperature,
    Utilization,
    address,
    check_version,
    number,
    put_pointer,
    put_uint,
    view,
)
from gpuagent_simulator.device import Device, Gpu
from gpuagent_simulator.faults import FaultKind
from gpuagent_simulator.memory_limits import CgroupLimit
from gpuagent_simulator.session import Body, EntrySpec, EntryTable, SimulatedSession, gauges, on_device, on_session
from gpuagent_simulator.spec import Feature

ENTRIES: EntryTable = {}

SAMPLING_MICROSECONDS = 167_000
DOMAINS = ("graphics", "sm", "memory", "video")
"""Clock domains by nvmlClockType_t."""

# ---- memory --------------------------------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetMemoryInfo", feature=Feature.MEMORY, mig=True)
def memory_info(device: Device, out: Any) -> None:
    """Answer version 1, which counts reserved memory as used (https://github.com/rust-nvml/nvml-wrapper/issues/57)."""
    total, reserved, used = device.memory()
    info = view(Memory, out)
    info.total, info.used, info.free = total, used + reserved, total - used - reserved


@on_device(ENTRIES, "nvmlDeviceGetMemoryInfo_v2", feature=Feature.MEMORY, mig=True)
def memory_info_v2(device: Device, out: Any) -> None:
    info = view(Memory_v2, out)
    check_version(info, 2)
    total, reserved, used = device.memory()
    info.total, info.reserved, info.used, info.free = total, reserved, used, total - used - reserved


@on_device(ENTRIES, "nvmlDeviceGetBAR1MemoryInfo", feature=Feature.BAR1, mig=True)
def bar1_memory_info(device: Device, out: Any) -> None:
    bar1 = device.parent.spec.bar1
    used = min(bar1.total, max(0, int(device.parent.now(bar1.used))))
    info = view(Memory, out)  # the same layout, with free before used
    info.total, info.used, info.free = bar1.total, used, bar1.total - used


_FIRST_WITH_LIMITS = 615
"""Driver whose library has the calls for memory limits (NVML's list of changes, v610 to v615)."""


@on_device(ENTRIES, "nvmlDeviceSetMemoryLimits_v1", feature=Feature.MEMORY, with_session=True)
def set_memory_limits(session: SimulatedSession, device: Device, argument: Any) -> None:
    """Keep the limits of a cgroup; no soft limit and the highest hard limit take them off."""
    _with_limits(session)
    given = view(SetMemoryLimits, argument)
    if not given.nameSpace or given.softLimit > given.hardLimit:
        raise NvmlError(Code.INVALID_ARGUMENT)
    gpu = device.parent
    gpu.memory_limits.set(os.fsdecode(given.nameSpace), CgroupLimit(given.softLimit, given.hardLimit), gpu.held())


@on_device(ENTRIES, "nvmlDeviceGetMemoryLimits_v1", feature=Feature.MEMORY, with_session=True)
def memory_limits(session: SimulatedSession, device: Device, argument: Any) -> None:
    """Answer the limits of a cgroup, or of the nearest one above it."""
    _with_limits(session)
    asked = view(GetMemoryLimits, argument)
    folder, limits = os.fsdecode(asked.nameSpace or b""), device.parent.memory_limits
    found = limits.nearest(folder)
    if found is None:
        raise NvmlError(Code.NOT_FOUND)
    asked.softLimit, asked.hardLimit = found[1]
    asked.currentUsed = limits.used_bytes(folder, device.parent.held())


def _with_limits(session: SimulatedSession) -> None:
    if int(session.driver_version().partition(".")[0]) < _FIRST_WITH_LIMITS:
        raise NvmlError(Code.FUNCTION_NOT_FOUND)


# ---- utilization ---------------------------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetUtilizationRates", feature=Feature.UTILIZATION)
def utilization_rates(gpu: Gpu, out: Any) -> None:
    rates = view(Utilization, out)
    rates.gpu, rates.memory = gpu.engines.percent("gpu"), gpu.engines.percent("memory")


def _engine(name: str) -> Body:
    def body(gpu: Gpu, percent: Any, period: Any) -> None:
        put_uint(percent, gpu.engines.percent(name))
        put_uint(period, SAMPLING_MICROSECONDS)

    return body


for _symbol, _name, _feature in (
    ("nvmlDeviceGetEncoderUtilization", "encoder", Feature.UTILIZATION),
    ("nvmlDeviceGetDecoderUtilization", "decoder", Feature.UTILIZATION),
    ("nvmlDeviceGetJpgUtilization", "jpeg", Feature.JPEG_OFA),
    ("nvmlDeviceGetOfaUtilization", "ofa", Feature.JPEG_OFA),
):
    ENTRIES[_symbol] = EntrySpec(_engine(_name), takes_device=True, feature=_feature)


# ---- temperature ---------------------------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetTemperature", mig=True)
def temperature(device: Device, sensor: Any, out: Any) -> None:
    _only_the_gpu_sensor(number(sensor))
    put_uint(out, device.parent.engines.gpu_celsius())


@on_device(ENTRIES, "nvmlDeviceGetTemperatureV", mig=True)
def temperature_v(device: Device, out: Any) -> None:
    reading = view(Temperature, out)
    check_version(reading, 1)
    _only_the_gpu_sensor(reading.sensorType)
    reading.temperature = device.parent.engines.gpu_celsius()


def _only_the_gpu_sensor(sensor: int) -> None:
    if sensor != 0:
        raise NvmlError(Code.INVALID_ARGUMENT)


@on_device(ENTRIES, "nvmlDeviceGetTemperatureThreshold")
def temperature_threshold(gpu: Gpu, threshold: Any, out: Any) -> None:
    heat = gpu.spec.temperature
    limits = (heat.shutdown, heat.slowdown, heat.memory_max, heat.gpu_max)
    if number(threshold) >= len(limits):  # acoustic thresholds
        raise NvmlError(Code.NOT_SUPPORTED)
    if number(threshold) == 2:
        gpu.require_feature(Feature.MEMORY_TEMPERATURE)
    put_uint(out, limits[number(threshold)])


@on_device(ENTRIES, "nvmlDeviceGetMarginTemperature", feature=Feature.MARGIN)
def margin_temperature(gpu: Gpu, out: Any) -> None:
    margin = view(MarginTemperature, out)
    check_version(margin, 1)
    margin.marginTemperature = gpu.engines.margin_celsius()


# ---- power ---------------------------------------------------------------------------------------


def _milliwatts(limit: str) -> Callable[[Gpu], float]:
    return lambda gpu: getattr(gpu.spec.power, limit) * 1000


gauges(
    ENTRIES,
    {
        "nvmlDeviceGetPowerUsage": lambda gpu: gpu.engines.watts() * 1000,
        "nvmlDeviceGetPerformanceState": lambda gpu: gpu.engines.performance_state(),
    },
)
gauges(
    ENTRIES,
    {
        "nvmlDeviceGetPowerManagementLimit": _milliwatts("limit"),
        "nvmlDeviceGetEnforcedPowerLimit": _milliwatts("limit"),
        "nvmlDeviceGetPowerManagementDefaultLimit": _milliwatts("limit"),
    },
    feature=Feature.POWER_LIMITS,
)
gauges(
    ENTRIES,
    {"nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.engines.energy_millijoules()},
    feature=Feature.ENERGY,
    wide=True,
)


@on_device(ENTRIES, "nvmlDeviceGetPowerManagementLimitConstraints", feature=Feature.POWER_LIMITS)
def power_limit_constraints(gpu: Gpu, least: Any, most: Any) -> None:
    put_uint(least, gpu.spec.power.min_limit * 1000)
    put_uint(most, gpu.spec.power.max_limit * 1000)


# ---- clocks and fans -----------------------------------------------------------------------------


@on_device(ENTRIES, "nvmlDeviceGetClockInfo")
def clock_info(gpu: Gpu, domain: Any, out: Any) -> None:
    put_uint(out, gpu.engines.megahertz(_domain(domain)))


@on_device(ENTRIES, "nvmlDeviceGetMaxClockInfo", mig=True)
def max_clock_info(device: Device, domain: Any, out: Any) -> None:
    put_uint(out, getattr(device.parent.spec.clocks.max, _domain(domain)))


def _domain(domain: Any) -> str:
    if not 0 <= number(domain) < len(DOMAINS):
        raise NvmlError(Code.INVALID_ARGUMENT)
    return DOMAINS[number(domain)]


gauges(
    ENTRIES,
    {
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.engines.event_reasons(),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.engines.event_reasons(),
    },
    feature=Feature.CLOCK_REASONS,
    wide=True,
)
gauges(ENTRIES, {"nvmlDeviceGetNumFans": lambda gpu: gpu.spec.fans.count})
gauges(
    ENTRIES,
    {"nvmlDeviceGetFanSpeed": lambda gpu: gpu.engines.fan_percent()},
    feature=Feature.FAN,
)


@on_device(ENTRIES, "nvmlDeviceGetFanSpeed_v2", feature=Feature.FAN)
def fan_speed_v2(gpu: Gpu, fan: Any, out: Any) -> None:
    if not 0 <= number(fan) < gpu.spec.fans.count:
        raise NvmlError(Code.INVALID_ARGUMENT)
    put_uint(out, gpu.engines.fan_percent())


# ---- PCI Express ---------------------------------------------------------------------------------

gauges(
    ENTRIES,
    {
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: gpu.spec.pcie.generation,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu.spec.pcie.max_generation,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.spec.pcie.width,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu.spec.pcie.max_width,
        "nvmlDeviceGetPcieReplayCounter": lambda gpu: gpu.since_load(gpu.spec.pcie.replays),
    },
    feature=Feature.PCIE,
)


MAX_METRICS = 477
_MIB = 1024**2

METRIC_NAMES = {
    1: "graphics",
    2: "sm",
    3: "sm_occupancy",
    4: "integer",
    5: "tensor",
    7: "tensor_half",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
"""Percentages by NVML_GPM_METRIC_*: the keys of a scenario's `gpm`."""

_SHARE_OF_LOAD = {
    "graphics": 1.0,
    "sm": 0.92,
    "sm_occupancy": 0.46,
    "integer": 0.2,
    "tensor": 0.38,
    "tensor_half": 0.36,
    "dram": 0.55,
    "fp64": 0.0,
    "fp32": 0.17,
    "fp16": 0.09,
}
"""Ratio of a metric to the GPU's utilization where the scenario does not give it: a training job's
rough shape."""


class GpmReading(NamedTuple):
    """What a sample holds: percentages, and counters in bytes."""

    seconds: float
    percent: dict[int, float]
    counters: dict[int, float]


class GpmSample:
    """A sample that a caller has allocated; empty until the first reading."""

    def __init__(self) -> None:
        self.reading: GpmReading | None = None


_COUNTERS: dict[int, Callable[[Gpu], float]] = {
    20: lambda gpu: gpu.since_load(gpu.spec.pcie.transmit),
    21: lambda gpu: gpu.since_load(gpu.spec.pcie.receive),
    60: lambda gpu: _nvlink(gpu, gpu.since_load(gpu.spec.nvlink.receive)),
    61: lambda gpu: _nvlink(gpu, gpu.since_load(gpu.spec.nvlink.transmit)),
}


def _nvlink(gpu: Gpu, per_link: float) -> float:
    return per_link * (gpu.spec.nvlink.links - len(gpu.spec.nvlink.inactive))


@on_device(ENTRIES, "nvmlGpmQueryDeviceSupport", mig=True)
def query_device_support(device: Gpu, out: Any) -> None:
    support = view(GpmSupport, out)
    support.isSupportedDevice = Feature.GPM not in device.parent.lacks


@on_session(ENTRIES, "nvmlGpmSampleAlloc")
def sample_alloc(session: SimulatedSession, out: Any) -> None:
    put_pointer(out, session.pointers.issue(GpmSample()))


@on_session(ENTRIES, "nvmlGpmSampleFree")
def sample_free(session: SimulatedSession, sample: Any) -> None:
    session.pointers.withdraw(sample)


@on_device(ENTRIES, "nvmlGpmSampleGet", feature=Feature.GPM, with_session=True)
def sample_get(session: SimulatedSession, gpu: Gpu, sample: Any) -> None:
    session.pointers.resolve(GpmSample, sample).reading = _read(gpu, gpu.engines.percent("gpu"))


@on_device(ENTRIES, "nvmlGpmMigSampleGet", feature=Feature.GPM, with_session=True)
def mig_sample_get(session: SimulatedSession, gpu: Gpu, gpu_instance: Any, sample: Any) -> None:
    wanted = number(gpu_instance)
    if not any(instance.spec.gpu_instance == wanted for instance in gpu.live_instances()):
        raise NvmlError(Code.INVALID_ARGUMENT)
    busy = sum(row.load.sm for row in gpu.rows() if row.process.gpu_instance == wanted)
    session.pointers.resolve(GpmSample, sample).reading = _read(gpu, min(100, busy))


def _read(gpu: Gpu, load_percent: float) -> GpmReading:
    percent = {}
    for metric, name in METRIC_NAMES.items():
        given = (gpu.spec.gpm or {}).get(name)
        value = load_percent * _SHARE_OF_LOAD[name] if given is None else gpu.now(given)
        percent[metric] = min(100.0, max(0.0, value))
    counters = {metric: counter(gpu) for metric, counter in _COUNTERS.items()}
    if gpu.faults.find(FaultKind.GARBAGE_VALUES, gpu.index) is not None:
        percent = dict.fromkeys(percent, math.nan)
    return GpmReading(gpu.scenario_clock.now(), percent, counters)


@on_session(ENTRIES, "nvmlGpmMetricsGet")
def metrics_get(session: SimulatedSession, request: Any) -> None:
    """Answer each metric alone: one may fail and another succeed."""
    header = view(GpmMetricsGet, request)
    if header.version != 1:
        raise NvmlError(Code.ARGUMENT_VERSION_MISMATCH)
    first = session.pointers.resolve(GpmSample, header.sample1).reading
    second = session.pointers.resolve(GpmSample, header.sample2).reading
    if first is None or second is None or header.numMetrics > MAX_METRICS:
        raise NvmlError(Code.INVALID_ARGUMENT)
    where = address(request) + ctypes.sizeof(GpmMetricsGet)
    for metric in (GpmMetric * header.numMetrics).from_address(where):
        value = _between(metric.metricId, first, second)
        metric.nvmlReturn = Code.NOT_SUPPORTED if value is None else Code.SUCCESS
        metric.value = value or 0.0


def _between(metric: int, first: GpmReading, second: GpmReading) -> float | None:
    if metric in second.percent:
        return (first.percent[metric] + second.percent[metric]) / 2
    if metric in second.counters:
        elapsed = second.seconds - first.seconds
        gained = second.counters[metric] - first.counters[metric]
        return max(0.0, gained) / elapsed / _MIB if elapsed > 0 else 0.0
    return None
