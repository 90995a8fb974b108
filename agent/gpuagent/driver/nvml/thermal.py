"""Read temperatures, their limits, and fans."""

from __future__ import annotations

from gpuagent.core.hardware import Thermal
from gpuagent.driver.nvml.device import NvmlDevice, celsius, ratio

_SENSOR_GPU = 0
_THRESHOLD_SHUTDOWN, _THRESHOLD_SLOWDOWN, _THRESHOLD_MEMORY_MAX, _THRESHOLD_GPU_MAX = range(4)
_FIELD_MEMORY_TEMPERATURE = 82


def collect(device: NvmlDevice) -> Thermal:
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
