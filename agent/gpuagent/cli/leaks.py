"""`gpuagent leaks`: why a process is called leaking, how sure the detector must be of it, and whether it was right."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.cells import cell_len

from gpuagent.cli.agent import Refused, Socket, Url, answer_of, ask_agent, tell
from gpuagent.cli.cells import Paint, clean, cut, fit, width_of, wrap
from gpuagent.cli.plot import Plot, check_plot, write_plot
from gpuagent.core.api_client import DEFAULT_URL
from gpuagent.core.units import format_bytes, format_duration
from gpuagent.core.wording import assessment_words, verdict_words

Document = dict[str, Any]

leaks_app = typer.Typer(no_args_is_help=True, help="Explain leak verdicts, tune sensitivity, and give feedback.")
Gpu = Annotated[str, typer.Option(metavar="N|UUID", help="GPU, if the process is on several")]
_OneOf = Annotated[
    Literal["off", "strict", "balanced", "sensitive"],
    typer.Argument(show_default=False, help="How much evidence a leak needs, as `leaks.sensitivity`; off reports none"),
]


def ask_to_read(path: str, socket: Path | None, url: str | None) -> Document:
    """Return what an agent tells: the named one, else the control socket's, else that at the usual address.

    Where none answers, or it refuses, the command ends with status 1 and says why.
    """
    places: list[Path | str | None] = [None, DEFAULT_URL] if socket is None and url is None else [url or socket]
    first: Refused | None = None
    for place in places:
        try:
            return answer_of("GET", path, place)
        except Refused as error:
            if first is None or error.heard:
                first = error
            if error.heard:
                break
    typer.echo(str(first), err=True)
    raise typer.Exit(1)


@leaks_app.command()
def explain(
    pid: Annotated[int, typer.Argument(help="The process, as `gpuagent ps` shows it", min=1)],
    gpu: Gpu = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    picture: Plot = None,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Explain the leak verdict of a process, or why there is none: the evidence, and a plot.

    The plot shows the baseline (memory never given back), free memory, the window of the alarm and the forecast. The
    last 16 processes that ended after a leak can be explained too.

    Exit status: 0 shown, 1 the agent does not answer, or does not know the process, or the picture cannot be written.
    """
    check_plot(picture)
    document = ask_to_read(f"/api/v1/leaks/{pid}{_query(gpu)}", socket, url)
    if picture is not None:
        from gpuagent.core.plot.evidence import plot_of_evidence

        if not write_plot(picture, [plot_of_evidence(document)]):
            raise typer.Exit(1)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    for line in lines_of(document, width_of(sys.stdout), paint):
        typer.echo(paint.text(line))


@leaks_app.command()
def tune(
    sensitivity: _OneOf,
    app: Annotated[
        str, typer.Option(help="Apps with this name, which their client reports; cannot be made more sensitive")
    ] = "",
    unit: Annotated[str, typer.Option(help="Processes of this systemd unit")] = "",
    user: Annotated[str, typer.Option(help="Processes of this user, outside of containers")] = "",
    process_name: Annotated[str, typer.Option(help="Processes of this name, as `gpuagent ps` shows it")] = "",
    container: Annotated[str, typer.Option(help="Processes of this container, by ID or name")] = "",
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Configuration file; default: /etc/gpuagent/gpuagent.yaml"),
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the lines for the configuration, and change nothing")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write and reload without asking")] = False,
    socket: Socket = None,
) -> None:
    """Set the leak sensitivity for some processes: those that match all options given.

    Checks the new configuration, shows the change and asks for confirmation; then writes the file and makes the agent
    reload. Comments and order of the file are kept. If the file cannot be written or edited, or there is no terminal to
    ask, the lines to add are printed instead. Histories are kept; verdicts follow within 15 s.

    Exit status: 0 done (with --print: printed), 1 not possible or not confirmed, 2 wrong usage.
    """
    from gpuagent.cli.leaks_tune import tune_file

    given = {"app": app, "unit": unit, "user": user, "process_name": process_name, "container": container}
    match = {key: value for key, value in given.items() if value}
    if not match:
        raise typer.BadParameter("give --app, --unit, --user, --process-name or --container")
    raise typer.Exit(tune_file(config, match, sensitivity, socket, show=show, yes=yes))


@leaks_app.command()
def feedback(
    pid: Annotated[int | None, typer.Argument(help="The process", min=1)] = None,
    false: Annotated[bool, typer.Option("--false", help="Label as a false alarm")] = False,
    true: Annotated[bool, typer.Option("--true", help="Label as a real leak")] = False,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Reason, for those who read it later")] = "",
    gpu: Gpu = "",
    listed: Annotated[bool, typer.Option("--list", "-l", help="List the feedback so far")] = False,
    remove: Annotated[str, typer.Option(metavar="ID", help="Remove one entry, by the ID that --list shows")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Label a process as leaking or not: its history is kept with the label, for `gpuagent replay --labelled`.

    This resolves no alert and changes no sensitivity: use `gpuagent silence` and `gpuagent leaks tune` for that. At
    most 200 histories and 16 MiB are kept in the state directory; the oldest are dropped, and named in the answer.

    Exit status: 0 kept, shown or removed, 1 the agent does not answer or refused, 2 wrong usage.
    """
    chosen = [pid is not None, listed, bool(remove)]
    if sum(chosen) != 1:
        raise typer.BadParameter("give a PID with --false or --true, or --list, or --remove ID")
    if listed:
        _list(ask_to_read("/api/v1/leaks/feedback", socket, url), as_json=as_json)
        return
    if url is not None:
        raise typer.BadParameter("feedback needs the control socket: an HTTP address is read-only", param_hint="--url")
    if remove:
        from urllib.parse import quote

        ask_agent("POST", f"/api/v1/leaks/feedback/{quote(remove, safe='')}/remove", socket)
        tell("Removed.")
        return
    if false == true:
        raise typer.BadParameter("say --false (a false alarm) or --true (it leaks)")
    body = {"label": "true" if true else "false", "note": note, "gpu": gpu}
    kept = ask_agent("POST", f"/api/v1/leaks/{pid}/feedback", socket, body)
    if as_json:
        typer.echo(json.dumps(kept, indent=1))
        return
    typer.echo(kept["id"])
    tell(f"Kept: {_about(kept)} {_said(kept)}")
    if kept["evicted"]:
        tell(f"Dropped the oldest: {', '.join(clean(each) for each in kept['evicted'])}")
    tell("`gpuagent replay --labelled` shows what each sensitivity would have reported.")


def _list(document: Document, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    from gpuagent.core.units import format_time

    if not document["feedback"]:
        tell("No feedback yet.")
    for entry in document["feedback"]:
        by = f", {clean(entry['by'])}" if entry["by"] else ""
        typer.echo(f"{clean(entry['id'])}  {format_time(entry['time_seconds'])}{by}")
        typer.echo(f"  {_about(entry)} {_said(entry)}; then {entry['verdict']}, at {entry['sensitivity']}")
        if entry["note"]:
            for line in wrap(entry["note"], width_of(sys.stdout) - 2):
                typer.echo(f"  {line}")


def _about(entry: Document) -> str:
    user = f", {clean(entry['user'])}" if entry["user"] else ""
    return f"{clean(entry['process'] or '?')} (pid {entry['pid']}{user}) on GPU {entry['gpu']}"


def _said(entry: Document) -> str:
    return "leaks" if entry["label"] == "true" else "does not leak"


def _query(gpu: str) -> str:
    from urllib.parse import quote

    return f"?gpu={quote(gpu, safe='')}" if gpu else ""


_LABEL = 10
_MOST_COLUMNS = 50
_LEAST_COLUMNS = 16
_MOST_AHEAD = 14
"""Columns of the forecast."""
_ROWS = 7
_LEAST_SHARE = 0.01
"""The least share of the GPU's memory that the plot's height shows: less is no growth to be seen."""
_STYLES = {"leaking": "critical", "growing": "warning", "learning": "dim"}
_MOST_WINDOWS = 6
_COMMAND_LABEL = 18


class _Marks(NamedTuple):
    """What the plot is drawn with, the width of one cell each."""

    baseline: str
    peak: str
    forecast: str
    line: str
    begin: str
    end: str
    axis: str
    parts: str = ""
    """Cells that are filled by an eighth, two eighths and so on; none where a cell is full or empty."""


_UNICODE = _Marks("█", "·", "░", "─", "├", "┤", "│", "▁▂▃▄▅▆▇")
_ASCII = _Marks("#", ".", "+", "-", "|", "|", "|")


def lines_of(document: Document, width: int, paint: Paint) -> list[str]:
    """Return the whole screen, no line longer than `width` cells."""
    lines = [cut(_head(document), width)]
    verdict = clean(verdict_words(document | {"growth_state": None}) or "no verdict")
    said = wrap(clean(assessment_words(document)) or verdict, width)
    lines += [said[0].replace(verdict, paint(verdict, _STYLES.get(document["verdict"], "ok")), 1), *said[1:]]
    lines += wrap(_judged_by(document["judged_by"]), width)
    for reason in document["reasons"]:
        lines += wrap(reason, width)
    lines += ["", *plot(document, width, paint)] if document["points"] else []
    lines.append("")
    for sentence in document["why"]:
        first, *rest = wrap(sentence, width - 2)
        lines += [f"- {first}", *(f"  {line}" for line in rest)]
    windows = list(_windows(document, width))
    lines += ["", *windows] if windows else []
    lines += ["", *_next(document, width)]
    return lines


def plot(document: Document, width: int, paint: Paint) -> list[str]:
    """Return the baseline over time, with the window of the alarm below and what was free; the forecast follows now."""
    marks = _ASCII if paint.ascii_only else _UNICODE
    points = document["points"]
    now = max(document["time_seconds"], points[-1]["time_seconds"])
    columns = max(_LEAST_COLUMNS, min(_MOST_COLUMNS, width - _LABEL - _MOST_AHEAD - 2))
    begin = points[0]["time_seconds"]
    step = max((now - begin) / columns, 1.0)
    baseline = _in_columns(points, "baseline_bytes", begin, step, columns)
    used = _in_columns(points, "used_bytes", begin, step, columns)
    ahead = _forecast(document, baseline, step)
    known = [value for value in (*baseline, *used, *ahead) if value is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    high = max(high, low + _LEAST_SHARE * document["memory_total_bytes"])
    lines = []
    height = (high - low) / _ROWS
    for row in range(_ROWS):
        least = low + height * (_ROWS - 1 - row)
        cells = [_cell(value, peak, least, height, marks) for value, peak in zip(baseline, used, strict=True)]
        begins = least + height / 2 if marks.parts and row < _ROWS - 1 else least
        coming = [marks.forecast if value >= begins else " " for value in ahead]
        label = format_bytes(high) if row == 0 else format_bytes(low) if row == _ROWS - 1 else ""
        lines.append(f"{fit(label, _LABEL - 1, right=True)} {marks.axis}{''.join(cells)}{''.join(coming)}".rstrip())
    lines += _below(document, _Scale(begin, step, columns, now), marks, bool(ahead))
    lines += _free(points, _Scale(begin, step, columns, now), paint)
    return [cut(line, width) for line in lines]


class _Scale(NamedTuple):
    begin: float
    step: float
    columns: int
    now: float


def _in_columns(points: Sequence[Document], key: str, begin: float, step: float, columns: int) -> list[float | None]:
    """Return the lowest of each column; one without a point is as the one before, as a point may last for longer."""
    found: list[float | None] = [None] * columns
    for point in points:
        value = point[key]
        place = min(columns - 1, max(0, int((point["time_seconds"] - begin) / step)))
        before = found[place]
        if value is not None and (before is None or value < before):
            found[place] = value
    lasts = (points[1]["time_seconds"] - points[0]["time_seconds"]) / step if len(points) > 1 else 1.0
    missing = 0
    for place in range(1, columns):
        missing = 0 if found[place] is not None else missing + 1
        if 0 < missing <= math.ceil(lasts) + 1:
            found[place] = found[place - 1]
    return found


def _forecast(document: Document, baseline: Sequence[float | None], step: float) -> list[float]:
    """Return the baseline as it goes on, until the memory is full or the plot ends."""
    pace, seconds = document["growth_bytes_per_second"], document["exhaustion_seconds"]
    last = next((value for value in reversed(baseline) if value is not None), None)
    if not pace or pace <= 0 or not seconds or last is None:
        return []
    columns = min(_MOST_AHEAD, max(1, math.ceil(seconds / step)))
    return [last + pace * min(seconds, step * (number + 1)) for number in range(columns)]


def _cell(value: float | None, peak: float | None, least: float, height: float, marks: _Marks) -> str:
    """Return the cell of a row that begins at `least`: the baseline as far as it reaches into it, else the peak."""
    if value is not None and value >= least:
        part = int((value - least) / height * (len(marks.parts) + 1)) if marks.parts else 1
        return marks.baseline if not marks.parts or part > len(marks.parts) - 1 else marks.parts[part]
    return marks.peak if peak is not None and peak >= least else " "


def _below(document: Document, scale: _Scale, marks: _Marks, forecast: bool) -> Iterator[str]:
    """Give the axis of time, and the window on which the alarm was raised."""
    left = f"-{format_duration(scale.now - scale.begin)}"
    coming = "forecast" if forecast else ""
    yield f"{' ' * (_LABEL + 1)}{fit(left, scale.columns - 3)}now {coming}".rstrip()
    alarms = [each for each in document["standards"] if each["alarm"] and each["windows"]]
    if alarms:
        seconds = alarms[0]["windows"][0]["seconds"]
        end = (alarms[0]["alarm_seconds"] - scale.begin) / scale.step
        first = max(0, min(scale.columns - 1, int(end - seconds / scale.step)))
        last = max(first, min(scale.columns - 1, int(end)))
        inner = marks.line * max(0, last - first - 1)
        window = f"{marks.begin}{inner}{marks.end}" if last > first else marks.begin
        label = fit("window", _LABEL - 1, right=True)
        yield f"{label}  {' ' * first}{window} {format_duration(seconds)}, {alarms[0]['sensitivity']}"


def _free(points: Sequence[Document], scale: _Scale, paint: Paint) -> Iterator[str]:
    free = _in_columns(points, "free_bytes", scale.begin, scale.step, scale.columns)
    known = [value for value in free if value is not None]
    if known:
        last = next(value for value in reversed(free) if value is not None)
        label = fit("free", _LABEL - 1, right=True)
        yield f"{label}  {paint.sparkline(free, max(known), scale.columns)} {format_bytes(last)}"


def _head(document: Document) -> str:
    who = f"{clean(document['process'] or 'process')} (pid {document['pid']}"
    who += "".join(f", {clean(document[key])}" for key in ("user", "unit", "app") if document[key])
    ended = "" if document["running"] else ", not running now"
    return f"{who}) on GPU {document['gpu']}{ended}"


def _judged_by(judged: Document) -> str:
    if judged["override"] is None:
        return f"sensitivity {judged['sensitivity']}, that of the node"
    match = ", ".join(f"{key}: {clean(value)}" for key, value in judged["match"].items())
    words = f" ({match})" if match else ""
    node = judged["node_sensitivity"]
    return f"sensitivity {judged['sensitivity']}, by leaks.overrides[{judged['override']}]{words}; the node's is {node}"


def _windows(document: Document, width: int) -> Iterator[str]:
    """Give the windows of the standard that holds, where it has raised no alarm."""
    holds = document["judged_by"]["sensitivity"]
    found = [each for each in document["standards"] if each["sensitivity"] == holds and not each["alarm"]]
    rows = [window for each in found[:1] for window in each["windows"]]
    if rows:
        yield cut(f"windows at {holds}", width)
    for window in rows[-_MOST_WINDOWS:]:
        yield cut(f"  {window['finding']}", width)


def _next(document: Document, width: int) -> Iterator[str]:
    pid = document["pid"]
    unit = document["unit"] or ""
    if document["verdict"] == "leaking" and document["running"]:
        restart = (
            " --restart-unit"
            if unit.endswith(".service") and "/" not in unit and not document.get("container_id")
            else ""
        )
        yield from _command("the line:", f"gpuagent blame {pid}", width)
        yield from _command("cache back:", f"gpuagent release {pid}", width)
        yield from _command("memory back:", f"gpuagent kill {pid}{restart}", width)
    yield from _command("a false alarm:", f"gpuagent leaks feedback {pid} --false --note WHY", width)
    name = document["unit"] and f"--unit {clean(document['unit'])}"
    name = name or f"--process-name {clean(document['process'] or 'NAME')}"
    yield from _command("less sensitive:", f"gpuagent leaks tune strict {name}", width)
    yield from _command("as a trace:", f"gpuagent history export {pid} -o leak.csv", width)
    yield from _command("as a picture:", f"gpuagent leaks explain {pid} --plot leak.svg", width)


def _command(label: str, command: str, width: int) -> Iterator[str]:
    """Yield a command in one line, or below its label and wrapped: whoever copies it has all of it."""
    line = f"{fit(label, _COMMAND_LABEL)}{command}"
    if cell_len(line) <= width:
        yield line
    else:
        yield label
        yield from (f"  {piece}" for piece in wrap(command, width - 2))
