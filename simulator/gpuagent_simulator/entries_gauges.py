"""Entry points: memory, utilisation, temperature, power, clocks, fans and the PCIe link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuagent_simulator.abi import Code, Refusal, number, put_uint, view
from gpuagent_simulator.device import Device, Gpu
from gpuagent_simulator.entry import Body, Entry, EntryTable, gauges, on_device
from gpuagent_simulator.models import Feature
from gpuagent_simulator.structs import MarginTemperature, Memory, Memory_v2, Temperature, Utilization, check_version

ENTRIES: EntryTable = {}

SAMPLING_MICROSECONDS = 167_000
DOMAINS = ("graphics", "sm", "memory", "video")
"""By nvmlClockType_t."""

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


# ---- utilisation ---------------------------------------------------------------------------------


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
    ENTRIES[_symbol] = Entry(_engine(_name), takes_device=True, feature=_feature)


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
        raise Refusal(Code.INVALID_ARGUMENT)


@on_device(ENTRIES, "nvmlDeviceGetTemperatureThreshold")
def temperature_threshold(gpu: Gpu, threshold: Any, out: Any) -> None:
    heat = gpu.spec.temperature
    limits = (heat.shutdown, heat.slowdown, heat.memory_max, heat.gpu_max)
    if number(threshold) >= len(limits):  # acoustic thresholds
        raise Refusal(Code.NOT_SUPPORTED)
    if number(threshold) == 2:
        gpu.need(Feature.MEMORY_TEMPERATURE)
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
        raise Refusal(Code.INVALID_ARGUMENT)
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
        raise Refusal(Code.INVALID_ARGUMENT)
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
