"""The plausible values of metric families that tell whether a GPU works, and of those that excuse its processes.

A rule that is true because less work is done (`gpuagent_gpu_utilization_ratio == 0`, `gpuagent_gpu_power_watts < 100`)
is about idleness, whatever it reads. A transcoder leaves the multiprocessors at 0 %, a trainer that waits for data the
whole GPU. Families that grow with work are listed in ascending order, those that fall in descending order.

Nor is it a reason to end a process that more memory has no living owner, that less can be read, or that a defect stays:
its end gives none of that memory back, and mends no reading and no GPU. Those families have their values from the worst
to the best, as a rule may ask for a GPU without them (`... and gpuagent_gpu_memory_dead_processes_bytes == 0`).

A test fails on a registered family (`core.metrics`) that is neither here nor among those that say nothing of work.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent_alerts.promql.series import accepts
from gpuagent_alerts.promql.syntax import Selector

_Values = tuple[float | None, ...]
_BYTES: _Values = (2.0**40, 2.0**38, 2.0**36, 2.0**34, 2.0**33, 2.0**32, 2.0**30, 2.0**28, 2.0**20, 0.0)
_SECONDS: _Values = (86400.0, 3600.0, 600.0, 120.0, 60.0, 30.0, 10.0, 5.0, 1.0, 0.1, 0.0)

NOBODYS: Mapping[str, _Values] = {
    "gpuagent_gpu_memory_dead_processes_bytes": _BYTES,
    "gpuagent_gpu_memory_unattributed_bytes": _BYTES,
    "gpuagent_gpu_memory_host_bytes": _BYTES,
    "gpuagent_dead_processes": (100.0, 10.0, 3.0, 2.0, 1.0, 0.0),
    "gpuagent_dead_process_memory_used_bytes": (*_BYTES[:-1], None),
    "gpuagent_gpu_memory_processes_bytes": tuple(reversed(_BYTES)),
}
"""Memory that no living process holds; what living ones hold is its complement."""
UNREAD: Mapping[str, _Values] = {
    "gpuagent_gpu_reading_age_seconds": _SECONDS,
    "gpuagent_collector_duration_seconds": _SECONDS,
    "gpuagent_collector_success": (0.0, 1.0),
    "gpuagent_gpu_blind": (1.0, 0.0),
    "gpuagent_gpu_lost": (1.0, 0.0),
    "gpuagent_gpu_processes_trusted": (0.0, 1.0),
    "gpuagent_gpu_figures_trusted": (0.0, 1.0),
}
"""How well a GPU can be read."""
_FLAG: _Values = (1.0, 0.0)
_ROWS: _Values = (512.0, 64.0, 8.0, 2.0, 1.0, 0.0)
LASTING: Mapping[str, _Values] = {
    "gpuagent_gpu_ecc_sram_threshold_exceeded": _FLAG,
    "gpuagent_gpu_remapped_rows": _ROWS,
    "gpuagent_gpu_row_remap_pending": _FLAG,
    "gpuagent_gpu_row_remap_failed": _FLAG,
    "gpuagent_gpu_retired_pages": _ROWS,
    "gpuagent_gpu_retired_pages_pending": _FLAG,
    "gpuagent_gpu_recovery_action": (7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0),
    "gpuagent_gpu_recovery_action_advised": (1.0, None),
    "gpuagent_gpu_nvlink_links": (0.0, 1.0, 2.0, 4.0, 6.0, 12.0, 18.0),
    "gpuagent_gpu_nvlink_active": (0.0, 1.0),
    "gpuagent_gpu_nvlink_speed_bytes_per_second": (0.0, 25e9, 100e9, 300e9, 450e9, 900e9),
    "gpuagent_gpu_c2c_active": (0.0, 1.0),
    "gpuagent_gpu_c2c_speed_bytes_per_second": (0.0, 100e9, 400e9, 450e9),
}
"""Defects of a GPU. They stay until it is reset, repaired or replaced, whoever came to it since, like a count."""


_PREFIX = "gpuagent_"
_RATIO: _Values = (0.0, 0.001, 0.005, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_RATE: _Values = (0.0, 1e3, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12)
_TOTAL: _Values = (0.0, 1.0, 1e3, 1e6, 1e9, 1e12, 1e15)
_WATTS: _Values = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 120.0, 200.0, 350.0, 700.0, 1200.0)
_CELSIUS: _Values = (20.0, 30.0, 35.0, 40.0, 45.0, 55.0, 65.0, 75.0, 85.0, 95.0)
_HERTZ: _Values = (135e6, 210e6, 345e6, 405e6, 810e6, 1.2e9, 1.4e9, 2e9, 2.6e9, 5e9, 1e10)
_REQUESTS: _Values = (0.0, 1.0, 10.0, 100.0, 1000.0)

_PROFILE = {
    **{
        f"{name}_ratio": _RATIO
        for name in ("graphics_active", "sm_active", "sm_occupancy", "tensor_active", "fp64_active", "fp32_active",
                     "fp16_active", "dram_bandwidth")
    },
    **{
        f"{name}_bytes_per_second": _RATE
        for name in ("pcie_transmit", "pcie_receive", "nvlink_transmit", "nvlink_receive")
    },
}  # fmt: skip

_CLOCK_REASON = "gpu_clock_event_reason"
_IDLE_REASON = "gpu_idle"
_IDLE_CLOCK = f"{_CLOCK_REASON}:{_IDLE_REASON}"
"""The clocks are low because the GPU rests: the one reason that holds at rest, and not at work."""

ACTIVITY: Mapping[str, _Values] = {
    _PREFIX + name: values
    for name, values in {
        # The GPU
        "gpu_utilization_ratio": _RATIO,
        "gpu_memory_utilization_ratio": _RATIO,
        "gpu_encoder_utilization_ratio": _RATIO,
        "gpu_decoder_utilization_ratio": _RATIO,
        "gpu_jpeg_utilization_ratio": _RATIO,
        "gpu_ofa_utilization_ratio": _RATIO,
        "gpu_temperature_celsius": _CELSIUS,
        "gpu_memory_temperature_celsius": _CELSIUS,
        "gpu_temperature_margin_celsius": (*reversed(_CELSIUS), 10.0, 5.0, 0.0),
        "gpu_fan_speed_ratio": _RATIO,
        "gpu_power_watts": _WATTS,
        "gpu_power_instant_watts": _WATTS,
        "gpu_energy_joules_total": _TOTAL,
        "gpu_energy_integrated_joules_total": _TOTAL,
        "gpu_performance_state": (15.0, 12.0, 10.0, 8.0, 5.0, 3.0, 2.0, 1.0, 0.0),
        "gpu_clock_hertz": _HERTZ,
        _CLOCK_REASON: (0.0, 1.0),
        _IDLE_CLOCK: (1.0, 0.0),
        "gpu_clock_throttled_seconds_total": _TOTAL,
        "gpu_pcie_link_generation": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
        "gpu_pcie_link_width": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        "gpu_pcie_transmit_bytes_total": _TOTAL,
        "gpu_pcie_receive_bytes_total": _TOTAL,
        "gpu_nvlink_transmit_bytes_total": _TOTAL,
        "gpu_nvlink_receive_bytes_total": _TOTAL,
        **{f"{of}_profile_{name}": values for of in ("gpu", "mig") for name, values in _PROFILE.items()},
        # A process; who waits for a disk is not at work on the GPU, and has no series otherwise
        "process_sm_utilization_ratio": _RATIO,
        "process_memory_utilization_ratio": _RATIO,
        "process_encoder_utilization_ratio": _RATIO,
        "process_decoder_utilization_ratio": _RATIO,
        "process_uninterruptible": (1.0, None),
        "process_zombie": (1.0, None),
        # A model server, by its own word
        "source_kv_cache_usage_ratio": _RATIO,
        "source_requests_running": _REQUESTS,
        "source_requests_waiting": _REQUESTS,
    }.items()
}
"""Values of every family that tells of work, from rest to full work; None is a series that is not there."""

_MOST_WATTS = (70.0, 150.0, 300.0, 450.0, 700.0, 1200.0)
LIMITS: Mapping[str, tuple[float, ...]] = {
    _PREFIX + name: values
    for name, values in {
        "gpu_power_limit_watts": _MOST_WATTS,
        "gpu_power_enforced_limit_watts": _MOST_WATTS,
        "gpu_power_default_limit_watts": _MOST_WATTS,
        "gpu_power_min_limit_watts": (20.0, 60.0, 100.0, 200.0),
        "gpu_power_max_limit_watts": _MOST_WATTS,
        "gpu_clock_max_hertz": (1.4e9, 2e9, 2.6e9, 5e9, 1e10),
        "gpu_temperature_slowdown_celsius": (85.0, 90.0, 95.0, 105.0),
        "gpu_temperature_shutdown_celsius": (90.0, 95.0, 100.0, 110.0),
        "gpu_temperature_max_celsius": (80.0, 85.0, 90.0),
        "gpu_memory_temperature_max_celsius": (85.0, 95.0, 105.0),
        "gpu_pcie_link_generation_max": (3.0, 4.0, 5.0, 6.0),
        "gpu_pcie_link_width_max": (8.0, 16.0),
    }.items()
}
"""Plausible values of what the activity of a GPU is compared with: the most that there can be."""


def activity_name(selector: Selector) -> str | None:
    """Return the name under which a selector's values are in `ACTIVITY`, where that depends on its matchers."""
    if selector.name == _PREFIX + _CLOCK_REASON and accepts(selector, "reason", _IDLE_REASON):
        return _PREFIX + _IDLE_CLOCK
    return selector.name
