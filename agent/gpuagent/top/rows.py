"""Which processes are shown, and in which order: filter, sort and tree. Pure, so that a test can play it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuagent.core.process_filter import FIELDS, matches
from gpuagent.core.units import format_bytes
from gpuagent.top.columns import BY_KEY

Document = dict[str, Any]

TREES = ("", "unit", "job", "container", "user", "gpu")
"""By what the processes are grouped, in the order in which the key goes through them; "" is a flat list."""


@dataclass(frozen=True, slots=True)
class TableView:
    """How a person wants the processes."""

    sort: str = "memory"
    descending: bool = True
    filter: str = ""
    tree: str = ""


class Row(NamedTuple):
    """A process, or the head of a group of them."""

    process: Document | None
    head: str = ""
    key: tuple[Any, ...] = ()
    """What stays the same from one reading to the next: the cursor follows it."""


def row_key(process: Document) -> tuple[Any, ...]:
    """Return what names a row from one reading to the next."""
    return (process["gpu_uuid"], process["pid"], process.get("gpu_instance_id"))


def ordered(processes: Sequence[Document], view: TableView) -> list[Document]:
    """Return those that match, in the order of a column; what has no value there comes last."""
    value = BY_KEY[view.sort].sort_value if view.sort in BY_KEY else BY_KEY["memory"].sort_value
    shown = [process for process in processes if matches(process, view.filter)] if view.filter else list(processes)
    known = [process for process in shown if value(process) is not None]
    missing = [process for process in shown if value(process) is None]
    known.sort(key=lambda process: (-(process["memory_used_bytes"] or 0), process["pid"], process["gpu"]))
    known.sort(key=value, reverse=view.descending)
    return known + missing


def rows(processes: Sequence[Document], view: TableView) -> list[Row]:
    """Return the lines of the table: processes, below heads where they are grouped."""
    shown = ordered(processes, view)
    if not view.tree:
        return [Row(process, key=row_key(process)) for process in shown]
    return list(_grouped(shown, view.tree))


def _grouped(shown: Sequence[Document], tree: str) -> Iterator[Row]:
    """Yield groups in the order of their first process, those that belong to none last."""
    groups: dict[str, list[Document]] = {}
    for process in shown:
        groups.setdefault(FIELDS[tree](process), []).append(process)
    for name in sorted(groups, key=lambda name: not name):
        members = groups[name]
        held = sum(process.get("memory_used_bytes") or 0 for process in members)
        gpus = sorted({process["gpu"] for process in members})
        place = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
        number = f"{len(members)} process{'' if len(members) == 1 else 'es'}"
        title = f"GPU {name}" if tree == "gpu" else f"{tree} {name}" if name else f"no {tree}"
        yield Row(
            None, f"{title}  {number}, {format_bytes(held)}" + ("" if tree == "gpu" else f", {place}"), (tree, name)
        )
        for process in members:
            yield Row(process, key=row_key(process))
