"""The reference of all metrics, made from their families: `docs/metrics.md`.

Run `python -m gpuagent.core.metrics.reference > docs/metrics.md` after a change of a family.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpuagent.core.metrics import gpu
from gpuagent.core.metrics.alerting import ALERTING_FAMILIES
from gpuagent.core.metrics.clients import CLIENT_FAMILIES, SOURCE_FAMILIES, TORCH_FAMILIES
from gpuagent.core.metrics.family import Family
from gpuagent.core.metrics.gpu import MIG_FAMILIES
from gpuagent.core.metrics.growth import DETECTOR_FAMILIES, GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES
from gpuagent.core.metrics.host import HOST_FAMILIES
from gpuagent.core.metrics.node import NODE_FAMILIES
from gpuagent.core.metrics.optional import SWITCH_OF
from gpuagent.core.metrics.process import FRAMEWORK_FAMILIES, OTHER, PROCESS_FAMILIES
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.metrics.usage import USAGE_FAMILIES
from gpuagent.core.units import table_cell


class Group(NamedTuple):
    """Families that a reader looks for together."""

    title: str
    text: str
    families: Sequence[Family[Any]]


GROUPS = (
    Group(
        "Node and agent", "Whether there is anything to see, and how old it is. Alert on these first.", NODE_FAMILIES
    ),
    Group(
        "Memory of the machine",
        "On nodes whose GPUs share it with the CPU (GB10, Jetson), or read it over C2C links (GH200, GB200).",
        HOST_FAMILIES,
    ),
    Group("GPU: identity and state", "`gpuagent_gpu_info` is there for every GPU that was ever seen.", gpu.IDENTITY),
    Group(
        "GPU: memory",
        "`used` is the sum of `processes`, `dead_processes` and `unattributed`; `total` is the sum of `used`, `free` "
        "and `reserved`. Where GPU and CPU share the memory (GB10, Jetson) it is the machine's: `free` is what is "
        "available, and a part of `used` is `host`: what programs hold beside the GPU.",
        gpu.MEMORY,
    ),
    Group(
        "GPU: utilization",
        "1 says that some kernel ran all the time, not that the GPU was full: compare with power, or with the "
        "profile below. A GPU in MIG mode does not tell.",
        gpu.UTILIZATION,
    ),
    Group("GPU: profile", "How full the engines are (NVML's GPM): Hopper and later only.", gpu.PROFILE),
    Group("GPU: temperature and fans", "", gpu.THERMAL),
    Group("GPU: power and energy", "", gpu.POWER),
    Group("GPU: clocks", "", gpu.CLOCKS),
    Group("GPU: PCI Express", "", gpu.PCIE),
    Group("GPU: memory errors", "", gpu.ECC),
    Group("GPU: links to other GPUs and to the CPU", "", gpu.LINKS),
    Group(
        "MIG",
        "Memory is told once for each GPU instance, and is part of its GPU's: never add the two.",
        MIG_FAMILIES,
    ),
    Group(
        "Process",
        "`gpu_instance_id` and `compute_instance_id` are there under MIG only. For a process that /proc does not know, "
        "`process` is `[dead]`, and `[unresolved]` where the agent cannot tell whose a pid is.",
        (*PROCESS_FAMILIES, *FRAMEWORK_FAMILIES),
    ),
    Group(
        "Growth and leaks: process",
        "What the leak detector says of a process's memory. It needs minutes to hours of history: until then there is "
        "`verdict` alone.",
        GROWTH_FAMILIES,
    ),
    Group(
        "Growth and leaks: GPU",
        "The same for the GPU as a whole: the sum of what grows, be it of processes or of no process that the driver "
        "lists. A process that starts is no growth.",
        GPU_GROWTH_FAMILIES,
    ),
    Group(
        "Growth and leaks: MIG instance",
        "The same for each GPU instance, which has memory of its own: when that is full. The forecasts of its GPU are "
        "of what grows outside of instances.",
        MIG_GROWTH_FAMILIES,
    ),
    Group("Growth and leaks: the detector", "", DETECTOR_FAMILIES),
    Group(
        "Allocator of a process",
        "What torch's allocator knows, from apps with the embedded client. `app` is the name that the app gave itself. "
        "A figure that is older than three intervals (at least 5 s) is not told.",
        TORCH_FAMILIES,
    ),
    Group(
        "Model servers",
        "What servers that are configured under `sources` tell of themselves: what their memory is for.",
        SOURCE_FAMILIES,
    ),
    Group("Embedded clients", "The door of these apps. `GET /api/v1/clients` names them.", CLIENT_FAMILIES),
    Group(
        "Alerts",
        "What fires on this node, and what became of the messages. `gpuagent alerts` shows it in words.",
        ALERTING_FAMILIES,
    ),
    Group(
        "Remedies and budgets",
        "What was done to give memory back. `gpuagent remedies` shows it in words.",
        REMEDY_FAMILIES,
    ),
    Group(
        "Usage",
        "Who has held the GPUs, for how long, and what they did with them ([usage](usage.md)). `holder` is `processes`,"
        " `none` (the GPU was free), `unknown`, `other` (beyond 32 holders of a GPU) or `unobserved`; added up over "
        "all holders, the counters are those of the GPU.",
        USAGE_FAMILIES,
    ),
)

_INTRODUCTION = f"""\
# Metrics

<!-- Made by `python -m gpuagent.core.metrics.reference`: change the families, not this file. -->

Everything that `/metrics` can have. Which of it a node has depends on its GPUs and their driver; `gpuagent doctor`
lists what they do not tell, and why. Units are base units: bytes, seconds, ratios of 0 to 1, watts, joules, hertz,
degrees Celsius.

## Labels

`gpu` is NVML's index, which may change when the driver is loaded again; `uuid` does not. No reading is ever a label.
`job` and `instance` are Prometheus' own. A name in the tables is a label of every series of its section, unless the
table names further ones.

## Missing data

A series that is missing is unknown, never zero. While a collector fails on a GPU, the series behind it are missing for
that GPU, `gpuagent_collector_success` is 0 for that collector, and `gpuagent_gpu_reading_age_seconds` grows. A series
that is missing while its collector succeeds is not supported there, or what it described has gone. No reading is ever
repeated: a scrape tells what the last tick has found, or nothing.

## The largest processes, and all others

Only the `processes.top` largest processes of a GPU (64 by default) have series of their own. The memory of the rest is
summed up in one series with `process="{OTHER}"` and an empty `pid`, so that this is complete all the same:

    sum by (instance, gpu) (gpuagent_process_memory_used_bytes)

## What a process is

A process' series carry few labels; the rest is in `gpuagent_process_info`, which is always 1 and is multiplied in:

    gpuagent_process_memory_used_bytes
      * on (job, instance, gpu, uuid, pid, gpu_instance_id, compute_instance_id)
        group_left (unit, container_id, pod_namespace, pod_name, slurm_job, command)
      gpuagent_process_info

While a process has not been shown to hold what is listed for its number (see
[unproven](refusals.md#memory-that-may-be-of-a-process-that-has-ended)), the labels that say whose it is are empty:
`user`, and in `gpuagent_process_info` `uid`, unit, container, pod and job. A sum over a user
does not count what may be a dead one's.

The same works for a GPU's name and serial number with `on (job, instance, uuid) group_left (name) gpuagent_gpu_info`.

## Off by default

What has many series and is of use to few is not exported unless `metrics` in the
[configuration](configuration.md) says so; the tables name the key. Rules of the agent see these families all the same.
Everything else is on one of the [boards](dashboards.md).

## The agent's own process

`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds` and the other `process_*` metrics
without the prefix are the agent's own process, as every Prometheus client library has them.
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join([_INTRODUCTION, *(line for group in GROUPS for line in _section(group))])


def _section(group: Group) -> Iterator[str]:
    """Yield a heading, the labels that all have, and a table."""
    common = _common_labels(group.families)
    labels = ", ".join(f"`{label}`" for label in common)
    yield f"## {group.title}\n"
    if group.text:
        yield f"{group.text}\n"
    yield f"Labels of all: {labels}.\n" if common else "No labels but those named.\n"
    yield "| metric | type | unit | further labels | meaning | collector |"
    yield "|---|---|---|---|---|---|"
    for family in group.families:
        further = ", ".join(f"`{label}`" for label in family.labels if label not in common)
        switch = SWITCH_OF.get(family.name)
        text = f"{family.help} Off by default: `metrics.{switch}`." if switch else family.help
        cells = (f"`{family.name}`", family.kind, family.unit, further, text, f"`{family.collector}`")
        yield f"| {' | '.join(table_cell(cell) for cell in cells)} |"
    yield ""


def _common_labels(families: Sequence[Family[Any]]) -> tuple[str, ...]:
    return tuple(label for label in families[0].labels if all(label in family.labels for family in families))


if __name__ == "__main__":
    sys.stdout.write(render())
