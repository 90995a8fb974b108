"""The usage of a week as a text that is sent to people: Markdown or HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from gpuagent.core.units import GIB, format_ratio
from gpuagent.core.usage import HolderKind
from gpuagent_alerts.usage.summary import GroupBy

Document = Mapping[str, Any]
_HOUR = 3600.0
_JOULES_PER_KWH = 3.6e6
OTHERS = {
    HolderKind.OTHER: "(others)",
    HolderKind.UNKNOWN: "(unknown)",
    HolderKind.NONE: "(free)",
    HolderKind.UNOBSERVED: "(not observed)",
}
"""Names of what is no holder."""
_MOST_LINES = 50


def name_of(row: Document, by: str) -> str:
    """Return the name of a line of a usage document."""
    if row["kind"] == HolderKind.PROCESSES:
        return str(row["name"]) or f"(no {by})"
    return OTHERS[HolderKind(row["kind"])]


def hours(seconds: float) -> str:
    """Return `0.25 h`, `1,234.5 h`, or `-` for none."""
    amount = seconds / _HOUR
    return (f"{amount:,.1f} h" if amount >= 10 else f"{amount:.2f} h") if seconds else "-"


def memory_hours(byte_seconds: float | None) -> str:
    """Return `54 GiB h`; `-` for none."""
    return f"{byte_seconds / GIB / _HOUR:,.0f} GiB h" if byte_seconds else "-"


def idle_ratio(row: Document) -> str:
    """Return the part of the observed time in which it was idle; `-` where it never was."""
    return format_ratio(row["idle_seconds"] / row["observed_seconds"]) if row["idle_seconds"] else "-"


def energy(row: Document) -> str:
    """Return `0.38 kWh`; `-` where it is not known."""
    joules = row["energy_joules"]
    return f"{joules / _JOULES_PER_KWH:,.2f} kWh" if joules else "-"


def cost(row: Document) -> str:
    """Return an amount of money without its currency; `-` without a price."""
    amount = row["cost"]
    return "-" if amount is None else f"{amount:,.2f}"


_CELLS: Sequence[tuple[str, Callable[[Document], str]]] = (
    ("GPU time", lambda row: hours(row["held_seconds"])),
    ("used", lambda row: hours(row["busy_seconds"])),
    ("idle", lambda row: hours(row["idle_seconds"])),
    ("idle %", idle_ratio),
    ("memory", lambda row: memory_hours(row["memory_byte_seconds"])),
    ("energy", energy),
)


def report_title(document: Document, until_day: str) -> str:
    """Return `GPU usage of node7 by user, 2026-11-16 to 2026-11-22`."""
    made_up = "SIMULATED " if document["simulated"] else ""
    by = "Slurm job" if document["by"] == GroupBy.JOB else document["by"]
    return f"{made_up}GPU usage of {document['node']} by {by}, {document['since']} to {until_day}"


def _table(document: Document) -> list[list[str]]:
    """Return the rows of the table, its heading first and the sum last."""
    cells = [*_CELLS, (f"cost ({document['currency']})", cost)] if document["currency"] else [*_CELLS]
    rows = document["usage"]
    lines = [[name_of(row, document["by"]), *(cell(row) for _, cell in cells)] for row in rows[:_MOST_LINES]]
    if len(rows) > _MOST_LINES:
        lines.append([f"+{len(rows) - _MOST_LINES} more", *("" for _ in cells)])
    total = ["total", *(cell(document["total"]) for _, cell in cells)]
    return [[document["by"], *(head for head, _ in cells)], *lines, total]


def markdown(document: Document, title: str) -> str:
    """Return the report as Markdown."""
    head, *lines = _table(document)
    rows = [head, ["---", *("---:" for _ in head[1:])], *lines]
    return "\n".join([f"## {_in_markdown(title)}", "", *(_markdown_row(row) for row in rows), "", _EXPLANATION, ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_in_markdown(cell) if cell.strip('-:') else cell for cell in cells)} |"


def _in_markdown(text: str) -> str:
    """Return text that is nothing but text: names are chosen by users."""
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return "".join(f"\\{character}" if character in "\\`*_[]<>|#&!~" else character for character in plain)


def html(document: Document, title: str) -> str:
    """Return the report as HTML, for mail."""
    head, *lines = _table(document)
    cell = 'style="padding:2px 10px 2px 0;text-align:{}"'
    left, right = cell.format("left"), cell.format("right")

    def row(cells: Sequence[str], tag: str) -> str:
        first, *rest = (escape(each) for each in cells)
        return f"<tr><{tag} {left}>{first}</{tag}>{''.join(f'<{tag} {right}>{each}</{tag}>' for each in rest)}</tr>"

    body = "".join([row(head, "th"), *(row(line, "td") for line in lines)])
    return f"<h2>{escape(title)}</h2><table>{body}</table><p>{escape(_EXPLANATION)}</p>"


_EXPLANATION = (
    "A second of a GPU is split among the processes on it by their memory. Idle is time observed at 0 %; time in which "
    "nobody could see whether a process worked is neither used nor idle."
)
