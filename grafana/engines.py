"""What the engines of a GPU, and of its MIG instances, are busy with."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import timeseries
from growth import VERDICTS, verdict
from panels import GIB_PER_HOUR, GIB_PER_HOUR_UNIT, GPU, LEGEND, NOT_TOLD, Panel, latest, lines, query, settings, states
from tables import listing, widths

INSTANCE = f"{LEGEND} instance {{{{gpu_instance_id}}}}"
NO_MIG = "No GPU is in MIG mode, or not told by it, or no data"
VIDEO = (("encoder", "encoder"), ("decoder", "decoder"), ("jpeg", "JPEG"), ("ofa", "optical flow"))
PRECISIONS = (("fp64", "FP64"), ("fp32", "FP32"), ("fp16", "FP16"))


def ratios(title: str, text: str, *named: tuple[str, str], empty: str = NOT_TOLD) -> timeseries.Panel:
    """Draw shares of 0 to 1: (metric, legend) of each."""
    targets = (query(f"gpuagent_{metric}_ratio{{{GPU}}}", legend) for metric, legend in named)
    return lines(title, text, "percentunit", *targets, empty=empty, most=1)


def gpus() -> Iterator[Panel]:
    """Yield the panels of whole GPUs."""
    yield ratios(
        "Engines active",
        "Share of time in which any engine was active (Hopper and later).",
        ("gpu_profile_graphics_active", LEGEND),
    )
    yield ratios(
        "Tensor cores",
        "Share of time in which the tensor cores were busy (Hopper and later): what deep learning should use.",
        ("gpu_profile_tensor_active", LEGEND),
    )
    yield ratios(
        "Occupancy",
        "Warps resident over the most possible (Hopper and later). Low with busy multiprocessors: kernels that are "
        "small, or that need many registers.",
        ("gpu_profile_sm_occupancy", LEGEND),
    )
    yield ratios(
        "Arithmetic outside the tensor cores",
        "Share of time in arithmetic of each precision (Hopper and later).",
        *((f"gpu_profile_{name}_active", f"{LEGEND} {word}") for name, word in PRECISIONS),
    )
    yield ratios(
        "Memory accessed",
        "Share of time in which memory was read or written. It says nothing of how much of it.",
        ("gpu_memory_utilization", LEGEND),
    )
    yield ratios(
        "Video and image engines",
        "How busy encoder, decoder, JPEG decoder and optical flow accelerator are.",
        *((f"gpu_{name}_utilization", f"{LEGEND} {word}") for name, word in VIDEO),
    )


def instances() -> Iterator[Panel]:
    """Yield the panels of MIG instances."""
    by = "instance, gpu, gpu_instance_id, compute_instance_id, profile, mig_uuid"
    devices = listing(
        "MIG devices",
        "Each MIG device: a compute instance within a GPU instance, with its profile.",
        {
            "instance": "Node",
            "gpu": "GPU",
            "gpu_instance_id": "GPU instance",
            "compute_instance_id": "Compute instance",
            "profile": "Profile",
            "mig_uuid": "UUID",
        },
        "GPU",
        latest(f"max by ({by}) (gpuagent_mig_info{{{GPU}}})"),
        empty="No GPU is in MIG mode, or no data",
        descending=False,
    )
    devices.override_by_name("Node", settings(custom__width=110))
    yield widths(devices, GPU=45, GPU_instance=95, Compute_instance=125, Profile=95)
    yield lines(
        "Free memory of MIG instances",
        "What each GPU instance has left. No instance can borrow from another.",
        "bytes",
        query(f"gpuagent_mig_memory_free_bytes{{{GPU}}}", f"{INSTANCE} ({{{{profile}}}})"),
        empty=NO_MIG,
    )
    yield ratios(
        "MIG: multiprocessors and tensor cores",
        "Share of the instance's multiprocessors that were busy, how full they were (occupancy), and its tensor cores.",
        ("mig_profile_sm_active", f"{INSTANCE} busy"),
        ("mig_profile_sm_occupancy", f"{INSTANCE} occupancy"),
        ("mig_profile_tensor_active", f"{INSTANCE} tensor"),
        empty=NO_MIG,
    )
    yield ratios(
        "MIG: engines and memory bandwidth",
        "Share of time in which any engine of the instance was active, and its share of memory bandwidth.",
        ("mig_profile_graphics_active", f"{INSTANCE} active"),
        ("mig_profile_dram_bandwidth", f"{INSTANCE} bandwidth"),
        empty=NO_MIG,
    )
    yield ratios(
        "MIG: arithmetic outside the tensor cores",
        "Share of time in arithmetic of each precision.",
        *((f"mig_profile_{name}_active", f"{INSTANCE} {word}") for name, word in PRECISIONS),
        empty=NO_MIG,
    )
    yield states(
        "Verdict on MIG instances",
        "What the history of each instance's memory amounts to. `metrics.mig_traffic` exports what its links carry.",
        VERDICTS,
        query(verdict("mig", GPU, "instance, gpu, gpu_instance_id"), INSTANCE),
        empty=NO_MIG,
    )
    yield lines(
        "Growth of MIG instances",
        "How fast the floor of the memory rises in each instance.",
        GIB_PER_HOUR_UNIT,
        query(f"gpuagent_mig_memory_growth_bytes_per_second{{{GPU}}}{GIB_PER_HOUR}", INSTANCE),
        empty="No MIG instance grows, or no data",
    )
    yield lines(
        "Time until a MIG instance is full",
        "At the present pace. Instances that will not fill up have no line.",
        "s",
        query(f"gpuagent_mig_memory_exhaustion_seconds{{{GPU}}}", INSTANCE),
        query(f"gpuagent_mig_memory_fast_exhaustion_seconds{{{GPU}}}", f"{INSTANCE} within minutes"),
        empty="No MIG instance fills up, or no data",
    )
    yield lines(
        "MIG instances leak for",
        "Time since a leak began, in instances whose memory is taken to leak.",
        "s",
        query(
            f"time() - gpuagent_mig_memory_leak_since_seconds{{{GPU}}} "
            f"and gpuagent_mig_memory_leak_suspected{{{GPU}}} == 1",
            INSTANCE,
        ),
        empty="No MIG instance leaks, or no data",
    )
