"""The board *GPU fleet*: every node and GPU at a glance, problems first."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

import alerting
import memory
import problems
from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import stat, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from layout import Row, board, common_choices, notes
from panels import (
    AMBER,
    BLUE,
    GPU,
    GREEN,
    GREY,
    LEGEND,
    NODE,
    PURPLE,
    RED,
    RULES,
    Panel,
    latest,
    lines,
    query,
    settings,
    stacked,
    steps,
    with_common,
    words,
)
from tables import CHOSEN, MISSING, listing, widths


def nodes() -> table.Panel:
    """One line for each agent that Prometheus knows."""
    unknown = f"-1 * max by (job, instance) (up{{{NODE}}} < bool 2)"

    def by_node(expr: str) -> str:
        return f"{expr} or {unknown}"

    alerts = 'alertstate="firing", severity=~"critical|warning"'
    how_bad = (
        f"4 + 0 * max by (job, instance) (up{{{NODE}}} == 0) "
        f"or 3 + 0 * max by (job, instance) (gpuagent_nvml_up{{{NODE}}} == 0 or "
        f"gpuagent_gpus{{{NODE}}} < gpuagent_gpus_expected{{{NODE}}}) "
        f"or max by (job, instance) (instance_gpu:gpuagent_severity:max{{{NODE}}}) "
        f"or 0 * max by (job, instance) (up{{{NODE}}})"
    )
    made = listing(
        "Nodes",
        "Every agent that Prometheus knows: silent ones first, then by the gravest thing that is wrong there. n/a: its "
        "agent does not tell, because it is silent, or has no such GPU.",
        {
            "Value #A": "State",
            "instance": "Node",
            "job": "Job",
            "Value #B": "GPUs",
            "Value #C": "Missing",
            "Value #D": "Memory used",
            "Value #E": "Busy",
            "Value #F": "Leaks",
            "Value #G": "Alerts",
            "Value #H": "Oldest reading",
            "Value #I": "Wasted",
        },
        "State",
        latest(how_bad),
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
    states = words(("fine", GREEN), ("info", BLUE), ("warning", AMBER), ("critical", RED), ("SILENT", RED))
    made.override_by_name("State", settings(mappings=states, custom__cellOptions={"type": "color-text"}))
    bar = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    made.override_by_regexp("Memory used|Busy", settings(min=0, max=1, custom__cellOptions=bar))
    made.override_by_name("Node", settings(custom__width=300))
    made.override_by_regexp(
        "GPUs|Missing|Memory used|Busy|Leaks|Alerts|Oldest reading|Wasted", settings(mappings=MISSING)
    )
    made.override_by_regexp("Memory used|Busy", settings(unit="percentunit", decimals=0))
    made.override_by_name("Oldest reading", settings(unit="s", decimals=0))
    made.override_by_name("Wasted", settings(unit="bytes", decimals=1))
    return widths(made, State=85, GPUs=70, Missing=85, Leaks=75, Alerts=75)


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
    made.override_by_name("Node", settings(custom__width=250))
    return widths(made, GPU=60)


def filled() -> timeseries.Panel:
    """How the GPUs are spread."""
    names = ("below 10 %", "10 to 50 %", "50 to 90 %", "90 to 98 %", "full")
    made = lines(
        "GPUs by how full they are",
        "Number of GPUs in each range of memory that is not free. GPUs that cannot be read are in none.",
        "none",
        *(query(f'sum(instance:gpuagent_gpus:count{{{NODE}, filled="{name}"}})', name) for name in names),
        empty=RULES,
    )
    for name, color in zip(names, (GREY, BLUE, GREEN, AMBER, RED), strict=True):
        made.override_by_name(name, settings(color={"mode": "fixed", "fixedColor": color}))
    return stacked(made).decimals(0)


def wall() -> stat.Panel:
    """Show a cell for each GPU, in the color of the gravest thing that is wrong there."""
    made = with_common(
        stat.Panel(),
        "Every GPU",
        "One cell for each GPU, the gravest first: red is critical, amber a warning, green means that nothing is known "
        "to be wrong. The 2,000 gravest are shown. Point at a cell for its name, click it for its node.",
        (query(f"sort_desc(topk(2000, instance_gpu:gpuagent_severity:max{{{NODE}}}))", LEGEND).instant(),),
        RULES,
    )
    made.unit("none").thresholds(steps((0, GREEN), (2, AMBER), (3, RED), base=PURPLE))
    made.color_mode(common.BigValueColorMode.BACKGROUND_SOLID).graph_mode(common.BigValueGraphMode.NONE)
    made.text_mode(common.BigValueTextMode.NONE)
    made.reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    url = f"/d/gpuagent-node/gpuagent-node?{CHOSEN}&var-instance=${{__field.labels.instance}}"
    return made.override_by_field_type("number", settings(links=[{"title": "${__field.displayName}", "url": url}]))


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
            empty=RULES,
        )
    wasted = lines(
        "Wasted memory",
        "Held, and of no use to anyone: of dead processes (reset the GPU), of processes that were idle for an hour "
        "(ask their users), and cached by torch in processes that work (`gpuagent release`).",
        "bytes",
        query(f"sum by (waste) (instance:gpuagent_memory_wasted_bytes:sum{{{NODE}}})", "{{waste}}"),
        empty=RULES,
    )
    yield stacked(wasted, dead=RED, idle=AMBER, cached=PURPLE)


def work() -> Iterator[Panel]:
    """Yield the panels of what the fleet does."""
    yield lines(
        "Busy",
        "Mean over the nodes of the share of time in which some kernel ran, and of the share of the multiprocessors "
        "that were busy (Hopper and later).",
        "percentunit",
        query(f"avg(instance:gpuagent_gpu_utilization_ratio:avg{{{NODE}}})", "GPUs"),
        query(f"avg(instance:gpuagent_gpu_profile_sm_active_ratio:avg{{{NODE}}})", "multiprocessors"),
        empty=RULES,
        most=1,
    )
    yield lines(
        "Power",
        "Of all GPUs together, and the sum of their limits.",
        "watt",
        query(f"sum(instance:gpuagent_gpu_power_watts:sum{{{NODE}}})", "drawn"),
        query(f"sum(instance:gpuagent_gpu_power_enforced_limit_watts:sum{{{NODE}}})", "limit"),
        empty=RULES,
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
        Row("", [problems.wrong(), wall()], 12, 11),
        Row("Nodes and GPUs", [nodes()], 24, 12),
        Row("", [alerting.timeline(), fullest()], 12, 10),
        Row("Who holds the memory", [filled(), memory.parts(NODE, recorded=True), *holders()], 8, 11),
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
