"""What a person sees before they say yes: enough to recognise each process, and who else is on its GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuagent.cli.cells import clean, cut, wrap
from gpuagent.cli.identified import Chosen
from gpuagent.growth_words import assessment_words
from gpuagent.naming import format_container
from gpuagent.units import format_bytes, format_duration

Document = dict[str, Any]

_MOST_OTHERS = 8
_LABEL = 11
_MOST_LINES = 4
_WORTH_A_LINE = frozenset({"leaking", "growing", "cached", "levelled off"})


def question(chosen: Sequence[Chosen], document: Document, width: int, *, restart_unit: bool = False) -> list[str]:
    """Return the lines above the question, each at most `width` cells."""
    rows = list(document.get("processes", ()))
    lines = []
    for each in chosen:
        lines.extend(card(each, rows, width, restart_unit=restart_unit))
    if document.get("stale"):
        lines.extend(wrap(f"STALE: read {format_duration(document.get('age_seconds') or 0.0)} ago.", width))
    lines.extend(others_on(chosen, rows, width, restart_unit=restart_unit))
    if document.get("agent", {}).get("dry_run"):
        lines.extend(wrap("remedies.dry_run holds for rules; this is by hand: it acts.", width))
    return lines


def card(chosen: Chosen, rows: Sequence[Document], width: int, *, restart_unit: bool = False) -> list[str]:
    """Return what tells this process from the others on the node, a fact a line."""
    row = chosen.first
    lines = [cut(f"pid {chosen.pid}: {_name(row)} of {_user(row)}", width)]
    for label, text in _facts(chosen, rows, restart_unit=restart_unit):
        pieces = _shortened(wrap(text, width - _LABEL))
        lines.extend(f"{label if not index else '':>{_LABEL - 1}} {piece}" for index, piece in enumerate(pieces))
    return lines


def others_on(
    chosen: Sequence[Chosen], rows: Sequence[Document], width: int, *, restart_unit: bool = False
) -> list[str]:
    """Return a line for each other process on the GPUs of the chosen ones, the largest first, at most eight.

    Those of a unit that is restarted end with it, on whichever GPU they are: all of them are shown.
    """
    units = {each.first.get("unit") for each in chosen if each.first.get("unit")} if restart_unit else set()
    chosen_pids = {each.pid for each in chosen}
    fall = [row for row in rows if row.get("unit") in units and row.get("pid") not in chosen_pids]
    rows = [row for row in rows if row not in fall]
    lines = [cut("In the same unit, and restarted with it:", width)] if fall else []
    lines += [_other(row, width, where=f"GPU {row.get('gpu')}  ") for row in fall]
    return [*lines, *_left_alone(chosen, rows, width)]


def _other(row: Document, width: int, *, where: str = "") -> str:
    return cut(f"  {where}pid {row.get('pid')}  {_user(row)}  {_memory(row)}  {_name(row)}", width)


def _left_alone(chosen: Sequence[Chosen], rows: Sequence[Document], width: int) -> list[str]:
    gpus = {row.get("gpu_uuid") for each in chosen for row in each.rows}
    pids = {each.pid for each in chosen}
    others = [row for row in rows if row.get("gpu_uuid") in gpus and row.get("pid") not in pids]
    names = ", ".join(str(index) for index in sorted({row.get("gpu", 0) for each in chosen for row in each.rows}))
    if not others:
        return [cut(f"Nothing else runs on GPU {names}.", width)]
    others.sort(key=lambda row: -(row.get("memory_used_bytes") or 0))
    lines = [cut(f"Also on GPU {names}, and left alone:", width)]
    for row in others[:_MOST_OTHERS]:
        where = f"GPU {row.get('gpu')}  " if len(gpus) > 1 else ""
        lines.append(_other(row, width, where=where))
    if len(others) > _MOST_OTHERS:
        lines.append(f"  and {len(others) - _MOST_OTHERS} more")
    return lines


def _facts(chosen: Chosen, rows: Sequence[Document], *, restart_unit: bool) -> Iterator[tuple[str, str]]:
    row = chosen.first
    yield "command", row.get("command") or "(not known)"
    if row.get("unit"):
        yield "unit", f"{row['unit']}{', all of which is restarted' if restart_unit else ''}"
    if row.get("container_id"):
        name, short = row.get("container_name"), format_container(row["container_id"])
        yield "container", f"{name} ({short})" if name else short
    if row.get("slurm_job"):
        yield "job", f"Slurm {row['slurm_job']}"
    yield "holds", ", ".join(f"{_memory(each)} on GPU {each.get('gpu')}" for each in chosen.rows)
    age = row.get("age_seconds")
    yield "started", f"{format_duration(age)} ago" if age is not None else "at an unknown time"
    parent = next((each for each in rows if each.get("pid") == row.get("parent_pid")), None)
    if parent is not None:
        yield "parent", f"pid {parent['pid']} ({_name(parent)} of {_user(parent)}), which is on GPU {parent.get('gpu')}"
    if row.get("verdict") in _WORTH_A_LINE:
        yield "leak", _leak(row)
    for number, text in enumerate(chosen.end_lines):
        yield "" if number else "ends too", text


def _shortened(lines: list[str]) -> list[str]:
    """A command line may be of any length: its beginning and its end tell more than its middle."""
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[: _MOST_LINES - 2], "...", lines[-1]]


def _leak(row: Document) -> str:
    return assessment_words(row)


def _name(row: Document) -> str:
    return clean(row.get("process") or "?")


def _user(row: Document) -> str:
    return clean(row.get("user") or "an unknown user")


def _memory(row: Document) -> str:
    held = row.get("memory_used_bytes")
    return format_bytes(held) if held is not None else "an unknown amount"
