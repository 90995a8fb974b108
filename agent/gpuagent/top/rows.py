"""Which processes are shown, and in which order: filter, sort and tree. Pure, so that a test can play it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuagent.cli.ps import owner
from gpuagent.core.units import format_bytes
from gpuagent.top.columns import BY_KEY, container_of

Document = dict[str, Any]

TREES = ("", "unit", "job", "container", "user", "gpu")
"""By what the processes are grouped, in the order in which the key goes through them; "" is a flat list."""
_FIELDS: dict[str, Callable[[Document], str]] = {
    "gpu": lambda process: str(process["gpu"]),
    "pid": lambda process: str(process["pid"]),
    "user": lambda process: str(process.get("user") or ""),
    "unit": lambda process: str(process.get("unit") or ""),
    "job": lambda process: str(process.get("slurm_job") or ""),
    "container": container_of,
    "verdict": lambda process: str(process.get("verdict") or ""),
    "name": lambda process: str(process.get("process") or ""),
}
_EXACT = frozenset({"gpu", "pid", "job"})


@dataclass(frozen=True, slots=True)
class View:
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


def matches(process: Document, text: str) -> bool:
    """Return whether a process has every word of a filter: `user:alice` in this field, `train` anywhere.

    >>> one = {"gpu": 0, "pid": 7, "user": "alice", "command": "train.py", "process": "python3"}
    >>> matches(one, "user:ali TRAIN"), matches(one, "gpu:1"), matches(one, "")
    (True, False, True)
    """
    return all(_matches_word(process, word) for word in text.lower().split())


def _matches_word(process: Document, word: str) -> bool:
    name, colon, wanted = word.partition(":")
    if colon and name in _FIELDS:
        value = _FIELDS[name](process).lower()
        return value == wanted if name in _EXACT and wanted else wanted in value
    texts = [read(process) for name, read in _FIELDS.items() if name != "gpu"]
    texts += [str(process.get("command") or ""), owner(process) if "slurm_job" in process else ""]
    return any(word in text.lower() for text in texts)


def ordered(processes: Sequence[Document], view: View) -> list[Document]:
    """Return those that match, in the order of a column; what has no value there comes last."""
    value = BY_KEY[view.sort].sort_value if view.sort in BY_KEY else BY_KEY["memory"].sort_value
    shown = [process for process in processes if matches(process, view.filter)] if view.filter else list(processes)
    known = [process for process in shown if value(process) is not None]
    missing = [process for process in shown if value(process) is None]
    known.sort(key=lambda process: (-(process["memory_used_bytes"] or 0), process["pid"], process["gpu"]))
    known.sort(key=value, reverse=view.descending)
    return known + missing


def rows(processes: Sequence[Document], view: View) -> list[Row]:
    """Return the lines of the table: processes, below heads where they are grouped."""
    shown = ordered(processes, view)
    if not view.tree:
        return [Row(process, key=row_key(process)) for process in shown]
    return list(_grouped(shown, view.tree))


def _grouped(shown: Sequence[Document], tree: str) -> Iterator[Row]:
    """Yield groups in the order of their first process, those that belong to none last."""
    groups: dict[str, list[Document]] = {}
    for process in shown:
        groups.setdefault(_FIELDS[tree](process), []).append(process)
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
