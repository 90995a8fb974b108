"""`gpuagent usage`: who has held the GPUs, for how long, and what they did with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import typer
from rich.cells import cell_len

from gpuagent.cli.agent import Refused, Socket, Url, answer_of, tell
from gpuagent.cli.cells import UNCUT_WIDTH, Paint, cut, fit, width_of
from gpuagent.core.api_client import DEFAULT_URL
from gpuagent.core.units import parse_duration
from gpuagent.core.usage import LONGEST_SUMMARY_SECONDS
from gpuagent_alerts.usage.report import cost, energy, hours, idle_ratio, memory_hours, name_of
from gpuagent_alerts.usage.summary import GroupBy

Document = dict[str, Any]
_LEAST_NAME = 12


def usage(
    by: Annotated[GroupBy, typer.Option(help="Sum up by this")] = GroupBy.USER,
    since: Annotated[str, typer.Option(metavar="DURATION", help="Look back this far, by whole days (UTC)")] = "7d",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="Configuration, for the table of an agent that is not running")
    ] = None,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Show who has used the GPUs: time held, used and idle, memory, energy, and cost if a price is configured.

    A second of a GPU is split among the processes on it by their memory. IDLE is the part of the observed time at 0 %;
    time in which nobody could see whether a process worked is neither used nor idle. The lines add up to all the time
    of all GPUs.

    Where no agent answers, the daily table of this node is read as it was written last.

    Exit status: 0 shown, 1 neither the agent nor its table can be read.
    """
    try:
        seconds = parse_duration(since)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    if not 0 < seconds <= LONGEST_SUMMARY_SECONDS:
        raise typer.BadParameter("must be above 0, and at most 400d", param_hint="--since")
    document = _ask(f"/api/v1/usage?by={by}&since={quote(since)}", by, seconds, config, socket, url)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    width = width_of(sys.stdout) if sys.stdout.isatty() else UNCUT_WIDTH
    for line in lines_of(document, width, paint):
        typer.echo(paint.text(line.rstrip()))


def _ask(path: str, by: GroupBy, seconds: float, config: Path | None, socket: Path | None, url: str | None) -> Document:
    """Return what an agent tells, else what the table of this node holds; end with status 1 where there is neither."""
    named = socket is not None or url is not None
    places: list[Path | str | None] = [url or socket] if named else [None, DEFAULT_URL]
    reasons = []
    for place in [] if config is not None else places:
        try:
            return answer_of("GET", path, place)
        except Refused as error:
            reasons.append(str(error))
            if error.heard:
                break
    if not named:
        from gpuagent.service.usage import NoTable, read_stored_usage

        try:
            document = read_stored_usage(config, by, seconds)
        except NoTable as error:
            reasons.append(str(error))
        else:
            tell("No agent was asked: showing the table as it was written last.")
            return document
    typer.echo("\n".join(reasons[:1] + reasons[2:]) if not named else reasons[0], err=True)
    raise typer.Exit(1)


class _Column(NamedTuple):
    head: str
    width: int
    cell: Callable[[Document], str]
    dispensable: int = 0
    """What goes first where there is no room has the highest number; 0 always stays."""


def lines_of(document: Document, width: int, paint: Paint) -> list[str]:
    """Return the heading, a line for each holder, and the sum."""
    lines = []
    if document["simulated"]:
        lines.append(paint(f"SIMULATED: scenario {document['simulated']}, no real GPU", "warning"))
    rows = document["usage"]
    if not rows:
        return [*lines, f"Nothing was recorded since {document['since']}."]
    columns = [column for column in _COLUMNS if any(column.cell(row) != "-" for row in rows)]
    while _width(columns) > width - _LEAST_NAME and any(column.dispensable for column in columns):
        columns.remove(max(columns, key=lambda column: column.dispensable))
    name_width = max(_LEAST_NAME, *(cell_len(_name(row, document["by"])) for row in rows))
    name_width = min(name_width, width - _width(columns))
    head = f"{document['by'].upper():<{name_width}}" + "".join(f" {column.head:>{column.width}}" for column in columns)
    lines.append(f"{document['node'] or 'This node'} since {document['since']} 00:00 UTC{_price_words(document)}")
    lines += ["", paint(cut(head, width), "dim")]
    for row in (*rows, document["total"] | {"kind": "", "name": "total"}):
        cells = "".join(" " + fit(column.cell(row), column.width, right=True) for column in columns)
        line = fit(_name(row, document["by"]), name_width) + cells
        lines.append(line if row["kind"] else paint(line, "bold"))
    return lines


def _width(columns: list[_Column]) -> int:
    return sum(column.width + 1 for column in columns)


def _price_words(document: Document) -> str:
    price = document["price_per_gpu_hour"]
    return "" if price is None else f", {price:g} {document['currency']} per GPU hour"


def _name(row: Document, by: str) -> str:
    return name_of(row, by) if row["kind"] else str(row["name"])


_COLUMNS = (
    _Column("GPU TIME", 10, lambda row: hours(row["held_seconds"])),
    _Column("USED", 10, lambda row: hours(row["busy_seconds"])),
    _Column("IDLE", 10, lambda row: hours(row["idle_seconds"])),
    _Column("IDLE %", 6, idle_ratio, dispensable=3),
    _Column("MEMORY", 12, lambda row: memory_hours(row["memory_byte_seconds"]), dispensable=2),
    _Column("UNTOUCHED", 12, lambda row: memory_hours(row["untouched_memory_byte_seconds"]), dispensable=4),
    _Column("ENERGY", 11, energy, dispensable=1),
    _Column("COST", 11, cost),
)
