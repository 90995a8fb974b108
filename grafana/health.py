"""Whether the GPUs can be read, what their hardware has reported, and whether the agent itself can be believed."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import statetimeline
from grafana_foundation_sdk.models import common
from panels import (
    AMBER,
    BAD_FROM_ONE,
    GPU,
    GREEN,
    LEGEND,
    NODE,
    NOT_TOLD,
    RED,
    Panel,
    counts,
    lines,
    number,
    query,
    states,
    words,
)


def readable_and_missing(about_missing: str) -> Iterator[Panel]:
    """How many GPUs can be read, and how many cannot; `about_missing` is for whoever asks what that means."""
    yield number(
        "GPUs readable",
        "GPUs whose memory was read at the last tick.",
        f"sum(gpuagent_gpus_readable{{{NODE}}})",
        "none",
        ((0, AMBER), (1, GREEN)),
    )
    yield number(
        "GPUs missing",
        about_missing,
        f"sum(gpuagent_gpus_expected{{{NODE}}}) - sum(gpuagent_gpus_readable{{{NODE}}})",
        "none",
        BAD_FROM_ONE,
    )


def state() -> statetimeline.Panel:
    """Where each GPU stood, over time."""
    return states(
        "GPU state",
        "Readable, lost (the driver has lost the GPU) or blind (a call has not come back). A "
        "gap: the driver answered with an error, or nothing was scraped.",
        words(("readable", GREEN), ("lost", RED), ("blind", AMBER)),
        query(f"max by (instance, gpu) (2 * (gpuagent_gpu_blind{{{GPU}}} == 1) or gpuagent_gpu_lost{{{GPU}}})", LEGEND),
    )


def errors() -> Iterator[Panel]:
    """Errors of the hardware."""
    by_xid = "sum by (instance, gpu, xid)"
    heard = f'gpuagent_collector_success{{{NODE}, collector="xid_events"}} == 1'
    none = (
        f"label_replace(0 * max by (job, instance, gpu) (gpuagent_gpu_info{{{GPU}}}) and on (job, instance) {heard}, "
        '"xid", "none", "", "")'
    )
    xid = lines(
        "Xid errors",
        "Errors that the driver reported, by code (docs.nvidia.com/deploy/xid-errors); at least 1 "
        "while the last one is younger than a minute. `gpuagent status` on the node says what a code means, "
        "and what NVIDIA says to do. `none` at 0: the agent listens and has heard nothing.",
        "none",
        query(
            f"{by_xid} (increase(gpuagent_xid_events_total{{{GPU}}}[$__rate_interval])) > 0 or "
            f"{by_xid} (time() - gpuagent_xid_last_timestamp_seconds{{{GPU}}} < bool 60) or "
            f"{by_xid} ({none})",
            f"{LEGEND} Xid {{{{xid}}}}",
        ),
        empty="No data: the agent does not listen, or is not scraped",
    )
    yield xid.draw_style(common.GraphDrawStyle.BARS).fill_opacity(60).axis_soft_max(1).decimals(0)
    errors_ = lines(
        "Memory errors",
        "ECC errors per interval. Corrected ones are harmless while few; one uncorrected "
        "error ends the processes that it hits.",
        "none",
        query(
            "sum by (instance, gpu, error) "
            f'(increase(gpuagent_gpu_ecc_errors_total{{{GPU}, period="volatile"}}[$__rate_interval]))',
            f"{LEGEND} {{{{error}}}}",
        ),
        empty=NOT_TOLD,
    )
    yield counts(errors_)
    yield counts(
        lines(
            "Memory repairs",
            "Memory rows replaced so far, and whether one waits for a reset (pending) or could not "
            "be replaced (failed: replace the GPU).",
            "none",
            query(f"sum by (instance, gpu) (gpuagent_gpu_remapped_rows{{{GPU}}})", f"{LEGEND} rows"),
            query(f"gpuagent_gpu_row_remap_pending{{{GPU}}}", f"{LEGEND} pending"),
            query(f"gpuagent_gpu_row_remap_failed{{{GPU}}}", f"{LEGEND} failed"),
            empty=NOT_TOLD,
        )
    )


def agent() -> Iterator[Panel]:
    """Whether the figures above can be trusted; *GPU agent* has more."""
    yield from reading()
    yield from waiting()


def reading() -> Iterator[Panel]:
    """Yield whether all parts of the readings succeed, and what they cost."""
    yield lines(
        "Age of the readings",
        "Time since each GPU was last read. A line that rises is a GPU that cannot be "
        "read; a line that ends is an agent that is not scraped.",
        "s",
        query(f"gpuagent_gpu_reading_age_seconds{{{GPU}}}", LEGEND),
        empty="No GPU was ever read",
    )
    yield states(
        "Collectors",
        "What the agent reads, part by part. Failed: the series behind it are missing for a GPU of that node.",
        words(("failed", RED), ("ok", GREEN)),
        query(f"min by (instance, collector) (gpuagent_collector_success{{{NODE}}})", "{{instance}} {{collector}}"),
    )
    yield lines(
        "Cost of the collectors",
        "Time that each part took at its last run: the slowest GPU.",
        "s",
        query(
            f"max by (instance, collector) (gpuagent_collector_duration_seconds{{{NODE}}})",
            "{{instance}} {{collector}}",
        ),
    )


def waiting() -> Iterator[Panel]:
    """Yield how many messages nobody has taken."""
    yield counts(
        lines(
            "Messages that wait",
            "Messages of alerts that no receiver has taken yet, and those that were given up (dead). "
            "`gpuagent receivers test NAME` sends one now.",
            "none",
            query(f"gpuagent_notifications_queued{{{NODE}}}", "{{instance}} {{receiver}} waiting"),
            query(f"gpuagent_notifications_dead{{{NODE}}}", "{{instance}} {{receiver}} dead"),
            empty="No receiver is configured, or no data",
        )
    )
