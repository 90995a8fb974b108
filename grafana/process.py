"""The board *GPU process*: one process, as the driver, its allocator and the leak detector see it."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

import alerting
import allocator
import growth
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import dashboard
from layout import Row, board, common_choices, notes
from panels import (
    AMBER,
    GIB_PER_HOUR,
    GIB_PER_HOUR_UNIT,
    GPU,
    GREEN,
    NEITHER,
    NODE,
    RED,
    SOURCE,
    Panel,
    dashed,
    latest,
    lines,
    number,
    query,
    states,
    words,
)
from tables import listing, widths

PROCESS = f'{GPU}, pid="$pid"'
LEGEND = "{{instance}} GPU {{gpu}}"
GONE = "No such process now, or no data"
NO_GROWTH = "Unknown: no history yet, or no data"


def which() -> build.QueryVariable:
    """One process, by name and pid; also one that has ended within an hour before the end of the time range.

    A link may name one that is older: Grafana keeps a value that is not on the list.
    """
    seen = (
        "query_result(label_join(max by (pid, process) (max_over_time("
        f'gpuagent_process_memory_used_bytes{{{GPU}, pid!=""}}[1h])), "text", " ", "process", "pid"))'
    )
    made = build.QueryVariable("pid").label("Process").datasource(SOURCE).definition(seen)
    made.query({"query": seen, "refId": "variable-pid"}).refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made.regex('/pid="(?<value>[0-9]+)".*text="(?<text>[^"]*)"/').sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    return made.multi(False).include_all(False)


def now() -> Iterator[Panel]:
    """In short."""
    yield number(
        "State",
        "Gone: no process with this pid has GPU memory on these nodes. Zombie: it has ended, and its parent has not "
        "taken note. D state: it waits in the kernel, where only SIGKILL may reach it.",
        f"max(3 * (gpuagent_process_uninterruptible{{{PROCESS}}} == 1) "
        f"or 2 * (gpuagent_process_zombie{{{PROCESS}}} == 1) or gpuagent_process_info{{{PROCESS}}}) "
        f"or 0 * max(gpuagent_nvml_up{{{NODE}}} == 1)",
        "none",
        meanings=words(("gone", AMBER), ("alive", GREEN), ("zombie", RED), ("D state", RED)),
    )
    yield number(
        "GPU memory",
        "Of this process on all GPUs chosen above, as the driver counts it.",
        f"sum(gpuagent_process_memory_used_bytes{{{PROCESS}}})",
        "bytes",
        NEITHER,
        empty=GONE,
        decimals=1,
    )
    yield number(
        "Verdict",
        "What the history of its memory amounts to. `gpuagent status` says what this rests on.",
        growth.verdict("process", PROCESS, "pid"),
        "none",
        meanings=growth.VERDICTS,
        empty=GONE,
    )
    yield number(
        "Growth an hour",
        "How fast the floor of its memory rises.",
        f"3600 * sum(gpuagent_process_memory_growth_bytes_per_second{{{PROCESS}}})",
        "bytes",
        NEITHER,
        empty=NO_GROWTH,
        decimals=1,
    )
    yield number(
        "GPU full in",
        "When its GPU is full, if only this process goes on as it does.",
        growth.full_in("process", PROCESS, GPU),
        "s",
        ((0, RED), (1800, AMBER), (14400, GREEN)),
        growth.FULL_IN,
        empty=NO_GROWTH,
        decimals=0,
    )
    yield number(
        "Leaking since",
        "When the leak began, by the detector's reckoning.",
        f"1000 * min(gpuagent_process_memory_leak_since_seconds{{{PROCESS}}} > 0)",
        "dateTimeFromNow",
        ((0, RED),),
        empty="No leak, or no data",
    )
    yield number(
        "Cached",
        "Reserved and not allocated: what `gpuagent release PID` can give back at most.",
        f"sum(gpuagent_torch_memory_cached_bytes{{{PROCESS}}})",
        "bytes",
        NEITHER,
        empty="No client, or no data",
        decimals=1,
    )
    yield number(
        "Running for",
        "Time since the process started.",
        f"time() - min(gpuagent_process_start_time_seconds{{{PROCESS}}})",
        "s",
        NEITHER,
        empty=GONE,
        decimals=0,
    )


def what() -> table.Panel:
    """Show what /proc says of the process."""
    labels = (
        "instance, gpu, pid, process, user, command, unit, container_id, pod_namespace, pod_name, slurm_job, "
        "parent_pid, type"
    )
    made = listing(
        "What it is",
        "The newest that is known of it in the time range: also of a process that has ended.",
        {
            "instance": "Node",
            "gpu": "GPU",
            "process": "Process",
            "user": "User",
            "unit": "Unit",
            "container_id": "Container",
            "pod_namespace": "Namespace",
            "pod_name": "Pod",
            "slurm_job": "Slurm job",
            "parent_pid": "Parent",
            "type": "Type",
            "command": "Command",
        },
        "GPU",
        latest(f"max by ({labels}) (last_over_time(gpuagent_process_info{{{PROCESS}}}[$__range]))"),
        empty="No such process in this time, or no data",
        descending=False,
    )
    return widths(made, GPU=50, User=100, Parent=90, Type=80, Process=140)


def memory() -> Iterator[Panel]:
    """Driver against allocator."""
    told = allocator.three_lines(PROCESS, "instance, gpu", f"{LEGEND} ")
    # Of a process without the client there is the driver's line all the same.
    yield dashed(
        told.with_target(
            query(
                f"sum by (instance, gpu) (gpuagent_process_memory_used_bytes{{{PROCESS}}} "
                f"unless on (job, instance, gpu, uuid, pid) gpuagent_torch_memory_reserved_bytes{{{PROCESS}}})",
                f"{LEGEND} driver (no client)",
            ).ref_id("D")
        ).with_target(
            query(
                f"sum by (instance, gpu) (gpuagent_torch_memory_declared_typical_bytes{{{PROCESS}}})",
                f"{LEGEND} declared as typical",
            ).ref_id("E")
        ),
        "E",
    )
    yield allocator.contents(PROCESS)


def leak() -> Iterator[Panel]:
    """Yield the panels of what the detector says."""
    yield growth.verdicts("process", PROCESS, "instance, gpu", LEGEND)
    yield lines(
        "Slope",
        "How fast the floor of its memory rises: churn above the floor is no growth.",
        GIB_PER_HOUR_UNIT,
        query(
            f"max by (instance, gpu) (gpuagent_process_memory_growth_bytes_per_second{{{PROCESS}}}){GIB_PER_HOUR}",
            LEGEND,
        ),
        empty=NO_GROWTH,
    )
    yield states(
        "Evidence",
        "Which standards the leak has met: confirmed has more than one witness, allocator and strict are rarely wrong, "
        "balanced and sensitive now and then. Each raises GpuProcessMemoryLeak once. The configured "
        "sensitivity decides whether it counts as a leak.",
        words(("met", RED), start=1),
        query(
            f"max by (instance, gpu, evidence) (gpuagent_process_memory_leak_evidence{{{PROCESS}}})",
            f"{LEGEND} {{{{evidence}}}}",
        ),
        query(
            f"max by (instance, gpu) (gpuagent_process_memory_leak_suspected{{{PROCESS}}}) > 0",
            f"{LEGEND} configured sensitivity",
        ),
        empty="No leak, or no data: see the verdict",
    )


def use() -> Iterator[Panel]:
    """Yield the panels of GPU use. By GPU, for a process that dies goes on under another name: [dead]."""
    yield lines(
        "Busy",
        "Share of the time of multiprocessors, memory, and video encoder and decoder. A gap is no 0: the driver "
        "had no sample then. Not told under MIG.",
        "percentunit",
        query(
            f"max by (instance, gpu) (gpuagent_process_sm_utilization_ratio{{{PROCESS}}})", f"{LEGEND} multiprocessors"
        ),
        *(
            query(
                f"max by (instance, gpu) (gpuagent_process_{name}_utilization_ratio{{{PROCESS}}})", f"{LEGEND} {name}"
            )
            for name in ("memory", "encoder", "decoder")
        ),
        empty=GONE,
        most=1,
    )
    yield lines(
        "Host memory",
        "Resident in the host's memory. A leak there shows here.",
        "bytes",
        query(f"max by (instance) (gpuagent_process_resident_memory_bytes{{{PROCESS}}})", "{{instance}}"),
        empty=GONE,
    )
    yield allocator.trouble(PROCESS, "instance, gpu", LEGEND)


def process() -> dashboard.Dashboard:
    """Build the whole board."""
    rows = (
        Row("Now", list(now()), 3, 4),
        Row("", [what()], 24, 4),
        Row("Memory: driver and allocator", list(memory()), 12, 11),
        Row("Growth", list(leak()), 8, 9),
        Row("Use", list(use()), 8, 9),
        Row("Allocator in detail", list(allocator.details(PROCESS)), 8, 9, closed=True),
        Row("Alerts and remedies", [alerting.timeline(PROCESS)], 24, 8),
        Row("", [alerting.remedies(PROCESS)], 24, 6),
    )
    return board(
        "gpuagent-process",
        "GPU process",
        "One process with GPU memory: what the driver and its allocator say, whether it leaks, and what was done.",
        rows,
        [*common_choices(), which()],
        notes(PROCESS),
    )
