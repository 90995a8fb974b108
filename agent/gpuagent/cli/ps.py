"""`gpuagent ps`: the processes that hold GPU memory."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from gpuagent.cli.cells import Paint, width_of
from gpuagent.cli.processes import process_table
from gpuagent.cli.source import EXIT_NO_DATA, Direct, NoData, Socket, Source, Url, get_document, tell
from gpuagent.core.units import format_duration

_MOST_ON_A_TERMINAL = 50


class SortKey(StrEnum):
    """What the processes are ordered by, largest first."""

    MEMORY = "memory"
    SM = "sm"
    AGE = "age"
    GROWTH = "growth"
    PID = "pid"


_KEYS = {
    SortKey.MEMORY: "memory_used_bytes",
    SortKey.SM: "sm_utilization_ratio",
    SortKey.AGE: "age_seconds",
    SortKey.GROWTH: "growth_bytes_per_second",
    SortKey.PID: "pid",
}


def ps(
    gpu: Annotated[int | None, typer.Option(help="Only this GPU", metavar="INDEX")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's", metavar="NAME")] = None,
    job: Annotated[str | None, typer.Option(help="Only this Slurm job's", metavar="ID")] = None,
    sort: Annotated[SortKey, typer.Option(help="Largest first")] = SortKey.MEMORY,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="On a terminal too, not only the first 50")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The processes as a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """List the processes on the GPUs: memory, utilisation, user, unit, container, pod or job, and command.

    Where memory grows: how fast, when the GPU is full at this pace, and whether it is taken for a leak.

    Exit status: 0 something could be shown, 3 there is neither an agent nor a driver to ask.
    """
    try:
        document = get_document(Source(socket, url, direct))
    except NoData as error:
        tell(str(error))
        raise typer.Exit(EXIT_NO_DATA) from None
    processes = select(document["processes"], gpu, user, sort, job)
    if as_json:
        typer.echo(json.dumps(processes_alone(document, processes), indent=1))
        return
    for warning in warnings(document):
        tell(warning)
    if not processes:
        everybody = (gpu, user, job) == (None, None, None)
        tell("no process holds GPU memory" if everybody else "no such process on the GPUs")
        return
    shown = processes if show_all or not sys.stdout.isatty() else processes[:_MOST_ON_A_TERMINAL]
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    lines = process_table(shown, width_of(sys.stdout), paint)
    typer.echo("\n".join(paint.text(line.rstrip()) for line in lines))
    if len(shown) < len(processes):
        tell(f"and {len(processes) - len(shown)} more: --all")


def select(processes: list[Any], gpu: int | None, user: str | None, sort: SortKey, job: str | None = None) -> list[Any]:
    """Those asked for, the largest first; what has no value comes last."""
    chosen = [
        process
        for process in processes
        if gpu in {None, process["gpu"]} and user in {None, process["user"]} and job in {None, process["slurm_job"]}
    ]
    key = _KEYS[sort]
    return sorted(chosen, key=lambda process: (process.get(key) is None, -(process.get(key) or 0), process["pid"]))


def processes_alone(document: Any, processes: list[Any]) -> dict[str, Any]:
    """The document of `/api/v1/processes`, with these processes."""
    head = {key: document[key] for key in ("schema", "source", "time_seconds", "age_seconds", "stale")}
    return head | {"agent": {"simulated": document["agent"]["simulated"]}, "processes": processes}


def warnings(document: Any) -> list[str]:
    """What must not be overlooked about every line of the table."""
    found = []
    if document["agent"]["simulated"]:
        found.append(f"SIMULATED: scenario {document['agent']['simulated']}, no real GPU")
    if document["stale"]:
        found.append(f"STALE: read {format_duration(document['age_seconds'])} ago, it may no longer be so")
    if document["age_seconds"] is None:
        found.append("nothing has been read yet")
    return found
