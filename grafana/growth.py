"""What grows, what leaks, and when it hits the wall."""
# ruff: noqa: INP001  beside the program that uses it, not in a package

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import statetimeline
from grafana_foundation_sdk.models import common, dashboard
from panels import (
    AMBER,
    BLUE,
    GIB_PER_HOUR,
    GIB_PER_HOUR_UNIT,
    GPU,
    GREEN,
    GREY,
    LEGEND,
    PURPLE,
    RED,
    Panel,
    dashed,
    lines,
    query,
    states,
    steps,
    styled,
    words,
)

_NAMES = (
    ("learning", GREY),
    ("steady", GREEN),
    ("levelled_off", BLUE),
    ("cached", PURPLE),
    ("growing", AMBER),
    ("leaking", RED),
)
VERDICTS = words(
    ("n/a", GREY), ("unknown", GREY), *((name.replace("_", " "), color) for name, color in _NAMES), start=-1
)
"""Of `verdict()`; -1 and 0 are what it never is."""

NEVER_SECONDS = 30 * 24 * 3600
"""Stands for "not in sight" where there is a verdict: a GPU that does not fill up has no time to tell."""
_CALM = dashboard.ValueMappingResult(text="not in sight", color=GREEN, index=0)
_FULL = dashboard.ValueMappingResult(text="full now", color=RED, index=1)
FULL_IN: list[dashboard.ValueMapping] = [
    dashboard.RangeMap(dashboard.DashboardRangeMapOptions(NEVER_SECONDS, None, _CALM)),
    dashboard.RangeMap(dashboard.DashboardRangeMapOptions(None, 0, _FULL)),
]


def full_in(of: str, selector: str, gpu: str) -> str:
    """Seconds until a GPU is full: 0 where it is (unless on purpose), and long where growth is not in sight."""
    prefix = f"gpuagent_{of}_memory"
    full = (
        f"1 - gpuagent_gpu_memory_free_bytes{{{gpu}}} / gpuagent_gpu_memory_total_bytes{{{gpu}}} > 0.98 "
        f"unless on (job, instance, gpu, uuid) gpuagent_gpu_memory_preallocated{{{gpu}}} == 1 "
        f"and on (job, instance, gpu, uuid) {prefix}_verdict{{{selector}}}"
    )
    # Labels that differ, so that `or` keeps all of them for the minimum.
    return (
        f"min({prefix}_exhaustion_seconds{{{selector}}} "
        f'or label_replace({prefix}_fast_exhaustion_seconds{{{selector}}}, "pace", "fast", "", "") '
        f'or label_replace(0 * ({full}), "pace", "full", "", "") '
        f'or clamp_min({prefix}_verdict{{{selector}, verdict!="learning"}}, {NEVER_SECONDS}))'
    )


def verdict(of: str, selector: str, by: str) -> str:
    """Return the query of the verdict as a number: 1 learning to 6 leaking. `of`: process or gpu."""
    arms = " or ".join(
        f'{number} * gpuagent_{of}_memory_verdict{{{selector}, verdict="{name}"}}'
        for number, (name, _) in enumerate(_NAMES, 1)
    )
    return f"max by ({by}) ({arms})"


def verdicts(of: str, selector: str, by: str, legend: str) -> statetimeline.Panel:
    """Over time, in words."""
    return states(
        "Verdict over time",
        "What the history of the memory amounts to. Learning: too little history yet. Cached: what grows is torch's "
        "cache, which can be released. Levelled off: it grew and has stopped. Leaking: it rises without end "
        "(docs/leaks.md says how this is decided).",
        VERDICTS,
        query(verdict(of, selector, by), legend),
    )


def floors() -> Panel:
    """Show what grows with its floor, and where it would be in an hour."""
    process = f"{LEGEND} {{{{process}}}} ({{{{pid}}}})"
    keys = "job, instance, gpu, uuid, pid, gpu_instance_id, compute_instance_id"
    pace = f"topk(5, gpuagent_process_memory_growth_bytes_per_second{{{GPU}}} > 0)"
    used = f"gpuagent_process_memory_used_bytes{{{GPU}}}"
    made = lines(
        "What grows: memory, floor and forecast",
        "The five processes that grow fastest: what they hold, the least that they held in the last 10 minutes "
        "(dashed), which is what a leak raises and a cache does not, and what they would hold in an hour at this pace "
        "(dotted).",
        "bytes",
        query(f"{used} and on ({keys}) {pace}", process),
        query(f"min_over_time({used}[10m]) and on ({keys}) {pace}", f"{process} floor"),
        query(f"{used} + on ({keys}) group_left () 3600 * ({pace})", f"{process} in an hour"),
        empty="No process grows, or no data: the detector needs minutes of history",
    )
    styled(made, "C", {"fill": "dot", "dash": [1, 5]})
    return dashed(made, "B")


def leaks() -> Iterator[Panel]:
    """Yield the panels of a node."""
    process = f"{LEGEND} {{{{process}}}} ({{{{pid}}}})"
    yield floors()
    yield verdicts("gpu", GPU, "instance, gpu", LEGEND)
    growth = lines(
        "Growth",
        "How fast the floor of the memory rises: the ten processes that grow fastest, and what grows on a GPU as "
        "a whole (dashed), be it of processes or of none. It takes minutes of history.",
        GIB_PER_HOUR_UNIT,
        query(f"topk(10, gpuagent_process_memory_growth_bytes_per_second{{{GPU}}} > 0){GIB_PER_HOUR}", process),
        query(f"gpuagent_gpu_memory_growth_bytes_per_second{{{GPU}}}{GIB_PER_HOUR}", f"{LEGEND} as a whole"),
        empty="No data: the detector needs minutes of history",
    )
    yield dashed(growth.decimals(1), "B")
    left = lines(
        "Time until a GPU is full",
        "At the present pace; half and one and a half times as long are likely too. A line that falls to 0 is a GPU "
        "whose next allocation fails. GPUs that will not fill up have no line.",
        "s",
        query(f"gpuagent_gpu_memory_exhaustion_seconds{{{GPU}}}", LEGEND),
        query(f"gpuagent_gpu_memory_fast_exhaustion_seconds{{{GPU}}}", f"{LEGEND} within minutes"),
        empty="No GPU fills up, or no data: the verdicts beside tell which",
    )
    # The line has the color of how little is left: by its name it would be green at any height.
    left.color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
    yield left.gradient_mode(common.GraphGradientMode.SCHEME).thresholds(steps((1800, AMBER), (14400, GREEN), base=RED))
