"""Read power draw, its limits, energy, and the performance state."""

from __future__ import annotations

from gpuagent.core.hardware import Power
from gpuagent.driver.nvml.device import NvmlDevice, count, watts

_AVERAGE, _INSTANT, _MIN_LIMIT, _MAX_LIMIT, _DEFAULT_LIMIT, _LIMIT = 185, 186, 187, 188, 189, 190
_UNKNOWN_PERFORMANCE_STATE = 32


def collect(device: NvmlDevice) -> Power:
    """Read power by field values, which tell average and instant apart; by the old call where there are none."""
    fields = device.fields(_AVERAGE, _INSTANT, _MIN_LIMIT, _MAX_LIMIT, _DEFAULT_LIMIT, _LIMIT)
    average = watts(fields.get(_AVERAGE))
    if average is None:
        average = watts(device.ask("nvmlDeviceGetPowerUsage"))
    limit = watts(fields.get(_LIMIT))
    if limit is None:
        limit = watts(device.ask("nvmlDeviceGetPowerManagementLimit"))
    energy_millijoules = count(device.ask("nvmlDeviceGetTotalEnergyConsumption"))
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
        performance_state=None if state is None or state >= _UNKNOWN_PERFORMANCE_STATE else int(state),
    )
