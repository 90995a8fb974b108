"""The board *GPU efficiency*: who has held the GPUs, what they did with them, and what that cost."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import dashboard
from layout import Row, board, common_choices, notes
from panels import (
    AMBER,
    BLUE,
    GPU,
    GREY,
    LEGEND,
    NEITHER,
    NODE,
    NOT_TOLD,
    RULES,
    UNUSED,
    Panel,
    latest,
    lines,
    number,
    query,
    settings,
    stacked,
    steps,
)
from tables import MISSING, listing, widths

HELD, FREE = 'holder="processes"', 'holder="none"'
PRICE = f"avg(gpuagent_usage_gpu_hour_price{{{NODE}}})"
_KWH = 3.6e6
_TO_GIB_HOURS = " / 3600 / 1024 ^ 3"


def rate(name: str, extra: str = "") -> str:
    """Return a recorded rate of the ledger: GPUs, bytes or watts."""
    more = f", {extra}" if extra else ""
    return f"instance_user_workload:gpuagent_usage_{name}:rate5m{{{NODE}{more}}}"


def over_range(name: str, extra: str, by: str = "") -> str:
    """Return a sum over the time range, in seconds of GPUs, byte-seconds or joules: a sample stands for a minute."""
    summed = f"sum_over_time({rate(name, extra)}[$__range])"
    return f"(60 * sum by ({by}) ({summed}))" if by else f"(60 * sum({summed}))"


def now() -> Iterator[Panel]:
    """Yield the time range in figures."""
    total = over_range("held_seconds", "")
    yield number(
        "Held",
        "Share of all GPU time in which some process held the GPU, over the time range.",
        f"{over_range('held_seconds', HELD)} / {total}",
        "percentunit",
        NEITHER,
        empty=RULES,
        decimals=0,
    )
    yield number(
        "Used",
        "Share of all GPU time in which the GPUs worked: utilization times time, added up at every reading.",
        f"{over_range('busy_seconds', '')} / {total}",
        "percentunit",
        NEITHER,
        empty=RULES,
        decimals=0,
    )
    yield number(
        "Held idle",
        "GPU time that was held by somebody who was observed at 0 %, over the time range. Time in which nobody could "
        "see whether a process worked does not count.",
        over_range("idle_seconds", HELD),
        "s",
        NEITHER,
        empty=RULES,
        decimals=1,
    )
    yield number(
        "Free",
        "Share of all GPU time in which no process held the GPU.",
        f"({over_range('held_seconds', FREE)} or vector(0)) / {total}",
        "percentunit",
        NEITHER,
        empty=RULES,
        decimals=0,
    )
    yield number(
        "Energy",
        "Of all GPUs over the time range, free ones included.",
        f"{over_range('energy_joules', '')} / {_KWH:g}",
        "kwatth",
        NEITHER,
        empty=RULES,
        decimals=1,
    )
    yield number(
        "Cost of idle time",
        "Time held idle, at the price of the agents' configuration (`usage.price_per_gpu_hour`), in its currency.",
        f"{over_range('idle_seconds', HELD)} / 3600 * {PRICE}",
        "none",
        NEITHER,
        empty="No price is configured, or no data",
        decimals=2,
    )


def over_time() -> Iterator[Panel]:
    """Yield how the GPUs were spread, minute by minute."""
    names = {
        HELD: "held",
        'holder="other"': "other holders",
        'holder="unknown"': "unknown holders",
        FREE: "free",
        'holder="unobserved"': "not observed",
    }
    made = lines(
        "Who has the GPUs",
        "Number of GPUs, on average over 5 minutes; the whole is all of them. Unknown: processes without a known name. "
        "Not observed: the GPU could not be read.",
        "none",
        *(query(f"sum({rate('held_seconds', which)})", name) for which, name in names.items()),
        empty=RULES,
    )
    yield stacked(made, held=BLUE, other_holders="light-blue", unknown_holders=AMBER, free=UNUSED, not_observed=GREY)
    yield lines(
        "Held, at work and idle",
        "Number of GPUs that processes hold, that work, and that are held by somebody who was observed at 0 %.",
        "none",
        query(f"sum({rate('held_seconds', HELD)})", "held"),
        query(f"sum({rate('busy_seconds')})", "at work"),
        query(f"sum({rate('idle_seconds', HELD)})", "held idle"),
        empty=RULES,
    )


def ranking(title: str, label: str, text: str) -> table.Panel:
    """Sum up the time range by a label."""
    name = "User" if label == "user" else "Workload"
    which = f'{HELD}, {label}!=""'

    def column(amount: str, factor: str) -> str:
        return f"{over_range(amount, which, label)}{factor}"

    known = f"0 * {over_range('held_seconds', which, label)}"
    made = listing(
        title,
        f"{text} GPU time: a second of a GPU is split among its processes by their memory. Idle share: of the time "
        "in which it was observed whether they worked. Memory hours: memory held, times hours; untouched: what no "
        "tensor ever had of it.",
        {
            label: name,
            "Value #A": "GPU time",
            "Value #B": "Used",
            "Value #C": "Idle",
            "Value #D": "Idle share",
            "Value #E": "Memory hours",
            "Value #F": "Untouched hours",
            "Value #G": "Energy",
            "Value #H": "Cost",
        },
        "GPU time",
        latest(column("held_seconds", "")),
        latest(f"{column('busy_seconds', '')} or {known}"),
        latest(f"{column('idle_seconds', '')} or {known}"),
        latest(f"{column('idle_seconds', '')} / ({column('observed_seconds', '')} > 0) or {known} - 1"),
        latest(f"{column('memory_byte_seconds', _TO_GIB_HOURS)} or {known}"),
        latest(f"{column('untouched_memory_byte_seconds', _TO_GIB_HOURS)} or {known} - 1"),
        latest(f"{column('energy_joules', f' / {_KWH:g}')} or {known} - 1"),
        latest(f"{column('held_seconds', ' / 3600')} * on () group_left () {PRICE} or {known} - 1"),
        empty=RULES,
    )
    gauge = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    made.override_by_regexp("GPU time|Used|Idle", settings(unit="s", decimals=1))
    made.override_by_name(
        "Idle share",
        settings(
            unit="percentunit", decimals=0, min=0, max=1, mappings=MISSING, custom__cellOptions=gauge,
            thresholds=steps(base=BLUE).build(),
        ),
    )  # fmt: skip
    made.override_by_regexp(
        "Memory hours|Untouched hours", settings(unit="suffix: GiB h", decimals=1, mappings=MISSING)
    )
    made.override_by_name("Energy", settings(unit="kwatth", decimals=2, mappings=MISSING))
    made.override_by_name("Cost", settings(decimals=2, mappings=MISSING))
    made.override_by_name(name, settings(custom__width=260))
    return widths(made, GPU_time=110, Used=110, Idle=110, Memory_hours=130, Untouched_hours=150, Energy=110, Cost=100)


def idle_now() -> table.Panel:
    """Who holds a GPU idle at the end of the time range, and for how long already."""
    labels = "instance, gpu, user, slurm_job, pod_namespace, pod_name, container_name, unit"
    made = listing(
        "Held idle now",
        "Holders whose processes on a GPU have all been observed at 0 %, and for how long. `GpuHeldIdle` fires after "
        "`usage.idle_after`, where that is set.",
        {
            "instance": "Node",
            "gpu": "GPU",
            "Value": "Idle for",
            "user": "User",
            "slurm_job": "Slurm job",
            "pod_namespace": "Namespace",
            "pod_name": "Pod",
            "container_name": "Container",
            "unit": "Unit",
        },
        "Idle for",
        latest(f"max by ({labels}) (gpuagent_usage_idle_duration_seconds{{{GPU}, {HELD}}})"),
        empty="Nobody is known to hold a GPU idle, or no data",
    )
    made.override_by_name("Idle for", settings(unit="s", decimals=0))
    return widths(made, GPU=45, Idle_for=110, User=110, Slurm_job=100)


def holders() -> Iterator[Panel]:
    """Yield who holds, and who holds idle, over time."""
    for title, text, name in (
        ("GPUs held by user", "The ten users who hold most.", "held_seconds"),
        ("GPUs held idle by user", "The ten users whose processes hold most GPUs at 0 %.", "idle_seconds"),
    ):
        which = f'{HELD}, user!=""'
        yield lines(
            title,
            f"{text} Number of GPUs, on average over 5 minutes.",
            "none",
            query(f"topk(10, sum by (user) ({rate(name, which)}))", "{{user}}"),
            empty=RULES,
        )


def free() -> Iterator[Panel]:
    """Yield which models are free."""
    named = (
        "sum by (name) (rate(gpuagent_usage_held_seconds_total"
        f'{{{GPU}, holder="none"}}[$__rate_interval]) '
        f"* on (job, instance, gpu, uuid) group_left (name) gpuagent_gpu_info{{{GPU}}})"
    )
    yield lines(
        "Free GPUs by model",
        "GPUs that no process holds.",
        "none",
        query(named, "{{name}}"),
    )
    yield lines(
        "Memory held",
        "Memory of all processes, and what the allocators of apps with the client took and never gave to a tensor.",
        "bytes",
        query(f"sum({rate('memory_byte_seconds', HELD)})", "held"),
        query(f"sum({rate('untouched_memory_byte_seconds', HELD)})", "never touched"),
        empty=RULES,
    )
    yield lines(
        "Power by user",
        "The ten users with most. A GPU's energy is split among its processes by their utilization, else by memory.",
        "watt",
        query(f"topk(10, sum by (user) ({rate('energy_joules', HELD)}))", "{{user}}"),
        empty=RULES,
    )


def single() -> Iterator[Panel]:
    """Yield how busy each GPU was, and what was accounted for."""
    yield lines(
        "Busy, by GPU",
        "Utilization of each GPU, added up at every reading of the agent: nothing between two scrapes is lost.",
        "percentunit",
        query(f"rate(gpuagent_gpu_busy_seconds_total{{{GPU}}}[$__rate_interval])", LEGEND),
        empty=NOT_TOLD,
        most=1,
    )
    yield lines(
        "Accounted time, by GPU",
        "Seconds of each GPU that the ledger accounts for in a second: 1 while the agent runs.",
        "none",
        query(f"rate(gpuagent_gpu_accounted_seconds_total{{{GPU}}}[$__rate_interval])", LEGEND),
    )
    yield lines(
        "Limit for idle GPUs",
        "Time after which `GpuHeldIdle` tells of a holder that is idle (`usage.idle_after`).",
        "s",
        query(f"gpuagent_usage_idle_limit_seconds{{{NODE}}}", "{{instance}}"),
        empty="No limit is configured, or no data",
    )


def efficiency() -> dashboard.Dashboard:
    """Build the whole board."""
    rows = (
        Row("Over the time range", list(now()), 4, 4),
        Row("", list(over_time()), 12, 10),
        Row("By user", [ranking("Usage by user", "user", "Who has used the GPUs.")], 24, 10),
        Row(
            "By workload",
            [ranking("Usage by workload", "workload", "Slurm jobs, pods, containers, and systemd units.")],
            24,
            12,
        ),
        Row("Idle", [idle_now()], 24, 8),
        Row("", list(holders()), 12, 9),
        Row("Free GPUs, memory and power", list(free()), 8, 9),
        Row("Single GPUs", list(single()), 8, 9, closed=True),
    )
    made = board(
        "gpuagent-efficiency",
        "GPU efficiency",
        "Who has held the GPUs, what they did with them, and what that cost: from the usage ledger of the agents.",
        rows,
        common_choices(),
        notes(),
    )
    if made.time is not None:
        made.time.from_val = "now-24h"
    made.refresh = "5m"
    return made
