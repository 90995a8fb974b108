"""How busy and how hot the GPUs are, and what holds their clocks down."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models import common
from panels import GPU, LEGEND, NOT_TOLD, Panel, counts, dashed, lines, query


def utilization() -> Iterator[Panel]:
    """How busy the GPUs are."""
    for title, text, name in (
        (
            "GPU busy",
            "Share of time in which some kernel ran. 100 % is not a full GPU: compare with power. Not told under MIG.",
            "gpuagent_gpu_utilization_ratio",
        ),
        (
            "Multiprocessors busy",
            "Share of the multiprocessors that were busy (Hopper and later).",
            "gpuagent_gpu_profile_sm_active_ratio",
        ),
        (
            "Memory bandwidth",
            "Memory bandwidth used over the most possible (Hopper and later).",
            "gpuagent_gpu_profile_dram_bandwidth_ratio",
        ),
    ):
        yield lines(title, text, "percentunit", query(f"{name}{{{GPU}}}", LEGEND), most=1, empty=NOT_TOLD)


def physics() -> Iterator[Panel]:
    """Watts, degrees and hertz, and what holds the clocks down."""
    power = lines(
        "Power",
        "Power draw, and the limit in force (dashed).",
        "watt",
        query(f"gpuagent_gpu_power_watts{{{GPU}}}", LEGEND),
        query(f"gpuagent_gpu_power_enforced_limit_watts{{{GPU}}}", f"{LEGEND} limit"),
        empty=NOT_TOLD,
    )
    yield dashed(power, "B")
    heat = lines(
        "Temperature",
        "Of the GPU, and where it slows down (dashed).",
        "celsius",
        query(f"gpuagent_gpu_temperature_celsius{{{GPU}}}", LEGEND),
        query(f"gpuagent_gpu_temperature_slowdown_celsius{{{GPU}}}", f"{LEGEND} slows down"),
        empty=NOT_TOLD,
    )
    yield dashed(heat, "B")
    yield lines(
        "Clock",
        "Of the multiprocessors.",
        "hertz",
        query(f'gpuagent_gpu_clock_hertz{{{GPU}, domain="sm"}}', LEGEND),
        empty=NOT_TOLD,
    )
    held = lines(
        "GPUs held back, by reason",
        "How many GPUs have their clocks held down, and why. `gpu_idle` and "
        "`applications_clocks_setting` are normal; `sw_power_cap` is the power limit; thermal and hw reasons "
        "want a look at cooling and power supply.",
        "none",
        query(f"sum by (reason) (gpuagent_gpu_clock_event_reason{{{GPU}}})", "{{reason}}"),
        empty=NOT_TOLD,
    )
    yield counts(held).line_interpolation(common.LineInterpolation.STEP_AFTER)
