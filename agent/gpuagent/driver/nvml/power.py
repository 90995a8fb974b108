"""Read clocks, temperatures and power: frequencies and what holds them down, limits, fans and energy."""

from __future__ import annotations

from gpuagent.core.hardware import Clocks, Power, Thermal
from gpuagent.driver.nvml.device import NvmlDevice, celsius, count, ratio, watts

_DOMAINS = (("graphics", 0), ("sm", 1), ("memory", 2), ("video", 3))

EVENT_REASONS = (
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clock_setting", 0x100),
)
"""Bits of nvmlClocksEventReasons (nvml.h)."""

_THROTTLED_FIELDS = (
    ("sw_power_cap", 74),
    ("sync_boost", 76),
    ("sw_thermal_slowdown", 269),
    ("hw_thermal_slowdown", 270),
    ("hw_power_brake_slowdown", 271),
)


def collect_clocks(device: NvmlDevice) -> Clocks:
    """Read clocks in hertz, event reasons one by one, and the time spent throttled by each."""
    reasons = device.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # the name before driver 535
        reasons = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    throttled = device.fields(*(field for _, field in _THROTTLED_FIELDS))
    return Clocks(
        hertz=_hertz(device, "nvmlDeviceGetClockInfo"),
        max_hertz=_hertz(device, "nvmlDeviceGetMaxClockInfo"),
        event_reasons=() if reasons is None else tuple((name, bool(int(reasons) & bit)) for name, bit in EVENT_REASONS),
        throttled_seconds=tuple(
            (name, throttled[field] / 1e9) for name, field in _THROTTLED_FIELDS if field in throttled
        ),
    )


def _hertz(device: NvmlDevice, function: str) -> tuple[tuple[str, float], ...]:
    megahertz = ((name, device.ask(function, number)) for name, number in _DOMAINS)
    return tuple((name, value * 1e6) for name, value in megahertz if value is not None and value < 100_000)


_SENSOR_GPU = 0
_THRESHOLD_SHUTDOWN, _THRESHOLD_SLOWDOWN, _THRESHOLD_MEMORY_MAX, _THRESHOLD_GPU_MAX = range(4)
_FIELD_MEMORY_TEMPERATURE = 82


def collect_thermal(device: NvmlDevice) -> Thermal:
    """Read everything thermal. CUDA 14 drops nvmlDeviceGetTemperature, and its successor is newer than many drivers."""
    temperature = device.ask("nvmlDeviceGetTemperatureV", _SENSOR_GPU)
    if temperature is None:
        temperature = device.ask("nvmlDeviceGetTemperature", _SENSOR_GPU)
    memory = device.fields(_FIELD_MEMORY_TEMPERATURE).get(_FIELD_MEMORY_TEMPERATURE)
    return Thermal(
        gpu_celsius=celsius(temperature),
        memory_celsius=celsius(memory) if memory else None,  # 0 is what GPUs without the sensor answer
        margin_celsius=celsius(device.ask("nvmlDeviceGetMarginTemperature")),
        slowdown_celsius=_threshold(device, _THRESHOLD_SLOWDOWN),
        shutdown_celsius=_threshold(device, _THRESHOLD_SHUTDOWN),
        memory_max_celsius=_threshold(device, _THRESHOLD_MEMORY_MAX),
        gpu_max_celsius=_threshold(device, _THRESHOLD_GPU_MAX),
        fan_ratios=_fans(device),
    )


def _threshold(device: NvmlDevice, threshold: int) -> float | None:
    return celsius(device.ask("nvmlDeviceGetTemperatureThreshold", threshold))


def _fans(device: NvmlDevice) -> tuple[float, ...]:
    """Return the share of the maximum speed, per fan. Passively cooled boards answer that there is none."""
    number = device.ask("nvmlDeviceGetNumFans")
    if number is None:
        only = ratio(device.ask("nvmlDeviceGetFanSpeed"))
        return () if only is None else (only,)
    speeds = (ratio(device.ask("nvmlDeviceGetFanSpeed_v2", fan)) for fan in range(min(number, 16)))
    return tuple(speed for speed in speeds if speed is not None)


_AVERAGE, _INSTANT, _MIN_LIMIT, _MAX_LIMIT, _DEFAULT_LIMIT, _LIMIT = 185, 186, 187, 188, 189, 190
_UNKNOWN_PERFORMANCE_STATE = 32


_LONGEST_STEP_SECONDS = 60.0
"""Over a longer time without a reading nothing is known of the power, and nothing is added."""


class _IntegratedEnergy:
    """Energy of a GPU without a counter of it: the sum of power over time, by the trapezoidal rule."""

    def __init__(self) -> None:
        self._joules = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, now_seconds: float, power_watts: float | None) -> float | None:
        """Return the joules since the first reading; None while there is no power."""
        if power_watts is None:
            self._last = None
            return None
        if self._last is not None and now_seconds - self._last[0] <= _LONGEST_STEP_SECONDS:
            then, before = self._last
            self._joules += (now_seconds - then) * (before + power_watts) / 2
        self._last = now_seconds, power_watts
        return self._joules


def collect_power(device: NvmlDevice) -> Power:
    """Read power by field values, which tell average and instant apart; by the old call where there are none."""
    fields = device.fields(_AVERAGE, _INSTANT, _MIN_LIMIT, _MAX_LIMIT, _DEFAULT_LIMIT, _LIMIT)
    average = watts(fields.get(_AVERAGE))
    if average is None:
        average = watts(device.ask("nvmlDeviceGetPowerUsage"))
    limit = watts(fields.get(_LIMIT))
    if limit is None:
        limit = watts(device.ask("nvmlDeviceGetPowerManagementLimit"))
    energy_millijoules = count(device.ask("nvmlDeviceGetTotalEnergyConsumption"))
    integrated = None
    if device.lacks("nvmlDeviceGetTotalEnergyConsumption"):
        integrated = device.state(_IntegratedEnergy).add(device.clock.now(), average)
    state = device.ask("nvmlDeviceGetPerformanceState")
    return Power(
        watts=average,
        instant_watts=watts(fields.get(_INSTANT)),
        limit_watts=limit,
        enforced_limit_watts=watts(device.ask("nvmlDeviceGetEnforcedPowerLimit")),
        default_limit_watts=watts(fields.get(_DEFAULT_LIMIT)),
        min_limit_watts=watts(fields.get(_MIN_LIMIT)),
        max_limit_watts=watts(fields.get(_MAX_LIMIT)),
        energy_joules=None if energy_millijoules is None else energy_millijoules / 1000,
        integrated_energy_joules=integrated,
        performance_state=None if state is None or state >= _UNKNOWN_PERFORMANCE_STATE else int(state),
    )
