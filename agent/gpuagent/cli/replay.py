"""`gpuagent replay`: run the leak detector over recorded traces to see whether it would have caught yours.

For people each process is a curve on one line, the verdict, and when it would have said what; or a picture.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from gpuagent.cli.agent import Socket, Url, tell
from gpuagent.cli.cells import Paint, clean, cut, fit, width_of, wrap
from gpuagent.cli.plot import Plot, check_plot, write_plot
from gpuagent.core.growth import Range, Verdict
from gpuagent.core.units import (
    FORECAST_RANGE_SECONDS,
    format_bytes,
    format_duration,
    format_forecast_range,
    format_rate,
)

if TYPE_CHECKING:
    from gpuagent.core.plot.memory_plot import Alarm, Forecast, MemoryPlot
    from gpuagent_alerts.leak.replay.rows import ProcessFacts
    from gpuagent_alerts.leak.replay.run import Labelled, Outcome, Point, Replayed, ReplayedAlarm, Score


CURVE_CELLS = 40
MOST_FAST = 3
_FAST = "  would fill the GPU within minutes: growth, not yet a leak"
_INDENT = "  "
_STYLES = {Verdict.LEAKING: "critical", Verdict.GROWING: "warning", Verdict.LEARNING: "dim"}


def lines_of(file: Path, one: Replayed, width: int, paint: Paint) -> list[str]:
    """Return the block of one process, without a line longer than `width` cells."""
    lasted = format_duration(max(0.0, one.last_seconds - one.first_seconds))
    verdict = paint(str(one.growth.verdict), _STYLES.get(one.growth.verdict, "ok"))
    head = f"{file.name}  {one.process}" if one.process else file.name
    lines = [cut(head, width - 14) + f"  {verdict}"]
    points = one.sketch.points()
    lines.append(f"{_INDENT}{curve(points, CURVE_CELLS, paint)}  " + cut(f"{_span(points)} in {lasted}", width - 44))
    events = [(alarm.alarm_seconds, _alarm(alarm, one.first_seconds, width)) for alarm in one.alarms]
    events += [(seconds, [_at(seconds, one.first_seconds) + _FAST]) for seconds in one.fast_seconds[:MOST_FAST]]
    for _, told in sorted(events, key=itemgetter(0)):
        lines += [cut(_INDENT + line, width) for line in told]
    if len(one.fast_seconds) > MOST_FAST:
        lines.append(f"{_INDENT}and so {len(one.fast_seconds)} times in all")
    if not one.alarms:
        lines += [_INDENT + line for reason in one.growth.reasons for line in wrap(reason, width - 2)]
    return lines


def curve(points: list[Point], cells: int, paint: Paint) -> str:
    """Return the used memory in so many cells, from nothing to its highest."""
    values: list[float | None] = []
    for cell in range(cells):
        part = points[
            cell * len(points) // cells : max(cell * len(points) // cells + 1, (cell + 1) * len(points) // cells)
        ]
        values.append(max((point.used_bytes for point in part if point.used_bytes is not None), default=None))
    return paint.sparkline(values, max((value for value in values if value is not None), default=0.0), cells)


def _span(points: list[Point]) -> str:
    used = [point.used_bytes for point in points if point.used_bytes is not None]
    return f"{format_bytes(used[0])}, at most {format_bytes(max(used))}," if used else "no reading"


def _alarm(alarm: ReplayedAlarm, first_seconds: float, width: int) -> list[str]:
    since = _at(alarm.onset_seconds, first_seconds).rstrip()
    lines = [f"{_at(alarm.alarm_seconds, first_seconds)}  leak since {since} ({alarm.evidence})"]
    told = [f"+{format_rate(alarm.slope.value)}" if alarm.slope else "no slope yet"]
    if alarm.exhaustion is not None:
        told[0] += f", the GPU is {_forecast(alarm.exhaustion)}"
    for text in (*told, *alarm.reasons):
        lines += [" " * 11 + line for line in wrap(text, width - 13)]
    if alarm.cleared_seconds is not None:
        lines.append(f"{_at(alarm.cleared_seconds, first_seconds)}  over")
    return lines


def _forecast(figure: Range) -> str:
    if figure.value >= FORECAST_RANGE_SECONDS:
        return format_forecast_range(figure.low, figure.high)
    return f"full in {format_duration(figure.low)} to {format_duration(figure.high)}"


def _at(seconds: float, first_seconds: float) -> str:
    """Time since the first reading: `+2:14:30`."""
    whole = int(max(0.0, seconds - first_seconds))
    return fit(f"+{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}", 9)


def plot_of(file: Path, one: Replayed) -> MemoryPlot:
    """Return the picture of a process: what was read, the verdict over time, each alarm and what it forecast."""
    from gpuagent.core.plot.memory_plot import Lane, MemoryPlot, MemoryPoint, verdict_span

    points = one.sketch.points()
    floor = _baseline([point.lowest_used_bytes for point in points])
    readings = [
        MemoryPoint(point.seconds, point.used_bytes, low, point.free_bytes, point.allocated_bytes, _full(point))
        for point, low in zip(points, floor, strict=True)
    ]
    ends = [seconds for seconds, _ in one.verdicts[1:]] + [one.last_seconds]
    spans = [verdict_span(begin, end, verdict) for (begin, verdict), end in zip(one.verdicts, ends, strict=True)]
    told = f"{one.growth.verdict} at the end" + (f"; {_count(one.alarms)}" if one.alarms else "; no leak would be told")
    return MemoryPlot(
        title=f"{one.process} ({file.name})" if one.process else file.name,
        verdict=told,
        readings=readings,
        is_danger=bool(one.alarms),
        alarms=[_plotted(alarm, one.first_seconds) for alarm in one.alarms],
        lanes=[Lane("verdict", spans)] if spans else [],
        forecasts=list(_forecasts(one, points)),
        notes=one.alarms[0].reasons if one.alarms else one.growth.reasons,
        begin_seconds=one.first_seconds,
    )


def _baseline(lowest: Sequence[float | None]) -> list[float | None]:
    """Return what was held at each point and never given back since."""
    floor = list(accumulate((inf if value is None else value for value in reversed(lowest)), min))
    return [None if value is None else low for value, low in zip(lowest, reversed(floor), strict=True)]


def _full(point: Point) -> float | None:
    """Return what the process would hold with all that is free: most is free when least is in use."""
    lowest, free = point.lowest_used_bytes, point.free_bytes
    return None if lowest is None or free is None else lowest + free


def _count(alarms: Sequence[ReplayedAlarm]) -> str:
    return "a leak would be told once" if len(alarms) == 1 else f"a leak would be told {len(alarms)} times"


def _plotted(alarm: ReplayedAlarm, first_seconds: float) -> Alarm:
    from gpuagent.core.plot.memory_plot import Alarm

    after = format_duration(max(0.0, alarm.alarm_seconds - first_seconds))
    pace = f", +{format_rate(alarm.slope.value)}" if alarm.slope else ""
    return Alarm(alarm.alarm_seconds, f"leak after {after} ({alarm.evidence}){pace}")


def _forecasts(one: Replayed, points: Sequence[Point]) -> Iterator[Forecast]:
    """Yield what the last alarm forecast: of the earlier ones the curve shows what became of them."""
    from gpuagent.core.plot.memory_plot import Forecast

    for alarm in one.alarms[-1:]:
        held = [
            each.used_bytes for each in points if each.seconds <= alarm.alarm_seconds and each.used_bytes is not None
        ]
        if alarm.slope is not None and alarm.exhaustion is not None and alarm.exhaustion.value >= 1 and held:
            yield Forecast(alarm.alarm_seconds, held[-1], alarm.slope.value, alarm.exhaustion.value)


EXIT_LEAK = 1
EXIT_UNREADABLE = 3
MOST_FAULTS_SHOWN = 10
"""Per file; the rest is counted."""
MOST_PICTURES = 24
"""More panels than this are unreadable; the first are drawn."""


def replay(
    files: Annotated[list[Path] | None, typer.Argument(help="Trace files, plain or gzip", show_default=False)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, a document per line for each file and process")
    ] = False,
    sensitivity: Annotated[
        Literal["strict", "balanced", "sensitive"],
        typer.Option(help="Sensitivity, as `leaks.sensitivity` in the configuration"),
    ] = "balanced",
    strict: Annotated[bool, typer.Option("--strict", help="Reject files with malformed rows")] = False,
    total: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Total GPU memory such as 80GiB, if the file does not have it")
    ] = None,
    plot: Plot = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    scored: Annotated[
        bool,
        typer.Option(
            "--labelled",
            help="Score each sensitivity on histories labelled with `gpuagent leaks feedback`: the agent's, or FILES",
        ),
    ] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Run the leak detector over recorded traces: what it would have reported, when and why.

    A trace is CSV (time_seconds,used_bytes[,free_bytes][,allocated_bytes][,reserved_bytes][,process]; an empty cell is
    a missing reading), the JSON of a Prometheus range query, or a log of nvidia-smi --query-compute-apps --format=csv.
    `gpuagent history export` writes one of the agent's own history.

    Exit status: 0 no leak, 1 at least one leak, 3 a file could not be read, or has no free memory to judge by. With
    --labelled: 0 scored, 1 the agent does not answer, 3 nothing to score.
    """
    from gpuagent_alerts.leak.replay.rows import TraceError

    if scored:
        _score(files or (), socket, url, as_json=as_json, ascii_only=ascii_only)
    total_bytes = _size(total)
    check_plot(plot)
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
    if plot is not None and shown and not write_plot(plot, [plot_of(*each) for each in shown]):
        raise typer.Exit(EXIT_UNREADABLE)
    if unreadable:
        raise typer.Exit(EXIT_UNREADABLE)
    if leaks:
        raise typer.Exit(EXIT_LEAK)


def _score(files: Sequence[Path], socket: Path | None, url: str | None, *, as_json: bool, ascii_only: bool) -> NoReturn:
    """Show how each sensitivity did; the command ends with it."""
    from gpuagent_alerts.leak.replay.run import score

    scores = score(labelled(files, socket, url))
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    show(scores, width_of(sys.stdout), paint, as_json=as_json)
    raise typer.Exit(0)


def _named(files: list[Path] | None) -> list[Path]:
    if not files:
        raise typer.BadParameter("give a trace file, or --labelled", param_hint="FILES")
    return files


def _replayed(
    file: Path, sensitivity: Literal["strict", "balanced", "sensitive"], total_bytes: int | None, faults: _Faults
) -> Iterator[Replayed]:
    """Yield the processes of a file. Raises TraceError where it cannot be read, which may come after some of them."""
    from gpuagent_alerts.leak.replay.rows import TraceError
    from gpuagent_alerts.leak.replay.run import replay_rows
    from gpuagent_alerts.leak.replay.trace_files import open_trace

    count = 0
    facts: dict[str, ProcessFacts] = {}
    with open_trace(file, total_bytes, faults, facts) as rows:
        for one in replay_rows(rows, faults, sensitivity=sensitivity, total_bytes=total_bytes, facts=facts):
            if not one.judged:
                name = one.process or "the process"
                tell(f"{file}: {name} was not judged: no row has free memory. Use --total 80GiB.")
            count += 1
            yield one
    faults.tell_the_rest()
    if count == 0:
        raise TraceError("no reading in it")


def _table(file: Path, one: Replayed, paint: Paint) -> str:
    return "\n".join(paint.text(line) for line in lines_of(file, one, width_of(sys.stdout), paint))


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
    from gpuagent.core.units import parse_bytes

    if text is None:
        return None
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--total") from None
    if not 0 < size < 2**44:
        raise typer.BadParameter(f"{text} is not a plausible GPU memory size", param_hint="--total")
    return size


EXIT_NONE = 3
_NAME_CELLS = 28
_CELLS = 11


def labelled(files: Sequence[Path], socket: Path | None, url: str | None) -> list[Labelled]:
    """Return the histories of these files, or those that the agent keeps where there are none.

    What cannot be used is named on standard error. Where there is nothing to score, the command ends with status 3.
    """
    from gpuagent_alerts.leak.replay.exported import read_document
    from gpuagent_alerts.leak.replay.rows import TraceError
    from gpuagent_alerts.leak.replay.run import Labelled

    found: list[Labelled] = []
    for name, entry in _entries(files, socket, url):
        try:
            is_leak = {"true": True, "false": False}[entry["label"]]
            found.append(Labelled(name, is_leak, read_document(entry["trace"])))
        except (TraceError, KeyError, TypeError) as error:
            tell(f"{clean(name)}: {error if isinstance(error, TraceError) else 'no labelled history'}")
    if not found:
        tell("no labelled history: `gpuagent leaks feedback PID --false` (or --true) keeps one")
        raise typer.Exit(EXIT_NONE)
    return found


def show(scores: Sequence[Score], width: int, paint: Paint, *, as_json: bool) -> None:
    """Print how each sensitivity did, and what it would have said of each history."""
    if as_json:
        typer.echo(json.dumps({"schema": 1, "scores": [_score_document(each) for each in scores]}, indent=1))
        return
    for each in scores:
        silent = len(each.outcomes) - each.leaks
        found = f"{each.true_positives} of {each.leaks} leaks found"
        wrong = f"{each.false_positives} false {'alarm' if each.false_positives == 1 else 'alarms'} of {silent}"
        typer.echo(paint.text(cut(f"{each.sensitivity:<10} {found}, {wrong}", width)))
    typer.echo("")
    heads = "".join(f"  {fit(each.sensitivity, _CELLS)}" for each in scores)
    typer.echo(cut(f"{fit('first alarm after', _NAME_CELLS)}  {'is':<8}{heads}", width).rstrip())
    for outcomes in zip(*(each.outcomes for each in scores), strict=True):
        first = outcomes[0]
        cells = "".join(f"  {fit(_outcome_words(one), _CELLS)}" for one in outcomes)
        label = "leak" if first.is_leak else "no leak"
        typer.echo(paint.text(cut(f"{fit(first.process, _NAME_CELLS)}  {label:<8}{cells}", width).rstrip()))


def _entries(files: Sequence[Path], socket: Path | None, url: str | None) -> list[tuple[str, dict[str, Any]]]:
    if files:
        from gpuagent.service.leak_feedback import read_entry

        return [(file.name, read_entry(file) or {}) for file in files]
    from urllib.parse import quote

    from gpuagent.cli.leaks import ask_to_read

    listed = ask_to_read("/api/v1/leaks/feedback", socket, url)["feedback"]
    return [
        (
            each["id"],
            ask_to_read(f"/api/v1/leaks/feedback/{quote(each['id'], safe='')}", socket, url),
        )
        for each in listed
    ]


def _outcome_words(outcome: Outcome) -> str:
    """When it would have spoken, from the history's begin; `!` where that is wrong."""
    wrong = "" if outcome.right else " !"
    if outcome.alarm_seconds is None:
        return f"silent{wrong}"
    return f"{format_duration(max(0.0, outcome.alarm_seconds - outcome.begin_seconds))}{wrong}"


def _score_document(score: Score) -> dict[str, Any]:
    return {
        "sensitivity": score.sensitivity,
        "histories": len(score.outcomes),
        "leaks": score.leaks,
        "true_positives": score.true_positives,
        "false_positives": score.false_positives,
        "outcomes": [
            {
                "name": one.name,
                "process": one.process,
                "label": "true" if one.is_leak else "false",
                "alarm_seconds": one.alarm_seconds,
                "begin_seconds": one.begin_seconds,
                "right": one.right,
            }
            for one in score.outcomes
        ],
    }
