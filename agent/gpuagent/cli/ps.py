"""`gpuagent ps`: the processes that hold GPU memory."""

from __future__ import annotations

import json
import shutil
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from gpuagent.cli.cells import Paint
from gpuagent.cli.processes import process_table
from gpuagent.cli.source import EXIT_NO_DATA, Direct, NoData, Socket, Url, get_document


class SortKey(StrEnum):
    """What the processes are ordered by, largest first."""

    MEMORY = "memory"
    SM = "sm"
    AGE = "age"
    PID = "pid"


_KEYS = {
    SortKey.MEMORY: "memory_used_bytes",
    SortKey.SM: "sm_utilization_ratio",
    SortKey.AGE: "age_seconds",
    SortKey.PID: "pid",
}


def ps(
    gpu: Annotated[int | None, typer.Option(help="Only this GPU", metavar="INDEX")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's", metavar="NAME")] = None,
    sort: Annotated[SortKey, typer.Option(help="Largest first")] = SortKey.MEMORY,
    as_json: Annotated[bool, typer.Option("--json", help="The processes as a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """List the processes on the GPUs: memory, utilisation, user, unit, container, pod or job, and command.

    Exit status: 0 something could be shown, 3 there is neither an agent nor a driver to ask.
    """
    try:
        document = get_document(socket, url, direct=direct)
    except NoData as error:
        typer.echo(error, err=True)
        raise typer.Exit(EXIT_NO_DATA) from None
    processes = select(document["processes"], gpu, user, sort)
    if as_json:
        head = {key: document[key] for key in ("schema", "time_seconds", "age_seconds")}
        typer.echo(json.dumps(head | {"processes": processes}, indent=1, ensure_ascii=False))
        return
    if not processes:
        typer.echo("no process holds GPU memory" if gpu is None and user is None else "no such process", err=True)
        return
    terminal = sys.stdout.isatty()
    paint = Paint(ascii_only=ascii_only or (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"))
    width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
    typer.echo("\n".join(paint.text(line.rstrip()) for line in process_table(processes, width, paint)))


def select(processes: list[Any], gpu: int | None, user: str | None, sort: SortKey) -> list[Any]:
    """Those asked for, the largest first; what has no value comes last."""
    chosen = [
        process
        for process in processes
        if (gpu is None or process["gpu"] == gpu) and (user is None or process["user"] == user)
    ]
    key = _KEYS[sort]
    return sorted(chosen, key=lambda process: (process[key] is None, -(process[key] or 0), process["pid"]))
