"""How full the GPUs are, with what, and who holds it."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import table, timeseries
from grafana_foundation_sdk.models import dashboard
from growth import VERDICTS, verdict
from panels import (
    AMBER,
    BLUE,
    GPU,
    GREY,
    KEYS,
    LEGEND,
    NODE,
    NOT_TOLD,
    PURPLE,
    RED,
    RULES,
    UNUSED,
    Panel,
    counts,
    dashed,
    latest,
    lines,
    query,
    settings,
    stacked,
)
from tables import MISSING, listing, widths

MEMORY = "gpuagent_process_memory_used_bytes"


def parts(selector: str, *, recorded: bool = False) -> timeseries.Panel:
    """All memory as a stack that adds up; `recorded` draws from the recording rules, for a fleet."""
    before, after = ("instance:", ":sum") if recorded else ("", "")
    named = {
        "processes": "live processes",
        "dead_processes": "dead processes",
        "unattributed": "unattributed",
        "host": "beside the GPU",
        "free": "free",
        "reserved": "reserved",
    }
    made = lines(
        "Where the memory is",
        "All GPUs selected above together; the whole is what they have. Dead: held for processes that have ended. "
        "Unattributed: in use, and of no process that the driver lists (contexts, managed memory, leftovers). "
        "Beside the GPU: of programs on the CPU, where the two share the memory. "
        "Reserved: by driver and firmware. A GPU that cannot be read is missing from the sum.",
        "bytes",
        *(
            query(f"sum({before}gpuagent_gpu_memory_{part}_bytes{after}{{{selector}}})", name)
            for part, name in named.items()
        ),
        empty=RULES if recorded else NOT_TOLD,
    )
    return stacked(
        made,
        live_processes=BLUE,
        dead_processes=RED,
        unattributed=AMBER,
        beside_the_GPU=PURPLE,
        free=UNUSED,
        reserved=GREY,
    )


def by_process() -> timeseries.Panel:
    """Memory as a stack of processes, up to all there is."""
    named = f'{GPU}, pid!=""'
    most = f"{MEMORY}{{{named}}} and topk(10, max_over_time({MEMORY}{{{named}}}[$__range] @ end()))"
    used = f"sum(gpuagent_gpu_memory_used_bytes{{{GPU}}})"
    made = lines(
        "Memory by process",
        "The ten processes that held most at any time in the range, one upon another, then all others and what no "
        "process owns, what is free, and what driver and firmware reserve: up to all memory of these GPUs.",
        "bytes",
        query(most, f"{LEGEND} {{{{process}}}} ({{{{pid}}}})"),
        query(f"clamp_min({used} - (sum({most}) or vector(0)), 0)", "others"),
        query(f"sum(gpuagent_gpu_memory_free_bytes{{{GPU}}})", "free"),
        query(f"sum(gpuagent_gpu_memory_reserved_bytes{{{GPU}}})", "reserved"),
        empty=NOT_TOLD,
    )
    # By how much each holds, in blue and purple: red and green would say that one is well and another is not.
    made.color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.CONTINUOUS_BL_PU))
    return stacked(made, others=GREY, free=UNUSED, reserved=GREY)


def gpus() -> Iterator[Panel]:
    """How full the GPUs are, and with what."""
    used = lines(
        "Memory used",
        "Memory in use on each GPU, and its total (dashed).",
        "bytes",
        query(f"gpuagent_gpu_memory_used_bytes{{{GPU}}}", f"{LEGEND} used"),
        query(f"gpuagent_gpu_memory_total_bytes{{{GPU}}}", f"{LEGEND} total"),
        empty=NOT_TOLD,
    )
    yield dashed(used, "B")
    yield parts(GPU)


def instances() -> timeseries.Panel:
    """MIG."""
    legend = f"{LEGEND} instance {{{{gpu_instance_id}}}} ({{{{profile}}}})"
    return lines(
        "MIG instances, share in use",
        "Memory in use over the total of each GPU instance. An instance cannot borrow from its neighbors: it can be "
        "full while the GPU is not.",
        "percentunit",
        query(f"gpuagent_mig_memory_used_bytes{{{GPU}}} / gpuagent_mig_memory_total_bytes{{{GPU}}}", legend),
        empty="No GPU is in MIG mode, or no data",
        most=1,
    )


def processes() -> table.Panel:
    """Who holds the memory, and what becomes of it."""
    by = "instance, gpu, pid, process, user, gpu_instance_id"
    info = f'label_replace(gpuagent_process_info{{{GPU}}}, "container", "$1", "container_id", "(.{{0,12}}).*")'
    details = "unit, container, pod_namespace, pod_name, slurm_job, command"
    described = f"{MEMORY}{{{GPU}}} * on ({KEYS}) group_left ({details}) {info}"
    # `other`, and what /proc cannot describe.
    rest = f"{MEMORY}{{{GPU}}} unless on ({KEYS}) gpuagent_process_info{{{GPU}}}"
    unknown = f"-1 * (sum by ({by}) ({MEMORY}{{{GPU}}} > 0) > bool 0)"
    columns = {
        "instance": "Node",
        "gpu": "GPU",
        "pid": "PID",
        "user": "User",
        "process": "Process",
        "Value #A": "Memory",
        "Value #B": "Growth per hour",
        "Value #C": "Full in",
        "Value #D": "Verdict",
        "Value #E": "Cached by torch",
        "unit": "Unit",
        "container": "Container",
        "pod_namespace": "Namespace",
        "pod_name": "Pod",
        "slurm_job": "Slurm job",
        "command": "Command",
    }
    made = listing(
        "Processes",
        "At the end of the time range. `other` is the sum of a GPU's processes that have no series of their own "
        "(`processes.top` in the agent's configuration). Full in: when the GPU is, at this pace. Cached: what "
        "`gpuagent release PID` can give back. Click a PID for its own board.",
        columns,
        "Memory",
        latest(f"sum by ({by}, {details}) ({described} or {rest})"),
        latest(f"3600 * sum by ({by}) (gpuagent_process_memory_growth_bytes_per_second{{{GPU}}}) or {unknown}"),
        latest(f"min by ({by}) (gpuagent_process_memory_exhaustion_seconds{{{GPU}}}) or {unknown}"),
        latest(f"{verdict('process', GPU, by)} or {unknown}"),
        latest(f"sum by ({by}) (gpuagent_torch_memory_cached_bytes{{{GPU}}}) or {unknown}"),
        empty="No process, or no data",
    )
    made.override_by_regexp("Memory|Growth per hour|Cached by torch", settings(unit="bytes", decimals=1))
    made.override_by_regexp("Growth per hour|Cached by torch|Full in", settings(mappings=MISSING))
    made.override_by_name("Full in", settings(unit="s"))
    made.override_by_name("Verdict", settings(mappings=VERDICTS, custom__cellOptions={"type": "color-text"}))
    made.override_by_name("User", settings(custom__width=90))
    return widths(
        made, GPU=45, Process=130, Memory=95, Growth_per_hour=125, Full_in=80, Verdict=95, Cached_by_torch=125, Unit=160
    )


def largest() -> timeseries.Panel:
    """Show the history of the largest."""
    named = f'{GPU}, pid!=""'
    return lines(
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


def dead() -> Iterator[Panel]:
    """Yield what is known of processes that have ended and still hold memory, and how many processes there are."""
    by = "instance, gpu, pid, process, user, unit, container_name, pod_namespace, pod_name, slurm_job"
    ended = listing(
        "Memory of processes that have ended",
        "What each was while it lived. No signal frees it: a GPU reset or a reboot does.",
        {
            "instance": "Node",
            "gpu": "GPU",
            "pid": "PID",
            "user": "User",
            "process": "Process",
            "Value": "Memory",
            "unit": "Unit",
            "container_name": "Container",
            "pod_name": "Pod",
            "slurm_job": "Slurm job",
        },
        "Memory",
        latest(f"sum by ({by}) (gpuagent_dead_process_memory_used_bytes{{{GPU}}})"),
        empty="No process has left memory behind, or no data",
    )
    ended.override_by_name("Memory", settings(unit="bytes", decimals=1))
    yield widths(ended, GPU=45, User=90, Process=120, Memory=95)
    yield counts(
        lines(
            "Number of processes",
            "Processes on each GPU, and how many of them have ended (dashed).",
            "none",
            query(f"gpuagent_processes{{{GPU}}}", LEGEND),
            query(f"gpuagent_dead_processes{{{GPU}}} > 0", f"{LEGEND} ended"),
            empty=NOT_TOLD,
        )
    )


def budgets() -> Iterator[Panel]:
    """Yield the panel of what budgets allow and what is used of them."""
    legend = f"{LEGEND} {{{{budget}}}}"
    made = lines(
        "Budgets",
        "Memory of the processes that each budget of the configuration matches, on one GPU, and its limit (dashed).",
        "bytes",
        query(f"gpuagent_budget_used_bytes{{{GPU}}}", legend),
        query(f"gpuagent_budget_limit_bytes{{{GPU}}}", f"{legend} limit"),
        empty="No budget is configured, or no data",
    )
    yield dashed(made, "B")


def machine() -> Iterator[Panel]:
    """Yield the panels of the machine's own memory, where GPUs share it or read it."""
    empty = "No data, or no GPU shares the machine's memory"
    parts_ = (
        ("total", "total"),
        ("available", "available"),
        ("free", "free"),
        ("page_cache", "page cache"),
        ("kernel", "kernel"),
        ("swap_total", "swap"),
        ("swap_free", "free swap"),
    )
    yield lines(
        "Memory of the machine",
        "Where GPU and CPU share it (GB10, Jetson), or the GPU reads it over C2C links (GH200, GB200). Available is "
        "what can still be given out: page cache is given up for it. No memory of a GPU can be swapped out.",
        "bytes",
        *(query(f"gpuagent_host_memory_{part}_bytes{{{NODE}}}", f"{{{{instance}}}} {name}") for part, name in parts_),
        empty=empty,
    )
    yield lines(
        "Waiting for memory",
        "Share of the last 10 s in which some, or all, programs that could run waited for memory. All of them for "
        "long: the machine is about to stall.",
        "percentunit",
        query(f"gpuagent_host_memory_pressure_ratio{{{NODE}}}", "{{instance}} {{waiting}}"),
        empty=empty,
        most=1,
    )
    yield lines(
        "Time until the machine's memory is gone",
        "At the pace of the last seconds, while it falls fast. 0: the machine is about to stall, as programs wait for "
        "memory and next to nothing is left.",
        "s",
        query(f"gpuagent_host_memory_exhaustion_seconds{{{NODE}}}", "{{instance}} at this pace"),
        query(f"0 * (gpuagent_gpu_memory_stall_imminent{{{GPU}}} == 1)", "{{instance}} GPU {{gpu}} about to stall"),
        empty="No data, or the memory that GPU and CPU share does not run out",
    )
