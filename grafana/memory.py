"""How full the GPUs are, with what, and who holds it."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import table, timeseries
from growth import VERDICTS, verdict
from panels import (
    AMBER,
    BLUE,
    GPU,
    GREY,
    KEYS,
    LEGEND,
    NOT_TOLD,
    RED,
    Panel,
    dashed,
    latest,
    lines,
    query,
    settings,
    stacked,
)
from tables import MISSING, listing, widths

MEMORY = "gpuagent_process_memory_used_bytes"


def parts(selector: str) -> timeseries.Panel:
    """All memory as a stack that adds up."""
    named = {
        "processes": "live processes",
        "dead_processes": "dead processes",
        "unattributed": "unattributed",
        "free": "free",
        "reserved": "reserved",
    }
    made = lines(
        "Where the memory is",
        "All GPUs selected above together; the whole is what they have. Dead: held for processes that have ended. "
        "Unattributed: in use, and of no process that the driver lists (contexts, managed memory, leftovers). "
        "Reserved: by driver and firmware. A GPU that cannot be read is missing from the sum.",
        "bytes",
        *(query(f"sum(gpuagent_gpu_memory_{part}_bytes{{{selector}}})", name) for part, name in named.items()),
        empty=NOT_TOLD,
    )
    return stacked(made, live_processes=BLUE, dead_processes=RED, unattributed=AMBER, free="dark-green", reserved=GREY)


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
