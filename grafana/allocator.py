"""What torch's allocator says of the memory, beside what the driver says: from apps with the embedded client."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import prometheus, timeseries
from panels import (
    AMBER,
    BLUE,
    GPU,
    GREEN,
    KEYS,
    LEGEND,
    PURPLE,
    Panel,
    counts,
    latest,
    lines,
    query,
    stacked,
    states,
    words,
)
from tables import listing

EMPTY = "No app with the embedded client, or no data"


def three_lines(selector: str, by: str, legend: str) -> timeseries.Panel:
    """Allocated within reserved within what the driver counts."""
    reserved = f"gpuagent_torch_memory_reserved_bytes{{{selector}}}"
    driver = f"gpuagent_process_memory_used_bytes{{{selector}}} and on ({KEYS}) {reserved}"
    return lines(
        "Driver, reserved, allocated",
        "Three views of the same memory. Driver: what NVML counts for the processes that tell. Reserved: what torch "
        "took from the driver. Allocated: what tensors have. Between driver and reserved are context and libraries; "
        "between reserved and allocated is cache, which `gpuagent release` gives back. If allocated rises, the "
        "program holds on to tensors (`gpuagent blame`).",
        "bytes",
        query(f"sum by ({by}) ({driver})", f"{legend}driver"),
        query(f"sum by ({by}) ({reserved})", f"{legend}reserved"),
        query(f"sum by ({by}) (gpuagent_torch_memory_allocated_bytes{{{selector}}})", f"{legend}allocated"),
        empty=EMPTY,
    )


def contents(selector: str) -> timeseries.Panel:
    """Show the allocator's contents as a stack."""
    made = lines(
        "What the memory is for",
        "Allocated: in use by tensors. Cached: reserved by torch and free. Outside: what the driver counts and torch "
        "does not (context, libraries, other allocators). Together they are what the driver counts.",
        "bytes",
        query(f"sum(gpuagent_torch_memory_allocated_bytes{{{selector}}})", "allocated"),
        query(f"sum(gpuagent_torch_memory_cached_bytes{{{selector}}})", "cached"),
        query(f"sum(gpuagent_torch_memory_outside_bytes{{{selector}}})", "outside"),
        empty=EMPTY,
    )
    return stacked(made, allocated=BLUE, cached=PURPLE, outside=AMBER)


def trouble(selector: str, by: str, legend: str) -> timeseries.Panel:
    """Show what the program noticed: retries and out-of-memory errors."""
    made = lines(
        "Allocations in trouble",
        "Per interval: allocations that succeeded only after torch had emptied its cache (retried), and those that "
        "failed (out of memory). The first comes before the second.",
        "none",
        query(
            f"sum by ({by}) (increase(gpuagent_torch_alloc_retries_total{{{selector}}}[$__rate_interval]))",
            f"{legend} retried",
        ),
        query(
            f"sum by ({by}) (increase(gpuagent_torch_ooms_total{{{selector}}}[$__rate_interval]))",
            f"{legend} out of memory",
        ),
        empty=EMPTY,
    )
    return counts(made)


def apps() -> Iterator[Panel]:
    """Yield the panels of a node."""
    legend = f"{LEGEND} {{{{app}}}} ({{{{pid}}}})"
    yield three_lines(GPU, "instance, gpu", f"{LEGEND} ")
    yield lines(
        "Cached, by app",
        "Memory that torch holds and no tensor uses, of the ten apps with most: what `gpuagent release PID` can give "
        "back at most.",
        "bytes",
        query(f"topk(10, gpuagent_torch_memory_cached_bytes{{{GPU}}})", legend),
        empty=EMPTY,
    )
    yield trouble(GPU, "instance, gpu, pid, app", legend)


def details(selector: str) -> Iterator[Panel]:
    """Yield what else the allocator of one process tells."""
    of = "instance, gpu"

    def figure(metric: str, word: str) -> prometheus.Dataquery:
        return query(f"sum by ({of}) (gpuagent_torch_memory_{metric}{{{selector}}})", f"{LEGEND} {word}")

    yield lines(
        "Peaks",
        "Most that was allocated and reserved since the app last reset its peaks, and what it declares it needs at "
        "least.",
        "bytes",
        figure("allocated_peak_bytes", "allocated at most"),
        figure("reserved_peak_bytes", "reserved at most"),
        figure("declared_minimum_bytes", "declared minimum"),
        empty=EMPTY,
    )
    yield lines(
        "Fragmentation",
        "Active: allocated, or freed and still in use on another stream. Split: free pieces of segments that are "
        "partly in use, which cannot go back to the driver.",
        "bytes",
        figure("active_bytes", "active"),
        figure("inactive_split_bytes", "split"),
        empty=EMPTY,
    )
    yield counts(
        lines(
            "Segments",
            "Pieces that the allocator has taken from the driver.",
            "none",
            figure("segments", "segments"),
            empty=EMPTY,
        )
    )
    yield lines(
        "Limit of the process",
        "Share of the GPU that the process may take, where it has been limited.",
        "percentunit",
        query(f"max by ({of}) (gpuagent_torch_memory_limit_ratio{{{selector}}})", LEGEND),
        empty="No limit, no client, or no data",
        most=1,
    )
    yield states(
        "Takes the GPU by design",
        "Of processes whose framework or server is known: whether it takes most of the GPU when it starts.",
        words(("no", GREEN), ("yes", BLUE)),
        query(f"max by ({of}, framework) (gpuagent_process_preallocates{{{selector}}})", f"{LEGEND} {{{{framework}}}}"),
        empty="No framework is known, or no data",
    )
    by = "instance, gpu, app, backend, torch_version, python_version, client_version"
    yield listing(
        "Allocator and versions",
        "What the embedded client says of its app.",
        {
            "instance": "Node",
            "gpu": "GPU",
            "app": "App",
            "backend": "Allocator",
            "torch_version": "torch",
            "python_version": "Python",
            "client_version": "Client",
        },
        "GPU",
        latest(f"max by ({by}) (gpuagent_torch_info{{{selector}}})"),
        empty=EMPTY,
        descending=False,
    )
