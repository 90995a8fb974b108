"""A table of GPU processes that fits the width it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from rich.cells import cell_len

from gpuagent.cli.cells import Paint, cut, fit
from gpuagent.core.identity import format_container
from gpuagent.core.units import GIB, format_bytes, format_duration, format_ratio
from gpuagent.core.wording import full_in_words, growth_words, verdict_words

_LEAST_WHO = 20
"""Cells for the last column, for which others may have to go."""
_QUIET = frozenset({"steady", "learning"})
"""Verdicts that are worth no word in a narrow table."""
_GROWS = frozenset({"leaking", "growing", "cached", "levelled off"})

Document = dict[str, Any]


class Column(NamedTuple):
    """One column. Numbers are never cut: there is room for the largest pid (4194304, and what is simulated above)."""

    head: str
    width: int
    cell: Callable[[Document], object]
    right: bool = True
    dispensable: int = 0
    """What goes first where there is no room has the highest number; 0 always stays."""


def process_table(processes: list[Document], width: int, paint: Paint) -> list[str]:
    """A heading and one line per process, of at most `width` cells. The last column takes what is left."""
    columns = _columns(processes)
    while _width(columns) > width - _LEAST_WHO and any(column.dispensable for column in columns):
        columns.remove(max(columns, key=lambda column: column.dispensable))
    head = _line(columns, [column.head for column in columns])
    lines = [paint(cut(f"{head}WHO", width), "dim")]
    for process in processes:
        left = _line(columns, [column.cell(process) for column in columns])
        lines.append(left + cut(who(process), width - cell_len(left)))
    return lines


def _columns(processes: list[Document]) -> list[Column]:
    """Those that have something to tell."""
    mig = any(process["gpu_instance_id"] is not None for process in processes)
    grows = any(process.get("verdict") in _GROWS for process in processes)
    apps = any(process.get("reserved_bytes") is not None for process in processes)
    return [
        Column("GPU", 7 if mig else 3, _gpu),
        Column("PID", 7, itemgetter("pid")),
        Column("USER", 9, lambda process: process["user"] or "-", right=False),
        Column("MEMORY", 10, _memory),
        *([Column("GROWTH", 13, _growth), Column("FULL IN", 11, _full_in)] if grows else ()),
        *([Column("TENSORS + CACHE", 15, _allocator, dispensable=1)] if apps else ()),
        Column("SM", 5, _sm, dispensable=3),
        Column("TYPE", 4, lambda process: process["kinds"] or "-", right=False, dispensable=4),
        Column("AGE", max((3, *(cell_len(_age(process)) for process in processes))), _age, dispensable=2),
    ]


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns) + 1


def _line(columns: Sequence[Column], cells: Sequence[object]) -> str:
    """With two blanks before the last column."""
    return (
        "".join(f"{fit(cell, column.width, right=column.right)} " for column, cell in zip(columns, cells, strict=True))
        + " "
    )


def who(process: Document) -> str:
    """The most telling name first: a state that matters, then job, pod, unit or container, then what runs."""
    if process["state"] == "dead":
        was = (owner(process), process["command"] or process["process"])
        return "  ".join(["DEAD, memory still held", *(part for part in was if part)])
    if process["state"] == "unresolved":
        return "in another pid namespace"
    state = {"Z": "ZOMBIE", "D": "STUCK (D)"}.get(process["process_state"], "")
    takes = "preallocates" if process.get("preallocates") else ""
    parts = (state, _verdict(process), owner(process), takes, process["command"] or process["process"] or "?")
    return "  ".join(part for part in parts if part)


def owner(process: Document) -> str:
    """What the process belongs to: the name under which somebody can be asked, or something be restarted."""
    if process["slurm_job"]:
        return f"job {process['slurm_job']}"
    if process["pod"]:
        return f"{process['namespace']}/{process['pod']}"
    if process["pod_uid"]:
        return f"pod {process['pod_uid'][:8]}"
    if process["unit"]:
        return str(process["unit"])
    if process["container_id"]:
        named = process.get("container_name") or format_container(process["container_id"])
        return f"{process['container_runtime'] or 'container'} {named}"
    return ""


def _gpu(process: Document) -> str:
    instance, compute = process["gpu_instance_id"], process["compute_instance_id"]
    if instance is None:
        return str(process["gpu"])
    return f"{process['gpu']}:{instance}" + ("" if compute is None else f"/{compute}")


def _memory(process: Document) -> str:
    used = process["memory_used_bytes"]
    return "-" if used is None else format_bytes(used)


def _allocator(process: Document) -> str:
    """What tensors hold, and what torch's allocator keeps beyond that, in GiB: the latter can be given back."""
    allocated, cached = process.get("allocated_bytes"), process.get("cached_bytes")
    return "-" if allocated is None or cached is None else f"{allocated / GIB:.1f} + {cached / GIB:.1f}"


def _growth(process: Document) -> str:
    return growth_words(process) or "-"


def _full_in(process: Document) -> str:
    return full_in_words(process) or "-"


def _verdict(process: Document) -> str:
    """What there is to say of its memory's history; most often nothing."""
    return "" if process.get("verdict") in {None, *_QUIET} else verdict_words(process)


def _sm(process: Document) -> str:
    ratio = process["sm_utilization_ratio"]
    return "-" if ratio is None else format_ratio(ratio)


def _age(process: Document) -> str:
    seconds = process["age_seconds"]
    return "-" if seconds is None else format_duration(int(seconds))
