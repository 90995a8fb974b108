"""The processes on the page: who holds the memory, whether that grows, and when the GPU is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuagent.core.identity import format_container
from gpuagent.core.wording import full_in_words, growth_words, verdict_words
from gpuagent_exporters.page_html import (
    UNKNOWN,
    Document,
    attribute,
    chapter,
    duration,
    is_number,
    percent,
    size,
    text,
)

MOST = 1000
"""A browser redraws this table every few seconds; whoever has more processes wants the JSON."""

"""As `docker ps` and `crictl ps` show it."""


class _Column(NamedTuple):
    head: str
    cell: Callable[[Document], str]
    """As HTML."""
    figure: Callable[[Document], object] | None = None
    """What a column of numbers is sorted by; a column without it is sorted by its text."""
    kind: str = ""


def processes(found: Sequence[Document], *, hidden: bool) -> str:
    """The table. `hidden`: whoever looks must not see users and commands, so there are no columns for them."""
    if not found:
        return chapter("processes", "Processes", "<p>No process uses a GPU.</p>")
    columns = [column for column in _COLUMNS if not (hidden and column.head in _PRIVATE)]
    if not any(process.get("reserved_bytes") is not None for process in found):
        columns = [column for column in columns if column.head != "allocator"]
    heads = "".join(
        f'<th scope="col" data-sort class="{"number" if column.figure else ""}">{column.head}</th>'
        for column in columns
    )
    rows = "".join(_row(process, columns) for process in found[:MOST])
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    notes = []
    if len(found) > MOST:
        notes.append(f"{len(found) - MOST} more in /api/v1/processes")
    if hidden:
        notes.append("Users and commands are shown on loopback, or to who gives a password.")
    region = f'<div class="scroll" role="region" aria-label="Table of processes" tabindex="0">{table}</div>'
    return chapter("processes", "Processes", region + "".join(f'<p class="quiet">{note}</p>' for note in notes))


def _row(process: Document, columns: Sequence[_Column]) -> str:
    key = "/".join(str(process.get(part)) for part in ("gpu_uuid", "gpu", "gpu_instance_id", "pid"))
    return f'<tr data-key="{attribute(key)}">{"".join(_cell(process, column) for column in columns)}</tr>'


def _cell(process: Document, column: _Column) -> str:
    kind = f' class="{column.kind or "number"}"' if column.kind or column.figure else ""
    value = column.figure(process) if column.figure else None
    sort = f' data-value="{attribute(value)}"' if is_number(value) else ""
    return f"<td{kind}{sort}>{column.cell(process)}</td>"


def _name(process: Document) -> str:
    name, state = process.get("process") or UNKNOWN, process.get("state")
    if process.get("holder_unproven"):
        state = "unproven"
    return text(name if state in {None, "live"} else f"{name} ({state})")


def _allocator(process: Document) -> str:
    """What the allocator has reserved, and how much of that is in use."""
    if process.get("reserved_bytes") is None:
        return ""
    parts = [f"{size(process.get('allocated_bytes'))} of {size(process['reserved_bytes'])} reserved"]
    if is_number(process.get("cached_bytes")):
        parts.append(f"{size(process['cached_bytes'])} cached")
    if is_number(process.get("outside_bytes")):
        parts.append(f"{size(process['outside_bytes'])} outside")
    return ", ".join(parts)


def _verdict(process: Document) -> str:
    """With its evidence and its severity, in the words of every surface."""
    words = text(verdict_words(process)) or UNKNOWN
    severity = process.get("severity")
    return f"<b>{words}</b>" if severity in {"critical", "warning"} else words


def _full_in(process: Document) -> str:
    """With the range that the figure may lie in, where the detector tells one."""
    low, high = process.get("exhaustion_range_seconds") or (None, None)
    value = text(full_in_words(process)) or UNKNOWN
    if (
        process.get("fast_exhaustion_seconds") is not None
        or not is_number(low)
        or not process.get("exhaustion_seconds")
    ):
        return value
    # What may never come has no upper end.
    until = f"to {duration(high)}" if is_number(high) else "or later"
    return f'{value}<br><span class="quiet">{duration(low)} {until}</span>'


def _belongs(process: Document) -> str:
    """The nearest owner that a person can act on."""
    if process.get("slurm_job"):
        return f"job {text(process['slurm_job'])}"
    if process.get("pod"):
        return f"pod {text(process['pod'])}"
    if process.get("unit"):
        return text(process["unit"])
    if process.get("container_id"):
        named = process.get("container_name") or format_container(str(process["container_id"]))
        return f"container {text(named)}"
    return ""


_COLUMNS = (
    _Column("GPU", lambda process: text(process.get("gpu")), lambda process: process.get("gpu")),
    _Column("PID", lambda process: text(process.get("pid")), lambda process: process.get("pid")),
    _Column("process", _name),
    _Column("user", lambda process: text(process.get("user") or UNKNOWN)),
    _Column(
        "memory",
        lambda process: size(process.get("memory_used_bytes")),
        lambda process: process.get("memory_used_bytes"),
    ),
    _Column("allocator", _allocator, kind="detail"),
    _Column(
        "busy",
        lambda process: percent(process.get("sm_utilization_ratio")),
        lambda process: process.get("sm_utilization_ratio"),
    ),
    _Column(
        "growth",
        lambda process: text(growth_words(process)) or UNKNOWN,
        lambda process: process.get("growth_bytes_per_second"),
    ),
    _Column("verdict", _verdict),
    _Column("full in", _full_in, lambda process: process.get("exhaustion_seconds")),
    _Column("belongs to", _belongs, kind="owner"),
    _Column("command", lambda process: text(process.get("command")), kind="command"),
)
_PRIVATE = frozenset({"user", "command"})
