"""`gpuagent replay`: the leak detector over recorded traces: would it have caught mine?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from gpuagent.cli.cells import Paint, width_of
from gpuagent.cli.source import Socket, Url, tell

if TYPE_CHECKING:
    from gpuagent_alerts.leak.replay.rows import ProcessFacts
    from gpuagent_alerts.leak.replay.run import Replayed

EXIT_LEAK = 1
EXIT_UNREADABLE = 3
MOST_FAULTS_SHOWN = 10
"""Per file; the rest is counted."""
MOST_PICTURES = 24
"""More panels than this are unreadable; the first are drawn."""

_PLOT_HELP = "Draw it into this file (needs matplotlib: pip install 'gpuagent[plot]')"


def replay(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Traces, also compressed with gzip", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON document a line: one for each file and process")
    ] = False,
    sensitivity: Annotated[
        Literal["strict", "balanced", "sensitive"], typer.Option(help="As `leaks.sensitivity` in the configuration")
    ] = "balanced",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a file with a malformed row")] = False,
    total: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the GPU, where the file does not tell: 80GiB")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help=_PLOT_HELP)] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    scored: Annotated[
        bool,
        typer.Option(
            "--labelled",
            help="Score each sensitivity on the histories that `gpuagent leaks feedback` keeps: the agent's, or FILES",
        ),
    ] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Run the leak detector over recorded traces: when it would have said what, and why.

    A trace is CSV (time_seconds,used_bytes[,free_bytes][,allocated_bytes][,reserved_bytes][,process]; an empty cell is
    no reading), the JSON of a Prometheus range query, or a log of nvidia-smi --query-compute-apps --format=csv.
    `gpuagent history export` writes one of the agent's own history.

    Exit status: 0 no process would have been called leaking, 1 at least one would, 3 a file could not be read, or not
    judged, as nothing tells what is free. With --labelled: 0 scored, 3 there is nothing to score, 1 no agent answers.
    """
    from gpuagent_alerts.leak.replay.rows import TraceError

    if scored:
        _score(files or (), socket, url, as_json=as_json, ascii_only=ascii_only)
    total_bytes = _size(total)
    if plot is not None:
        _need_matplotlib()
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    shown: list[tuple[Path, Replayed]] = []
    leaks = unreadable = False
    for file in _named(files):
        try:
            for one in _replayed(file, sensitivity, total_bytes, _Faults(file, refuse=strict)):
                leaks |= bool(one.alarms)
                unreadable |= not one.judged
                typer.echo(json.dumps(_document(file, one)) if as_json else _table(file, one, paint))
                if plot is not None and len(shown) < MOST_PICTURES:
                    shown.append((file, one))
        except TraceError as error:
            unreadable = True
            tell(f"{file}: {error}")
    if plot is not None and shown:
        _draw(shown, plot)
    if unreadable:
        raise typer.Exit(EXIT_UNREADABLE)
    if leaks:
        raise typer.Exit(EXIT_LEAK)


def _score(files: Sequence[Path], socket: Path | None, url: str | None, *, as_json: bool, ascii_only: bool) -> NoReturn:
    """Show how each sensitivity did; the command ends with it."""
    from gpuagent.cli.replay_labelled import labelled, show
    from gpuagent_alerts.leak.replay.score import score

    scores = score(labelled(files, socket, url))
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    show(scores, width_of(sys.stdout), paint, as_json=as_json)
    raise typer.Exit(0)


def _named(files: list[Path] | None) -> list[Path]:
    if not files:
        raise typer.BadParameter("name a trace, or give --labelled", param_hint="FILES")
    return files


def _replayed(
    file: Path, sensitivity: Literal["strict", "balanced", "sensitive"], total_bytes: int | None, faults: _Faults
) -> Iterator[Replayed]:
    """The processes of a file. Raises TraceError where it cannot be read, which may come after some of them."""
    from gpuagent_alerts.leak.replay.files import open_trace
    from gpuagent_alerts.leak.replay.rows import TraceError
    from gpuagent_alerts.leak.replay.run import replay_rows

    count = 0
    facts: dict[str, ProcessFacts] = {}
    with open_trace(file, total_bytes, faults, facts) as rows:
        for one in replay_rows(rows, faults, sensitivity=sensitivity, total_bytes=total_bytes, facts=facts):
            if not one.judged:
                name = one.process or "the process"
                tell(f"{file}: {name} was not judged: no row tells what is free; give --total 80GiB")
            count += 1
            yield one
    faults.tell_the_rest()
    if count == 0:
        raise TraceError("no reading in it")


def _table(file: Path, one: Replayed, paint: Paint) -> str:
    from gpuagent.cli.replay_table import lines_of

    return "\n".join(paint.text(line) for line in lines_of(file, one, width_of(sys.stdout), paint))


def _draw(shown: list[tuple[Path, Replayed]], plot: Path) -> None:
    from gpuagent.cli.replay_plot import draw

    try:
        draw(shown, plot)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        tell(f"{plot}: {reason}")
        raise typer.Exit(EXIT_UNREADABLE) from None


class _Faults:
    """Names malformed rows on standard error, or refuses the file."""

    def __init__(self, file: Path, *, refuse: bool) -> None:
        self._file = file
        self._refuse = refuse
        self._count = 0

    def __call__(self, line: int, what: str) -> None:
        from gpuagent_alerts.leak.replay.rows import TraceError

        place = f"line {line}: " if line > 0 else ""
        if self._refuse:
            raise TraceError(f"{place}{what}")
        self._count += 1
        if self._count <= MOST_FAULTS_SHOWN:
            tell(f"{self._file}: {place}{what}; skipped")

    def tell_the_rest(self) -> None:
        """How many were not shown."""
        if self._count > MOST_FAULTS_SHOWN:
            tell(f"{self._file}: {self._count - MOST_FAULTS_SHOWN} more rows were malformed; skipped")


def _document(file: Path, one: Replayed) -> dict[str, Any]:
    return {
        "file": str(file),
        "process": one.process,
        "samples": one.samples,
        "verdict": one.growth.verdict,
        "alarms": [
            {
                "onset_seconds": alarm.onset_seconds,
                "alarm_seconds": alarm.alarm_seconds,
                "cleared_seconds": alarm.cleared_seconds,
                "evidence": alarm.evidence,
                "slope_bytes_per_second": alarm.slope.value if alarm.slope else None,
                "exhaustion_seconds": alarm.exhaustion.value if alarm.exhaustion else None,
                "reasons": alarm.reasons,
            }
            for alarm in one.alarms
        ],
        "fast_seconds": one.fast_seconds,
        "reasons": one.growth.reasons,
    }


def _size(text: str | None) -> int | None:
    from gpuagent.units import parse_bytes

    if text is None:
        return None
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--total") from None
    if not 0 < size < 2**44:
        raise typer.BadParameter(f"{text} is not the memory of a GPU", param_hint="--total")
    return size


def _need_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise typer.BadParameter("this needs matplotlib: pip install 'gpuagent[plot]'", param_hint="--plot")
