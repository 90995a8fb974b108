"""Read clock frequencies, their maxima, and the reasons why they are not higher."""

from __future__ import annotations

from gpuagent.core.hardware import Clocks
from gpuagent.driver.nvml.device import NvmlDevice

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


def collect(device: NvmlDevice) -> Clocks:
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
