"""The board *GPU fleet*: every node and GPU at a glance, problems first."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

import alerting
import memory
import problems
from grafana_foundation_sdk.builders import table, timeseries
from grafana_foundation_sdk.models import dashboard
from layout import Row, board, common_choices, notes
from panels import (
    AMBER,
    BLUE,
    GPU,
    GREEN,
    GREY,
    NODE,
    PURPLE,
    RED,
    Panel,
    latest,
    lines,
    query,
    settings,
    stacked,
    words,
)
from tables import MISSING, listing, widths


def nodes() -> table.Panel:
    """One line for each agent that Prometheus knows."""
    unknown = f"-1 * max by (job, instance) (up{{{NODE}}} < bool 2)"

    def by_node(expr: str) -> str:
        return f"{expr} or {unknown}"

    alerts = 'alertstate="firing", severity=~"critical|warning"'
    made = listing(
        "Nodes",
        "Every agent that Prometheus knows. n/a: its agent does not tell, because it is silent, or has no such GPU.",
        {
            "instance": "Node",
            "job": "Job",
            "Value #A": "Agent",
            "Value #B": "GPUs",
            "Value #C": "Missing",
            "Value #D": "Memory used",
            "Value #E": "Busy",
            "Value #F": "Leaks",
            "Value #G": "Alerts",
            "Value #H": "Oldest reading",
            "Value #I": "Wasted",
        },
        "Missing",
        latest(f"max by (job, instance) (up{{{NODE}}})"),
        latest(by_node(f"sum by (job, instance) (gpuagent_gpus_readable{{{NODE}}})")),
        latest(
            by_node(
                f"sum by (job, instance) (gpuagent_gpus_expected{{{NODE}}}) "
                f"- sum by (job, instance) (gpuagent_gpus_readable{{{NODE}}})"
            )
        ),
        latest(
            by_node(
                f"sum by (job, instance) (gpuagent_gpu_memory_used_bytes{{{GPU}}}) "
                f"/ sum by (job, instance) (gpuagent_gpu_memory_total_bytes{{{GPU}}})"
            )
        ),
        latest(by_node(f"avg by (job, instance) (gpuagent_gpu_utilization_ratio{{{GPU}}})")),
        latest(by_node(f"sum by (job, instance) (gpuagent_gpu_memory_leak_suspected{{{GPU}}})")),
        latest(
            by_node(
                f"sum by (job, instance) (gpuagent_alerts{{{NODE}, {alerts}}}) "
                f"or count by (job, instance) (ALERTS{{{NODE}, {alerts}}}) "
                f"or 0 * max by (job, instance) (gpuagent_rules{{{NODE}}} > 0)"
            )
        ),
        latest(by_node(f"max by (job, instance) (gpuagent_gpu_reading_age_seconds{{{GPU}}})")),
        latest(by_node(f"sum by (job, instance) (instance:gpuagent_memory_wasted_bytes:sum{{{NODE}}})")),
        empty="No agent is known",
    )
    made.override_by_name("Agent", settings(mappings=words(("SILENT", RED), ("up", GREEN))))
    made.override_by_name("Agent", settings(custom__cellOptions={"type": "color-text"}))
    made.override_by_regexp(
        "GPUs|Missing|Memory used|Busy|Leaks|Alerts|Oldest reading|Wasted", settings(mappings=MISSING)
    )
    made.override_by_regexp("Memory used|Busy", settings(unit="percentunit", decimals=0))
    made.override_by_name("Oldest reading", settings(unit="s", decimals=0))
    made.override_by_name("Wasted", settings(unit="bytes", decimals=1))
    return widths(made, Agent=80, GPUs=70, Missing=85, Memory_used=120, Busy=75, Leaks=75, Alerts=75)


def fullest() -> table.Panel:
    """Which GPUs have least left."""
    named = (
        f"gpuagent_gpu_memory_used_ratio{{{GPU}}} "
        f"* on (job, instance, gpu, uuid) group_left (name) gpuagent_gpu_info{{{GPU}}}"
    )
    made = listing(
        "Fullest GPUs",
        "The 20 GPUs with the largest share of their memory in use. Full is normal for servers that take all of it on "
        "purpose (vLLM, JAX).",
        {"instance": "Node", "gpu": "GPU", "name": "Model", "Value": "Memory used"},
        "Memory used",
        latest(f"topk(20, {named})"),
        empty="No data, or no GPU with memory of its own",
    )
    made.override_by_name("Memory used", settings(unit="percentunit", decimals=1))
    return widths(made, GPU=60)


def filled() -> timeseries.Panel:
    """How the GPUs are spread."""
    ratio = f"(1 - gpuagent_gpu_memory_free_bytes{{{GPU}}} / gpuagent_gpu_memory_total_bytes{{{GPU}}})"
    marks = ((0, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 0.98), (0.98, 2))
    names = ("below 10 %", "10 to 50 %", "50 to 90 %", "90 to 98 %", "full")
    made = lines(
        "GPUs by how full they are",
        "Number of GPUs in each range of memory that is not free. GPUs that cannot be read are in none.",
        "none",
        *(
            query(f"count(({ratio} >= {low}) < {high}) or 0 * count({ratio})", name)
            for (low, high), name in zip(marks, names, strict=True)
        ),
        empty="No data, or no GPU with memory of its own",
    )
    for name, color in zip(names, (GREY, BLUE, GREEN, AMBER, RED), strict=True):
        made.override_by_name(name, settings(color={"mode": "fixed", "fixedColor": color}))
    return stacked(made).decimals(0)


def holders() -> Iterator[Panel]:
    """Who holds the memory, from the recording rules: over all processes it would be too much for a large fleet."""
    for title, text, label, legend in (
        ("Memory by user", "The ten users with most GPU memory.", "user", "{{user}}"),
        (
            "Memory by workload",
            "The ten workloads with most: Slurm jobs, pods, or systemd units, over all nodes.",
            "workload",
            "{{workload}}",
        ),
    ):
        held = f'instance_user_workload:gpuagent_process_memory_used_bytes:sum{{{NODE}, {label}!=""}}'
        yield lines(
            title,
            f"{text} Processes that the agent sums up as `other` are nobody's: raise `processes.top` if they matter.",
            "bytes",
            query(f"topk(10, sum by ({label}) ({held}))", legend),
            empty=problems.RULES,
        )
    wasted = lines(
        "Wasted memory",
        "Held, and of no use to anyone: of dead processes (reset the GPU), of processes that were idle for an hour "
        "(ask their users), and cached by torch in processes that work (`gpuagent release`).",
        "bytes",
        query(f"sum by (waste) (instance:gpuagent_memory_wasted_bytes:sum{{{NODE}}})", "{{waste}}"),
        empty=problems.RULES,
    )
    yield stacked(wasted, dead=RED, idle=AMBER, cached=PURPLE)


def work() -> Iterator[Panel]:
    """Yield the panels of what the fleet does."""
    yield lines(
        "Busy",
        "Mean share of time in which some kernel ran, and mean share of the multiprocessors that were busy (Hopper and "
        "later).",
        "percentunit",
        query(f"avg(gpuagent_gpu_utilization_ratio{{{GPU}}})", "GPUs"),
        query(f"avg(gpuagent_gpu_profile_sm_active_ratio{{{GPU}}})", "multiprocessors"),
        empty="No data, or not told by these GPUs",
        most=1,
    )
    yield lines(
        "Power",
        "Of all GPUs together, and the sum of their limits.",
        "watt",
        query(f"sum(gpuagent_gpu_power_watts{{{GPU}}})", "drawn"),
        query(f"sum(gpuagent_gpu_power_enforced_limit_watts{{{GPU}}})", "limit"),
        empty="No data, or not told by these GPUs",
    )
    yield lines(
        "GPUs that can be read",
        "Should be: seen since the boot, or on the PCI bus, of agents that answer.",
        "none",
        query(f"sum(gpuagent_gpus_readable{{{NODE}}})", "readable"),
        query(f"sum(gpuagent_gpus_expected{{{NODE}}})", "should be"),
    ).decimals(0)


def fleet() -> dashboard.Dashboard:
    """Build the whole board."""
    rows = (
        Row("Now", list(problems.now()), 3, 4),
        Row("", [problems.wrong(), alerting.timeline()], 12, 10),
        Row("Nodes and GPUs", [nodes()], 24, 10),
        Row("", [filled(), fullest()], 12, 10),
        Row("Who holds the memory", [memory.parts(GPU), *holders()], 12, 11),
        Row("Work", list(work()), 8, 9),
    )
    return board(
        "gpuagent-fleet",
        "GPU fleet",
        "All nodes and GPUs: what is wrong, how full they are, who holds the memory, and how much of it is wasted.",
        rows,
        common_choices(),
        notes(),
    )
