"""Rows of the board about memory: what is wrong now, how full the GPUs are, and who holds it."""
# ruff: noqa: INP001  beside the programs that use it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from panels import (
    AMBER,
    BLUE,
    GPU,
    GREEN,
    GREY,
    LEGEND,
    NODE,
    NOT_TOLD,
    RED,
    Json,
    dashed,
    override,
    panel,
    query,
    series,
    stat,
    table,
    timeline,
    words,
)

ON_PROCESS = "on (job, instance, gpu, uuid, pid, gpu_instance_id, compute_instance_id)"
MEMORY = "gpuagent_process_memory_used_bytes"


def now() -> Iterator[Json]:
    """What an operator must see first."""
    yield stat(
        "Agents up",
        "Agents that Prometheus could scrape, of those it knows. Less than all: log in "
        "to the node and ask `systemctl status gpuagent`.",
        f"sum(up{{{NODE}}}) / count(up{{{NODE}}})",
        "percentunit",
        (0, RED),
        (1, GREEN),
        max=1,
        empty="No agent is known",
    )
    yield stat(
        "GPUs readable",
        "GPUs whose memory was read at the last tick.",
        f"sum(gpuagent_gpus_readable{{{NODE}}})",
        "none",
        (0, AMBER),
        (1, GREEN),
    )
    yield stat(
        "GPUs missing",
        "GPUs that there should be (seen since the boot, or on the PCI bus) and that could not "
        "be read: lost, gone, stuck, or without a driver. `gpuagent status` says which and why.",
        f"sum(gpuagent_gpus_expected{{{NODE}}}) - sum(gpuagent_gpus_readable{{{NODE}}})",
        "none",
        (0, GREEN),
        (1, RED),
    )
    yield stat(
        "Lost",
        "GPUs that the driver has lost or no longer enumerates. They need a reset or a reboot.",
        f"sum(gpuagent_gpu_lost{{{GPU}}})",
        "none",
        (0, GREEN),
        (1, RED),
        empty="Unknown: no GPU can be read",
    )
    yield stat(
        "Blind",
        "GPUs for which a call into the driver has not come back: nothing is known of them.",
        f"sum(gpuagent_gpu_blind{{{GPU}}})",
        "none",
        (0, GREEN),
        (1, RED),
        empty="No GPU is known",
    )
    yield stat(
        "Dead memory",
        "Memory of processes that have ended, still held by the driver. No signal frees it; a GPU "
        "reset or a reboot does.",
        f"sum(gpuagent_gpu_memory_dead_processes_bytes{{{GPU}}})",
        "bytes",
        (0, GREEN),
        (1, RED),
        decimals=1,
        empty="Unknown: no process list",
    )
    yield stat(
        "Oldest reading",
        "Age of the oldest reading among these GPUs. It grows while a GPU is lost or stuck; all "
        "other panels then lack that GPU.",
        f"max(gpuagent_gpu_reading_age_seconds{{{GPU}}})",
        "s",
        (0, GREEN),
        (10, AMBER),
        (60, RED),
        decimals=0,
        empty="No GPU was ever read",
    )
    yield stat(
        "Source",
        "Whether the figures are real. SIMULATED: an agent runs with `--simulate`, and every reading "
        "of that node is made up.",
        f"max(gpuagent_simulated{{{NODE}}})",
        "none",
        mappings=words(_0=("real", GREEN), _1=("SIMULATED", AMBER)),
    )


def state() -> Iterator[Json]:
    """Where each GPU stood, over time."""
    yield timeline(
        "GPU state",
        "Readable, lost (the driver has lost the GPU) or blind (a call has not come back). A "
        "gap: the driver answered with an error, or nothing was scraped.",
        query(f"max by (instance, gpu) (2 * (gpuagent_gpu_blind{{{GPU}}} == 1) or gpuagent_gpu_lost{{{GPU}}})", LEGEND),
        words(_0=("readable", GREEN), _1=("lost", RED), _2=("blind", AMBER)),
    )


def memory() -> Iterator[Json]:
    """How full the GPUs are, and with what."""
    used = series(
        "Memory used",
        "Memory in use on each GPU, and its total (dashed).",
        "bytes",
        query(f"gpuagent_gpu_memory_used_bytes{{{GPU}}}", f"{LEGEND} used"),
        query(f"gpuagent_gpu_memory_total_bytes{{{GPU}}}", f"{LEGEND} total"),
        empty=NOT_TOLD,
    )
    yield dashed(used, "B")
    parts = (
        ("processes", "live processes", BLUE),
        ("dead_processes", "dead processes", RED),
        ("unattributed", "unattributed", AMBER),
        ("free", "free", GREY),
    )
    stack = series(
        "Where the memory is",
        "All GPUs selected above together. Dead: held for processes that have ended. "
        "Unattributed: in use, and of no process that the driver lists (contexts, managed memory, leftovers). "
        "A GPU that cannot be read is missing from the sum.",
        "bytes",
        *(query(f"sum(gpuagent_gpu_memory_{part}_bytes{{{GPU}}})", name) for part, name, _ in parts),
        custom={"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 60, "lineWidth": 0},
        empty=NOT_TOLD,
    )
    for _, name, color in parts:
        fixed = override("byName", name, color={"mode": "fixed", "fixedColor": color})
        stack["fieldConfig"]["overrides"].append(fixed)
    yield stack


def processes() -> Iterator[Json]:
    """Who holds the memory."""
    described = (
        f"{MEMORY}{{{GPU}}} * {ON_PROCESS} group_left (unit, container, pod_namespace, pod_name, command) "
        f'label_replace(gpuagent_process_info{{{GPU}}}, "container", "$1", "container_id", "(.{{0,12}}).*")'
    )
    rest = f'{MEMORY}{{{GPU}, pid=""}}'
    listed = panel(
        "table",
        "Largest processes",
        "The 50 largest at the end of the time range. `other` is the sum of a "
        "GPU's processes that have no series of their own (`processes.top` in the agent's configuration).",
        [query(f"topk(50, {described} or {rest})", table=True)],
        empty="No process, or no data",
    )
    widths = {"Node": 150, "GPU": 50, "PID": 80, "User": 100, "Process": 140, "Unit": 180, "Container": 120}
    listed["fieldConfig"]["overrides"] = [
        override("byType", "string", noValue="-"),  # of a cell; the panel's own text is for an empty table
        override("byName", "GPU memory", unit="bytes", custom__width=110),
        *(override("byName", name, custom__width=width) for name, width in widths.items()),
    ]
    yield table(
        listed,
        {
            "instance": "Node",
            "gpu": "GPU",
            "pid": "PID",
            "user": "User",
            "process": "Process",
            "Value": "GPU memory",
            "unit": "Unit",
            "container": "Container",
            "pod_namespace": "Namespace",
            "pod_name": "Pod",
            "command": "Command",
        },
        "GPU memory",
    )
    named = f'{GPU}, pid!=""'
    yield series(
        "Memory of the ten largest",
        "The ten processes that held most at any time in the range. One that "
        "only ever rises is a leak; one that rises and levels off is a cache.",
        "bytes",
        query(
            f"{MEMORY}{{{named}}} and topk(10, max_over_time({MEMORY}{{{named}}}[$__range] @ end()))",
            f"{LEGEND} {{{{process}}}} ({{{{pid}}}})",
        ),
        empty="No process, or no data",
    )
