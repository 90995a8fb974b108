"""Rows of the board about the hardware: how busy, how hot, and what has failed."""
# ruff: noqa: INP001  beside the programs that use it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from panels import GPU, GREEN, LEGEND, NODE, NOT_TOLD, RED, Json, dashed, query, series, timeline, words

FEW = {"axisSoftMax": 1}
"""For counts that are nearly always 0: Grafana would draw an axis up to 100."""


def utilization() -> Iterator[Json]:
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
        yield series(title, text, "percentunit", query(f"{name}{{{GPU}}}", LEGEND), max=1, empty=NOT_TOLD)


def physics() -> Iterator[Json]:
    """Watts, degrees and hertz, and what holds the clocks down."""
    power = series(
        "Power",
        "Power draw, and the limit in force (dashed).",
        "watt",
        query(f"gpuagent_gpu_power_watts{{{GPU}}}", LEGEND),
        query(f"gpuagent_gpu_power_enforced_limit_watts{{{GPU}}}", f"{LEGEND} limit"),
        empty=NOT_TOLD,
    )
    yield dashed(power, "B")
    heat = series(
        "Temperature",
        "Of the GPU, and where it slows down (dashed).",
        "celsius",
        query(f"gpuagent_gpu_temperature_celsius{{{GPU}}}", LEGEND),
        query(f"gpuagent_gpu_temperature_slowdown_celsius{{{GPU}}}", f"{LEGEND} slows down"),
        empty=NOT_TOLD,
    )
    yield dashed(heat, "B")
    yield series(
        "Clock",
        "Of the multiprocessors.",
        "hertz",
        query(f'gpuagent_gpu_clock_hertz{{{GPU}, domain="sm"}}', LEGEND),
        empty=NOT_TOLD,
    )
    yield series(
        "GPUs held back, by reason",
        "How many GPUs have their clocks held down, and why. `gpu_idle` and "
        "`applications_clocks_setting` are normal; `sw_power_cap` is the power limit; thermal and hw reasons "
        "want a look at cooling and power supply.",
        "none",
        query(f"sum by (reason) (gpuagent_gpu_clock_event_reason{{{GPU}}})", "{{reason}}"),
        decimals=0,
        custom={"lineInterpolation": "stepAfter"} | FEW,
        empty=NOT_TOLD,
    )


def health() -> Iterator[Json]:
    """Errors of the hardware, and whether the agent itself can be believed."""
    by_xid = "sum by (instance, gpu, xid)"
    heard = f'gpuagent_collector_success{{{NODE}, collector="xid_events"}} == 1'
    none = (
        f"label_replace(0 * max by (job, instance, gpu) (gpuagent_gpu_info{{{GPU}}}) and on (job, instance) {heard}, "
        '"xid", "none", "", "")'
    )
    yield series(
        "Xid errors",
        "Errors that the driver reported, by code (docs.nvidia.com/deploy/xid-errors); at least 1 "
        "while the last one is younger than a minute. 13, 31, 43 and 45 are the application's; 48, 64, 74, "
        "79, 95, 119 and 120 the GPU's. `none` at 0: the agent listens and has heard nothing.",
        "none",
        query(
            f"{by_xid} (increase(gpuagent_xid_events_total{{{GPU}}}[$__rate_interval])) > 0 or "
            f"{by_xid} (time() - gpuagent_xid_last_timestamp_seconds{{{GPU}}} < bool 60) or "
            f"{by_xid} ({none})",
            f"{LEGEND} Xid {{{{xid}}}}",
        ),
        custom={"drawStyle": "bars", "fillOpacity": 60} | FEW,
        empty="No data: the agent does not listen, or is not scraped",
    )
    yield series(
        "Memory errors",
        "ECC errors per interval. Corrected ones are harmless while few; one uncorrected "
        "error ends the processes that it hits.",
        "none",
        query(
            f"sum by (instance, gpu, error) "
            f'(increase(gpuagent_gpu_ecc_errors_total{{{GPU}, period="volatile"}}[$__rate_interval]))',
            f"{LEGEND} {{{{error}}}}",
        ),
        custom=FEW,
        empty=NOT_TOLD,
    )
    yield series(
        "Memory repairs",
        "Memory rows replaced so far, and whether one waits for a reset (pending) or could not "
        "be replaced (failed: replace the GPU).",
        "none",
        query(f"sum by (instance, gpu) (gpuagent_gpu_remapped_rows{{{GPU}}})", f"{LEGEND} rows"),
        query(f"gpuagent_gpu_row_remap_pending{{{GPU}}}", f"{LEGEND} pending"),
        query(f"gpuagent_gpu_row_remap_failed{{{GPU}}}", f"{LEGEND} failed"),
        decimals=0,
        custom=FEW,
        empty=NOT_TOLD,
    )
    yield series(
        "Age of the readings",
        "Time since each GPU was last read. A line that rises is a GPU that cannot be "
        "read; a line that ends is an agent that is not scraped.",
        "s",
        query(f"gpuagent_gpu_reading_age_seconds{{{GPU}}}", LEGEND),
        empty="No GPU was ever read",
    )
    yield timeline(
        "Collectors",
        "What the agent reads, part by part. Failed: the series behind it are missing for at "
        "least one GPU of that node.",
        query(f"min by (instance, collector) (gpuagent_collector_success{{{NODE}}})", "{{instance}} {{collector}}"),
        words(_0=("failed", RED), _1=("ok", GREEN)),
    )
    yield series(
        "Cost of the collectors",
        "Time that each part took at its last run: the slowest GPU.",
        "s",
        query(
            f"max by (instance, collector) (gpuagent_collector_duration_seconds{{{NODE}}})",
            "{{instance}} {{collector}}",
        ),
    )
