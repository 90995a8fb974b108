"""`gpuagent history`: what the agent remembers of a process's memory, as a trace for `gpuagent replay`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from gpuagent.cli.leaks import ask_to_read
from gpuagent.cli.source import Socket, Url, tell

if TYPE_CHECKING:
    from gpuagent_alerts.leak.replay.exported import TraceDocument

EXIT_FAILED = 1

history_app = typer.Typer(no_args_is_help=True, help="What the agent remembers of the memory over time.")


@history_app.callback()
def _group() -> None:
    """Have `export` as a word of its own, also while there is no other."""


@history_app.command()
def export(
    pid: Annotated[int | None, typer.Argument(help="The process, as `gpuagent ps` shows it", min=1)] = None,
    gpu: Annotated[
        str, typer.Option(metavar="N|UUID", help="Every process on this GPU; with PID, that process there")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="By default standard output")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists")] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Write the agent's own history of a process, or of all on a GPU, as a trace that `gpuagent replay` reads.

    It has what the leak detector was shown, in blocks of 15 s: exact for the last hours, coarser further back, and
    after a restart of the agent without what was free before it. So `gpuagent replay --sensitivity strict` answers what
    would have been said of the real incident. Processes that have ended after a leak are remembered too, the last 16.

    Exit status: 0 written, 1 no agent answers, it knows of no such process, or the file cannot be written.
    """
    from gpuagent_alerts.leak.replay.exported import csv_of
    from gpuagent_alerts.leak.replay.rows import TraceError

    if pid is None and not gpu:
        raise typer.BadParameter("give a PID, or --gpu")
    query = urlencode({key: value for key, value in (("pid", pid or ""), ("gpu", gpu)) if value})
    document = ask_to_read(f"/api/v1/leaks/trace?{query}", socket, url)
    try:
        traces = read_traces(document)
    except TraceError as error:
        tell(f"the agent's answer cannot be used: {error}")
        raise typer.Exit(EXIT_FAILED) from None
    if not any(trace.runs for trace in traces):
        tell("nothing is remembered yet: the first 2 min after the first reading are not kept")
        raise typer.Exit(EXIT_FAILED)
    lines = (f"{line}\n" for line in csv_of(traces))
    if output is None or output == Path("-"):
        sys.stdout.writelines(lines)
        return
    _write(output, lines, force=force)
    tell(f"written: {output}, {len(traces)} {'process' if len(traces) == 1 else 'processes'}")
    if document["left_out"]:
        tell(f"{document['left_out']} smaller processes are not in it")
    tell(f"judge it with: gpuagent replay --sensitivity strict {output}")


def read_traces(document: dict[str, Any]) -> list[TraceDocument]:
    """Return the traces of an answer. Raises TraceError."""
    from gpuagent_alerts.leak.replay.exported import read_document

    return [read_document(each["trace"]) for each in document["traces"]]


def _write(path: Path, lines: Iterable[str], *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.writelines(lines)
    except FileExistsError:
        tell(f"{path} exists: --force replaces it")
    except OSError as error:
        tell(f"{path} cannot be written: {error.strerror}")
        with suppress(OSError):
            path.unlink()
    else:
        return
    raise typer.Exit(EXIT_FAILED)
