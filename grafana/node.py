"""The board *GPU node*: one node, or a few, in everything that the agent knows of them. It opens on one."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

import alerting
import allocator
import cards
import details
import engines
import growth
import health
import links
import load
import memory
import servers
from grafana_foundation_sdk.models import dashboard
from layout import Row, board, common_choices, notes
from panels import AMBER, BAD_FROM_ONE, GPU, GREEN, NODE, RED, Panel, number, words


def trust() -> Iterator[Panel]:
    """Whether there is anything to see."""
    yield number(
        "Agents up",
        "Agents that Prometheus could scrape, of those it knows. Less than all: log in "
        "to the node and ask `systemctl status gpuagent`.",
        f"sum(up{{{NODE}}}) / count(up{{{NODE}}})",
        "percentunit",
        ((0, RED), (1, GREEN)),
        empty="No agent is known",
    )
    _, missing = health.readable_and_missing(
        "GPUs that there should be (seen since the boot, or on the PCI bus) and that could not "
        "be read: lost, gone, stuck, or without a driver. `gpuagent status` says which and why."
    )
    yield missing
    yield number(
        "Oldest reading",
        "Age of the oldest reading among these GPUs. It grows while a GPU is lost or stuck; all "
        "other panels then lack that GPU.",
        f"max(gpuagent_gpu_reading_age_seconds{{{GPU}}})",
        "s",
        ((0, GREEN), (10, AMBER), (60, RED)),
        empty="No GPU was ever read",
        decimals=0,
    )


def problems() -> Iterator[Panel]:
    """Yield the panels that an operator must see first."""
    yield number(
        "Alerts firing",
        "Alerts that fire now, whoever evaluates the rules. Which: the time line below.",
        alerting.firing(),
        "none",
        ((0, GREEN), (1, AMBER)),
        empty="Unknown: no rules are evaluated",
    )
    yield number(
        "Leaks",
        "GPUs on which memory is taken to leak. The row on leaks shows what grows.",
        f"sum(gpuagent_gpu_memory_leak_suspected{{{GPU}}})",
        "none",
        BAD_FROM_ONE,
        empty="Unknown: no history yet, or no data",
    )
    yield number(
        "First GPU full in",
        "When the first of these GPUs is full, at the present pace. Those that are "
        "filled on purpose (vLLM, JAX) do not count as full.",
        growth.full_in("gpu", GPU, GPU),
        "s",
        ((0, RED), (1800, AMBER), (14400, GREEN)),
        growth.FULL_IN,
        empty="Unknown: no history yet, or no data",
        decimals=0,
    )
    yield number(
        "Dead memory",
        "Memory of processes that have ended, still held by the driver. No signal frees it; a GPU "
        "reset or a reboot does.",
        f"sum(gpuagent_gpu_memory_dead_processes_bytes{{{GPU}}})",
        "bytes",
        BAD_FROM_ONE,
        empty="Unknown: no process list",
        decimals=1,
    )
    yield number(
        "Source",
        "Whether the figures are real. SIMULATED: an agent runs with `--simulate`, and every reading "
        "of that node is made up.",
        f"max(gpuagent_simulated{{{NODE}}})",
        "none",
        meanings=words(("real", GREEN), ("SIMULATED", AMBER)),
    )


def node() -> dashboard.Dashboard:
    """Build the whole board."""
    rows = (
        Row("GPUs", [cards.gpus()], 24, 9),
        Row("", [*trust(), *problems()], 3, 3),
        Row("", [memory.by_process(), alerting.timeline()], 12, 12),
        Row("Leaks", list(growth.leaks()), 12, 9),
        Row("Processes", [memory.processes()], 24, 11),
        Row("", [memory.largest(), *memory.gpus(), memory.instances()], 12, 10),
        Row("", list(memory.dead()), 12, 8),
        Row("Utilization", list(load.utilization()), 8, 9),
        Row("Power, temperature, clocks", list(load.physics()), 12, 9),
        Row("Errors and states", [health.state(), *health.errors()], 12, 8),
        Row("Throttling", list(details.clocks()), 12, 9, closed=True),
        Row("Energy", [*details.power()], 12, 9, closed=True),
        Row("Tensor cores and other pipes", list(engines.gpus()), 8, 9, closed=True),
        Row("NVLink", list(links.nvlink()), 8, 9, closed=True),
        Row("PCI Express", list(links.pcie()), 8, 9, closed=True),
        Row("Budgets and model servers", [*memory.budgets(), *servers.panels()], 8, 9, closed=True),
        Row("Memory of the machine, where GPUs share it", list(memory.machine()), 12, 10, closed=True),
        Row("torch's allocator", list(allocator.apps()), 8, 10, closed=True),
        Row("Remedies", [alerting.remedies()], 24, 7, closed=True),
        Row("The agent itself", list(health.agent()), 12, 9, closed=True),
    )
    return board(
        "gpuagent-node",
        "GPU node",
        "GPU memory of a node: what is wrong, who holds it, what leaks, and whether the figures can be trusted.",
        rows,
        common_choices(one_node=True),
        notes(),
    )
