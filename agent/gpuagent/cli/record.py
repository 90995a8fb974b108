"""`gpuagent record` and `gpuagent history`: a process's memory over time, as a trace for `gpuagent replay`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlencode

import typer

from gpuagent.cli.agent import EXIT_NO_DATA, Direct, Socket, Url, tell
from gpuagent.cli.cells import clean
from gpuagent.cli.leaks import ask_to_read
from gpuagent.core.units import parse_duration

if TYPE_CHECKING:
    from gpuagent.recording.recorder import Command, Signals, TraceFile
    from gpuagent_alerts.leak.replay.exported import TraceDocument


EXIT_FAILED, EXIT_USAGE = 1, 2
EXIT_CANNOT_RUN, EXIT_NOT_FOUND = 126, 127
"""As a shell has them."""
_INTERVALS_SECONDS = (0.1, 60.0)
"""With longer ones the leak detector has too few readings for a word."""
COMMAND_SETTINGS = {"allow_interspersed_args": False}
"""All that follows the first word of CMD is CMD's."""


def record(
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file to write", metavar="FILE")],
    command: Annotated[list[str] | None, typer.Argument(help="Command to run and record", metavar="[--] CMD")] = None,
    pid: Annotated[int | None, typer.Option(help="Record this process and its children instead", min=1)] = None,
    interval: Annotated[str, typer.Option(help="Time between readings, 100ms to 1m", metavar="DURATION")] = "1s",
    requests: Annotated[
        int | None, typer.Option(help="Number of requests of the load test, to report growth per request", min=1)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists")] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Record the GPU memory of a process or command and all its children to FILE, such as during a load test.

    Reads from the running agent, or from the GPUs if none runs. Ends with CMD, with the process, or on Ctrl-C,
    and then reports peak, baseline, growth, headroom and whether it leaks. `gpuagent replay FILE` analyzes it again.

    Exit status: that of CMD (128 + signal, 126 cannot be run, 127 not found); 0 with --pid; 1 no such process, or FILE
    cannot be written; 2 wrong usage; 3 neither the agent nor the driver answers.
    """
    try:
        job = _Job(command or [], pid or 0, output, _interval(interval), requests, force)
        if bool(command) == (pid is not None):
            raise _CannotRecord(
                EXIT_USAGE, "Give either --pid PID or a command: gpuagent record -o FILE.csv -- CMD ..."
            )
        if job.output == Path("-"):
            raise _CannotRecord(EXIT_USAGE, "-o needs a file name: standard output belongs to the command.")
        status = _run(job, url if url is not None else socket, direct=direct)
    except _CannotRecord as error:
        tell(str(error))
        raise typer.Exit(error.status) from None
    raise typer.Exit(status)


class _CannotRecord(Exception):
    """The exit status, and why in words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Job(NamedTuple):
    command: list[str]
    pid: int
    """0 where there is a command."""
    output: Path
    interval_seconds: float
    requests: int | None
    force: bool


def _run(job: _Job, named: Path | str | None, *, direct: bool) -> int:
    from gpuagent.core.clock import SystemClock
    from gpuagent.procfs.files import RealProc
    from gpuagent.recording.recorder import Family, Recorder, Signals, adopt_orphans
    from gpuagent.recording.sources import NoSource, open_source
    from gpuagent.recording.track import report

    with Signals() as signals:  # first of all: threads that are made now leave the signals to it
        try:
            source = open_source(named, direct=direct, note=tell)
        except NoSource as error:
            raise _CannotRecord(EXIT_NO_DATA, str(error)) from None
        with closing(source):
            if job.pid:
                family, child = Family(RealProc(), {job.pid}), None
                if family.lives(job.pid) is not True and all(held.pid != job.pid for held in source.read().held):
                    raise _CannotRecord(EXIT_FAILED, f"No process has pid {job.pid}.")
            with _create(job) as file:
                if not job.pid:
                    adopt_orphans()
                    child = _start(job, signals)
                    family = Family(RealProc(), {child.pid, os.getpid()})
                recorder = Recorder(source, family, file, SystemClock(), tell)
                if child is not None:
                    status = recorder.run_command(child, signals, job.interval_seconds)
                else:
                    recorder.run_process(job.pid, signals, job.interval_seconds)
                    status = 0
    for line in report(recorder.tracks, recorder.seconds, job.requests):
        tell(clean(line))
    tell("")
    if file.problem:
        tell(f"{job.output} is incomplete: {file.problem}")
    elif recorder.tracks:
        tell(f"To analyze it again: gpuagent replay {job.output}")
    if child is not None and status:
        tell(f"The command exited with status {status}.")
    return status


def _create(job: _Job) -> TraceFile:
    from gpuagent.recording.recorder import create_trace

    try:
        return create_trace(job.output, replace=job.force)
    except FileExistsError:
        raise _CannotRecord(EXIT_FAILED, f"{job.output} exists. Use --force to replace it.") from None
    except OSError as error:
        raise _CannotRecord(EXIT_FAILED, f"{job.output} cannot be written: {error.strerror}") from None


def _start(job: _Job, signals: Signals) -> Command:
    from gpuagent.recording.recorder import Command

    try:
        return Command(job.command, signals)
    except OSError as error:
        job.output.unlink(missing_ok=True)
        status = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_CANNOT_RUN
        raise _CannotRecord(status, f"{job.command[0]} cannot be run: {error.strerror}") from None


def _interval(text: str) -> float:
    shortest, longest = _INTERVALS_SECONDS
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise _CannotRecord(EXIT_USAGE, f"--interval: {error}") from None
    if not shortest <= seconds <= longest:
        raise _CannotRecord(EXIT_USAGE, "--interval must be between 100ms and 1m.")
    return seconds


history_app = typer.Typer(no_args_is_help=True, help="Export the memory history that the agent keeps.")


@history_app.callback()
def _group() -> None:
    """Have `export` as a word of its own, also while there is no other."""


@history_app.command()
def export(
    pid: Annotated[int | None, typer.Argument(help="The process, as `gpuagent ps` shows it", min=1)] = None,
    gpu: Annotated[
        str, typer.Option(metavar="N|UUID", help="Export every process on this GPU; with PID, that process there")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; default: standard output")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists")] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Export the agent's history of a process, or of all processes on a GPU, as a trace for `gpuagent replay`.

    The trace has what the leak detector saw, in blocks of 15 s: exact for the last hours, coarser further back, and
    without free memory from before a restart of the agent. So `gpuagent replay --sensitivity strict` shows what it
    would have reported for a real incident. The last 16 processes that ended after a leak are included.

    Exit status: 0 written, 1 the agent does not answer or does not know the process, or the file cannot be written.
    """
    from gpuagent_alerts.leak.replay.exported import csv_of
    from gpuagent_alerts.leak.replay.rows import TraceError

    if pid is None and not gpu:
        raise typer.BadParameter("give a PID or --gpu")
    query = urlencode({key: value for key, value in (("pid", pid or ""), ("gpu", gpu)) if value})
    document = ask_to_read(f"/api/v1/leaks/trace?{query}", socket, url)
    try:
        traces = read_traces(document)
    except TraceError as error:
        tell(f"The agent's answer is invalid: {error}")
        raise typer.Exit(EXIT_FAILED) from None
    if not any(trace.runs for trace in traces):
        tell("No history yet: it begins 2 min after the first reading.")
        raise typer.Exit(EXIT_FAILED)
    lines = (f"{line}\n" for line in csv_of(traces))
    if output is None or output == Path("-"):
        sys.stdout.writelines(lines)
        return
    _write(output, lines, force=force)
    tell(f"Written: {output}, {len(traces)} {'process' if len(traces) == 1 else 'processes'}")
    if document["left_out"]:
        tell(f"{document['left_out']} smaller processes are not included.")
    tell(f"To analyze it: gpuagent replay --sensitivity strict {output}")


def read_traces(document: dict[str, Any]) -> list[TraceDocument]:
    """Return the traces of an answer. Raises TraceError."""
    from gpuagent_alerts.leak.replay.exported import read_document

    return [read_document(each["trace"]) for each in document["traces"]]


def _write(path: Path, lines: Iterable[str], *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.writelines(lines)
    except FileExistsError:
        tell(f"{path} exists. Use --force to replace it.")
    except OSError as error:
        tell(f"{path} cannot be written: {error.strerror}")
        with suppress(OSError):
            path.unlink()
    else:
        return
    raise typer.Exit(EXIT_FAILED)
