"""A table of GPU processes that fits the width it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from rich.cells import cell_len

from gpuagent.cli.cells import Paint, cut, fit
from gpuagent.naming import format_container
from gpuagent.units import GIB

_LEAST_WHO = 20
"""Cells for the last column, for which others may have to go."""
_VERDICTS = {
    "leaking": "LEAKS",
    "growing": "grows",
    "cached": "cached, not leaked",
    "levelled off": "levelled off",
}
_GROWS = frozenset(_VERDICTS)

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
        *([Column("GROWTH", 11, growth), Column("FULL IN", 7, _full_in)] if grows else ()),
        *([Column("TENSORS + CACHE", 15, _allocator, dispensable=1)] if apps else ()),
        Column("SM", 4, _sm, dispensable=3),
        Column("TYPE", 4, lambda process: process["kinds"] or "-", right=False, dispensable=4),
        Column("AGE", 6, lambda process: _age(process["age_seconds"]), dispensable=2),
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
    """At most ten cells up to 256 TiB: the larger, the fewer decimals."""
    used = process["memory_used_bytes"]
    if used is None:
        return "-"
    gib = used / GIB
    decimals = 2 if gib < 999.995 else 1 if gib < 9999.95 else 0
    return f"{gib:.{decimals}f} GiB"


def _allocator(process: Document) -> str:
    """What tensors hold, and what torch's allocator keeps beyond that, in GiB: the latter can be given back."""
    allocated, cached = process.get("allocated_bytes"), process.get("cached_bytes")
    return "-" if allocated is None or cached is None else f"{allocated / GIB:.1f} + {cached / GIB:.1f}"


def growth(part: Document) -> str:
    """Of a process or a GPU, at most eleven cells: `+1.2 GiB/h`; `-` where nothing is known.

    >>> growth({"growth_bytes_per_second": 350_000}), growth({"growth_bytes_per_second": None})
    ('+1.2 GiB/h', '-')
    """
    slope = part.get("growth_bytes_per_second")
    return "-" if slope is None else f"+{_short(max(0.0, slope) * 3600)}/h"


def _short(count: float) -> str:
    """Three digits at the most, and a decimal where there is room.

    >>> _short(0), _short(1.5 * 1024**2), _short(1023.9 * 1024**3)
    ('0 B', '1.5 MiB', '1.0 TiB')
    """
    value, units = count, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if value >= 99.95 or units[0] == "B" else f"{value:.1f} {units[0]}"


def _full_in(process: Document) -> str:
    """Until the GPU is full: of what leaks or fills it, and of nothing else."""
    fast = process.get("fast_exhaustion_seconds")
    return _age(process.get("exhaustion_seconds") if fast is None else fast)


def _verdict(process: Document) -> str:
    """What there is to say of its memory's history; most often nothing."""
    if process.get("fast_exhaustion_seconds") is not None:
        return "FILLS THE GPU"
    return _VERDICTS.get(process.get("verdict") or "", "")


def _sm(process: Document) -> str:
    ratio = process["sm_utilization_ratio"]
    return "-" if ratio is None else f"{ratio * 100:.0f}%"


def _age(seconds: float | None) -> str:
    """At most six cells, and the precision that is of interest at that age.

    >>> _age(None), _age(59), _age(8040), _age(86_400 * 9 + 7200), _age(86_400 * 400)
    ('-', '59s', '2h14m', '9d2h', '400d')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest}s" if minutes else f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if days < 100 else f"{days}d"
