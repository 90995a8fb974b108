"""The table of processes on the page: filtered, sorted and cut as the address says, so that it works without a script.

The columns that matter come first: on a phone nobody sees the others without scrolling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuagent.core.process_filter import matches, owner
from gpuagent.core.wording import alone_words, full_in_words, growth_words, unmeasured_words, verdict_words
from gpuagent_exporters.page.headline import severity_rank
from gpuagent_exporters.page.html import (
    UNKNOWN,
    Document,
    attribute,
    chapter,
    count,
    duration,
    is_number,
    percent,
    size,
    text,
)
from gpuagent_exporters.page.view import PageQuery, filter_words

FIRST = 20
"""Processes that are shown before somebody asks for all."""
MOST = 1000
"""A browser redraws this table every few seconds; whoever has more processes wants the JSON."""

Colors = Mapping[tuple[str, int], int]


class _Column(NamedTuple):
    key: str
    """Name in the address, as it is sorted by."""
    head: str
    cell: Callable[[Document], str]
    """As HTML."""
    value: Callable[[Document], Any]
    """What it is sorted by; None is last, whichever way."""
    is_figure: bool = False
    """The largest comes first, when it is chosen."""
    kind: str = ""


def processes(
    found: Sequence[Document],
    *,
    hidden: bool,
    known: Document | None = None,
    view: PageQuery | None = None,
    colors: Colors | None = None,
) -> str:
    """Render the table. `hidden`: whoever looks must not see users and commands, so there are no columns for them.

    `known` are the processes of GPUs that are not measured now, told with that mark. `colors` are those of the charts.
    """
    view, colors = view or PageQuery(), colors or {}
    mark = f"<p>{text(unmeasured_words(known))}</p>" if known is not None else ""
    last = list(known["processes"]) if known is not None else []
    if not found and not mark:
        return chapter("processes", "Processes", "<p>No process uses a GPU.</p>")
    body = _table(found, view, colors, "Table of processes", hidden=hidden) if found else ""
    if last:
        past = [{**one, "sm_utilization_ratio": None} for one in last]  # how busy it was then says nothing of now
        table = _table(past, view, colors, "Processes last known", hidden=hidden)
        body += f'<div class="past">{mark}{table}</div>'
    else:
        body += mark
    if hidden:
        body += '<p class="quiet">Users and commands are shown on loopback, or to who gives a password.</p>'
    return chapter("processes", "Processes", body, '<div id="filter" class="filter" data-keep></div>')


def ordered(found: Sequence[Document], view: PageQuery) -> list[Document]:
    """Return those that match the filter, in the order that is asked for."""
    shown = [one for one in found if matches(one, view.filter)] if view.filter else list(found)
    shown.sort(key=lambda one: (severity_rank(one.get("severity")), -(one.get("memory_used_bytes") or 0)))
    column = next((each for each in _COLUMNS if each.key == view.sort), None)
    if column is None:
        return shown
    valued = [(column.value(one), one) for one in shown]
    told = [each for each in valued if each[0] is not None and each[0] != ""]
    told.sort(key=lambda each: each[0], reverse=not view.ascending if column.is_figure else view.ascending)
    return [one for _, one in told] + [one for value, one in valued if value is None or value == ""]


def _table(found: Sequence[Document], view: PageQuery, colors: Colors, title: str, *, hidden: bool) -> str:
    columns = [column for column in _COLUMNS if not (hidden and column.key in _PRIVATE)]
    if not any(process.get("reserved_bytes") is not None for process in found):
        columns = [column for column in columns if column.key != "allocator"]
    shown = ordered(found, view)
    most = MOST if view.all else FIRST
    heads = "".join(_head(column, view) for column in columns)
    rows = "".join(_row(process, columns, colors) for process in shown[:most])
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    region = f'<div class="scroll" role="region" aria-label="{title}" tabindex="0">{table}</div>'
    return f'<p class="quiet">{_shown_words(len(found), len(shown), most, view)}</p>{region}'


def _shown_words(many: int, matching: int, most: int, view: PageQuery) -> str:
    """Say how many there are and how many of them are shown, with the way to the others."""
    parts = [filter_words(view)] if view.filter else []
    whole = f"{matching} of {count(many, 'process')}" if view.filter else count(many, "process")
    if matching > most:
        parts.insert(0, f"{most} of {whole}")
        if not view.all:
            parts.append(f'<a href="{view.link("#processes", all=True)}" data-view>show all</a>')
        if matching > MOST:
            parts.append(f"{matching - MOST} more in /api/v1/processes")
    else:
        parts.insert(0, whole)
        if view.all and matching > FIRST:
            parts.append(f'<a href="{view.link("#processes", all=False)}" data-view>show {FIRST}</a>')
    return " · ".join(filter(None, parts))


def _head(column: _Column, view: PageQuery) -> str:
    """Render a column's head: a link that sorts by it, and then the other way round."""
    chosen = column.key == view.sort
    descends = column.is_figure != view.ascending
    sorted_as = f' aria-sort="{"descending" if descends else "ascending"}"' if chosen else ""
    link = view.link("#processes", sort=column.key, ascending=chosen and not view.ascending)
    kind = ' class="number"' if column.is_figure else ""
    return f'<th scope="col" data-key="{column.key}"{kind}{sorted_as}><a href="{link}" data-view>{column.head}</a></th>'


def _row(process: Document, columns: Sequence[_Column], colors: Colors) -> str:
    key = "/".join(str(process.get(part)) for part in ("gpu_uuid", "gpu", "gpu_instance_id", "pid"))
    color = colors.get((str(process.get("gpu_uuid")), int(process.get("pid") or 0)) if _has_pid(process) else ("", 0))
    severity = process.get("severity")
    kinds = [f"c{color}" if color is not None else "", str(severity) if severity_rank(severity) < 2 else ""]
    kind = " ".join(filter(None, kinds))
    return (
        f'<tr data-key="{attribute(key)}"{f""" class="{kind}" """.rstrip() if kind else ""}>'
        f"{''.join(_cell(process, column) for column in columns)}</tr>"
    )


def _has_pid(process: Document) -> bool:
    return isinstance(process.get("pid"), int)


def _cell(process: Document, column: _Column) -> str:
    kind = f' class="{column.kind or "number"}"' if column.kind or column.is_figure else ""
    return f"<td{kind}>{column.cell(process)}</td>"


def _name(process: Document) -> str:
    name, state = process.get("process") or UNKNOWN, process.get("state")
    if process.get("holder_unproven"):
        state = "unproven"
    return text(name if state in {None, "live"} else f"{name} ({state})")


def _allocator(process: Document) -> str:
    """Render what the allocator has reserved, and how much of that is in use."""
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
    return f"<b>{words}</b>" if severity_rank(process.get("severity")) < 2 else words


def _full_in(process: Document) -> str:
    """With the range that the figure may lie in, where the detector tells one."""
    low, high = process.get("exhaustion_range_seconds") or (None, None)
    value = text(full_in_words(process)) or UNKNOWN
    if alone := alone_words(process):  # the figure is its GPU's, and so is no range of its own
        return f'{value}<br><span class="quiet">{text(alone)}</span>'
    if (
        process.get("fast_exhaustion_seconds") is not None
        or not is_number(low)
        or not process.get("exhaustion_seconds")
        or value.startswith("about")  # it is a range
    ):
        return value
    # What may never come has no upper end.
    until = f"to {duration(high)}" if is_number(high) else "or later"
    return f'{value}<br><span class="quiet">{duration(low)} {until}</span>'


def _growth(process: Document) -> str:
    return text(growth_words(process)) or UNKNOWN


def _figure(key: str) -> Callable[[Document], Any]:
    """Return what reads a figure to sort by: None where there is none."""

    def read(process: Document) -> float | None:
        value = process.get(key)
        return value if is_number(value) else None

    return read


def _word(key: str) -> Callable[[Document], str]:
    return lambda process: str(process.get(key) or "").lower()


def _soonest(process: Document) -> float | None:
    """Return what sorts the GPU that is full soonest first, as the largest figure comes first."""
    left = process.get("gpu_exhaustion_seconds", process.get("exhaustion_seconds"))
    return -left if is_number(left) else None


_COLUMNS = (
    _Column("process", "process", _name, _word("process"), kind="name"),
    _Column("memory", "memory", lambda one: size(one.get("memory_used_bytes")), _figure("memory_used_bytes"), True),
    _Column("full", "full in", _full_in, _soonest, True, kind="number"),
    _Column("verdict", "verdict", _verdict, _word("verdict"), kind="says"),
    _Column(
        "growth", "growth", lambda one: text(growth_words(one)) or UNKNOWN, _figure("growth_bytes_per_second"), True
    ),
    _Column("gpu", "GPU", lambda one: text(one.get("gpu")), lambda one: -one["gpu"] if _is_index(one) else None, True),
    _Column("pid", "PID", lambda one: text(one.get("pid")), _figure("pid"), True),
    _Column("user", "user", lambda one: text(one.get("user") or UNKNOWN), _word("user"), kind="user"),
    _Column(
        "busy", "busy", lambda one: percent(one.get("sm_utilization_ratio")), _figure("sm_utilization_ratio"), True
    ),
    _Column("allocator", "allocator", _allocator, _figure("reserved_bytes"), True, kind="detail"),
    _Column("belongs", "belongs to", lambda one: text(owner(one)), lambda one: owner(one).lower(), kind="owner"),
    _Column("command", "command", lambda one: text(one.get("command")), _word("command"), kind="command"),
)
_PRIVATE = frozenset({"user", "command"})


def _is_index(process: Document) -> bool:
    return isinstance(process.get("gpu"), int)
