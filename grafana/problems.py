"""What is wrong in a fleet: in figures, and one line for each thing."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

import alerting
import health
from grafana_foundation_sdk.builders import table
from panels import (
    AMBER,
    BAD_FROM_ONE,
    BLUE,
    GPU,
    GREEN,
    NEITHER,
    NODE,
    RED,
    RULES,
    Panel,
    latest,
    number,
    settings,
    words,
)
from tables import listing, widths

SEVERITIES = words(("info", BLUE), ("warning", AMBER), ("critical", RED), start=1)

WRONG = (
    # severity (3 is critical), what is wrong in words, what is true then; what is wrong with GPUs is recorded
    (3, "the agent cannot be scraped", f"up{{{NODE}}} == 0"),
    (3, "the agent cannot read any GPU", f"gpuagent_nvml_up{{{NODE}}} == 0"),
    (3, "GPUs missing", f"gpuagent_gpus{{{NODE}}} < gpuagent_gpus_expected{{{NODE}}}"),
    (2, "messages cannot be delivered", f"gpuagent_notifications_dead{{{NODE}}} > 0"),
    (1, "simulated: no figure of it is real", f"gpuagent_simulated{{{NODE}}} == 1"),
)
RECORDED = f'instance_gpu:gpuagent_problem:max{{{NODE}, gpu=~"$gpu"}}'


def now() -> Iterator[Panel]:
    """Yield the fleet in figures."""
    yield number(
        "Agents silent",
        "Agents that Prometheus knows and cannot scrape: nothing is known of their GPUs.",
        f"count(up{{{NODE}}} == 0) or 0 * count(up{{{NODE}}})",
        "none",
        BAD_FROM_ONE,
        empty="No agent is known",
    )
    yield from health.readable_and_missing(
        "GPUs that there should be and that cannot be read, on nodes whose agent answers."
    )
    yield number(
        "Critical alerts",
        "Alerts that fire now and want someone at once, whoever evaluates the rules.",
        alerting.firing("critical"),
        "none",
        BAD_FROM_ONE,
        empty="Unknown: no rules are evaluated",
    )
    yield number(
        "Warnings",
        "Alerts that fire now and can wait for office hours.",
        alerting.firing("warning"),
        "none",
        ((0, GREEN), (1, AMBER)),
        empty="Unknown: no rules are evaluated",
    )
    yield number(
        "Leaks",
        "GPUs on which memory is taken to leak.",
        f"sum(gpuagent_gpu_memory_leak_suspected{{{GPU}}})",
        "none",
        BAD_FROM_ONE,
        empty="Unknown: no history yet, or no data",
    )
    yield number(
        "Memory in use",
        "Of all GPUs that can be read.",
        f"sum(instance:gpuagent_gpu_memory_used_bytes:sum{{{NODE}}}) "
        f"/ sum(instance:gpuagent_gpu_memory_total_bytes:sum{{{NODE}}})",
        "percentunit",
        NEITHER,
        empty=RULES,
        decimals=0,
    )
    yield number(
        "Wasted",
        "Share of all memory that is held and does nothing: of dead processes, of processes that were idle for an "
        "hour, and torch's cache.",
        f"sum(instance:gpuagent_memory_wasted_bytes:sum{{{NODE}}}) "
        f"/ sum(instance:gpuagent_gpu_memory_total_bytes:sum{{{NODE}}})",
        "percentunit",
        ((0, GREEN), (0.2, AMBER), (0.5, RED)),
        empty=RULES,
        decimals=0,
    )


def wrong() -> table.Panel:
    """Everything that is wrong now, worst first."""
    arms = [
        f'label_replace({level} + 0 * max by (job, instance, gpu) ({expr}), "problem", "{words_}", "", "")'
        for level, words_, expr in WRONG
    ]
    arms.append(f"max by (job, instance, gpu, problem) ({RECORDED})")
    arms.append(
        f"label_replace(3 * absent(instance_gpu:gpuagent_severity:max{{{NODE}}}), "
        '"problem", "GPUs are not looked at: the recording rules are not loaded, or no agent tells", "", "")'
    )
    # Prometheus itself answers: a table that is empty because nothing is scraped would look calm.
    arms.append(f'label_replace(3 * absent(up{{{NODE}}}), "problem", "Prometheus knows no agent", "", "")')
    made = listing(
        "What is wrong",
        "One line for each thing that is wrong now, the worst first; no line while nothing is known to be wrong. "
        "Click a node for its board.",
        {"Value": "Severity", "instance": "Node", "gpu": "GPU", "problem": "Problem"},
        "Severity",
        latest(" or ".join(arms)),
        empty="Nothing known to be wrong, if Prometheus answers: agents without data are listed here too",
    )
    made.override_by_name("Severity", settings(mappings=SEVERITIES, custom__cellOptions={"type": "color-text"}))
    made.override_by_name("Node", settings(custom__width=250))
    return widths(made, Severity=90, GPU=60)
