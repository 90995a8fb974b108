"""How a GPU talks to others: NVLink, C2C to its CPU, and PCI Express."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from panels import GPU, LEGEND, NOT_TOLD, Panel, counts, dashed, lines, query


def rate(metric: str) -> str:
    """Return the query of how fast a counter of a GPU grows."""
    return f"rate(gpuagent_gpu_{metric}{{{GPU}}}[$__rate_interval])"


def traffic(title: str, text: str, sent: str, received: str) -> Panel:
    """Draw bytes per second in both directions."""
    return lines(
        title, text, "binBps", query(sent, f"{LEGEND} sent"), query(received, f"{LEGEND} received"), empty=NOT_TOLD
    )


def nvlink() -> Iterator[Panel]:
    """Yield the panels of NVLink."""
    yield counts(
        lines(
            "NVLinks",
            "Links that are up or asleep (active), and those that are not. A link that is down on one GPU alone is a "
            "cable, a switch or a defect. `metrics.nvlink_links` exports each link by itself.",
            "none",
            query(f"gpuagent_gpu_nvlink_links{{{GPU}}}", f"{LEGEND} {{{{state}}}}"),
            empty="No NVLink, or no data",
        )
    )
    yield traffic(
        "NVLink traffic",
        "Data over all links of a GPU, by the driver's counters.",
        rate("nvlink_transmit_bytes_total"),
        rate("nvlink_receive_bytes_total"),
    )
    yield traffic(
        "NVLink traffic, profiled",
        "The same by GPM (Hopper and later).",
        f"gpuagent_gpu_profile_nvlink_transmit_bytes_per_second{{{GPU}}}",
        f"gpuagent_gpu_profile_nvlink_receive_bytes_per_second{{{GPU}}}",
    )
    yield lines(
        "Speed of the links",
        "Of the active links of a GPU together, in one direction: NVLink to other GPUs, C2C to the CPU (GH200, GB200). "
        "It falls when a link goes down.",
        "binBps",
        query(f"gpuagent_gpu_nvlink_speed_bytes_per_second{{{GPU}}}", f"{LEGEND} NVLink"),
        query(f"gpuagent_gpu_c2c_speed_bytes_per_second{{{GPU}}}", f"{LEGEND} C2C"),
        empty=NOT_TOLD,
    )
    yield counts(
        lines(
            "NVLink errors",
            "Errors per interval: of all links by kind, and of single links that ever had one. Replays and recoveries "
            "are retried; many of them on one link are a bad connection.",
            "none",
            query(
                "sum by (instance, gpu, error) "
                f"(increase(gpuagent_gpu_nvlink_errors_total{{{GPU}}}[$__rate_interval]))",
                f"{LEGEND} {{{{error}}}}",
            ),
            query(
                "sum by (instance, gpu, link, error) "
                f"(increase(gpuagent_gpu_nvlink_link_errors_total{{{GPU}}}[$__rate_interval]))",
                f"{LEGEND} link {{{{link}}}} {{{{error}}}}",
            ),
            empty="No NVLink, or no data",
        )
    )
    yield counts(
        lines(
            "Links to the CPU (C2C)",
            "Links that are up between GPU and CPU, and errors of them per interval (GH200, GB200).",
            "none",
            query(f"sum by (instance, gpu) (gpuagent_gpu_c2c_active{{{GPU}}})", f"{LEGEND} links up"),
            query(
                f"sum by (instance, gpu, error) (increase(gpuagent_gpu_c2c_errors_total{{{GPU}}}[$__rate_interval]))",
                f"{LEGEND} {{{{error}}}}",
            ),
            empty="No C2C link, or no data",
        )
    )


def pcie() -> Iterator[Panel]:
    """Yield the panels of PCI Express."""
    yield traffic(
        "PCI Express traffic",
        "Data between GPU and host, by the driver's counters.",
        rate("pcie_transmit_bytes_total"),
        rate("pcie_receive_bytes_total"),
    )
    yield traffic(
        "PCI Express traffic, profiled",
        "The same by GPM (Hopper and later).",
        f"gpuagent_gpu_profile_pcie_transmit_bytes_per_second{{{GPU}}}",
        f"gpuagent_gpu_profile_pcie_receive_bytes_per_second{{{GPU}}}",
    )
    for title, name, text in (
        ("PCI Express lanes", "width", "Lanes in use, and the most of GPU and slot (dashed)."),
        (
            "PCI Express generation",
            "generation",
            "Generation in use, and the highest of GPU and slot (dashed). It is lower while a GPU is idle.",
        ),
    ):
        made = lines(
            title,
            f"{text} Less than that under load is a bad slot, riser or setting of the firmware.",
            "none",
            query(f"gpuagent_gpu_pcie_link_{name}{{{GPU}}}", LEGEND),
            query(f"gpuagent_gpu_pcie_link_{name}_max{{{GPU}}}", f"{LEGEND} at most"),
            empty=NOT_TOLD,
        )
        yield dashed(counts(made), "B")
    yield counts(
        lines(
            "PCI Express packets sent again",
            "Replays per interval. A few are harmless; a steady stream of them is a bad connection.",
            "none",
            query(f"increase(gpuagent_gpu_pcie_replays_total{{{GPU}}}[$__rate_interval])", LEGEND),
            empty=NOT_TOLD,
        )
    )
    bar1 = lines(
        "BAR1 address space",
        "What is mapped for access from outside (GPUDirect, debuggers), and the total (dashed). Mappings fail when it "
        "is full.",
        "bytes",
        query(f"gpuagent_gpu_bar1_memory_used_bytes{{{GPU}}}", LEGEND),
        query(f"gpuagent_gpu_bar1_memory_total_bytes{{{GPU}}}", f"{LEGEND} total"),
        empty=NOT_TOLD,
    )
    yield dashed(bar1, "B")
