"""`gpuagent record`: a process's or a command's GPU memory into a file, with a report at the end."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gpuagent.cli.cells import clean
from gpuagent.cli.source import EXIT_NO_DATA, Direct, Socket, Url, tell
from gpuagent.core.units import parse_duration

if TYPE_CHECKING:
    from gpuagent.recording.recorder import Command, Signals
    from gpuagent.recording.trace import TraceFile


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
        int | None, typer.Option(help="Requests of the load test: the report tells the growth per request", min=1)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists")] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Write the GPU memory of a process or command, and of all its children, to FILE while a load test runs.

    Reads from the running agent, or from the GPUs where there is none. Ends with CMD, with the process, or on Ctrl-C,
    and then reports peak, floor, growth, headroom and whether it leaks. `gpuagent replay FILE` judges it again.

    Exit status: that of CMD (128 + signal, 126 cannot be run, 127 not found); 0 with --pid; 1 no such process, or FILE
    cannot be written; 2 wrong usage; 3 there is neither an agent nor a driver to ask.
    """
    try:
        job = _Job(command or [], pid or 0, output, _interval(interval), requests, force)
        if bool(command) == (pid is not None):
            raise _CannotRecord(
                EXIT_USAGE, "give either --pid PID or a command: gpuagent record -o FILE.csv -- CMD ..."
            )
        if job.output == Path("-"):
            raise _CannotRecord(EXIT_USAGE, "-o takes the name of a file: standard output is the command's own")
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
    from gpuagent.recording.family import Family, adopt_orphans
    from gpuagent.recording.recorder import Recorder, Signals
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
                    raise _CannotRecord(EXIT_FAILED, f"there is no process {job.pid}")
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
        tell(f"{job.output} is not complete: {file.problem}")
    elif recorder.tracks:
        tell(f"judge it again with: gpuagent replay {job.output}")
    if child is not None and status:
        tell(f"the command ended with exit status {status}")
    return status


def _create(job: _Job) -> TraceFile:
    from gpuagent.recording.trace import create_trace

    try:
        return create_trace(job.output, replace=job.force)
    except FileExistsError:
        raise _CannotRecord(EXIT_FAILED, f"{job.output} exists: --force replaces it") from None
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
        raise _CannotRecord(EXIT_USAGE, "--interval: from 100ms to 1m")
    return seconds
