"""`gpuagent leaks`: why a process is called leaking, how sure the detector must be of it, and whether it was right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gpuagent.cli.cells import Paint, clean, width_of, wrap
from gpuagent.cli.control import Refused, answer_of, ask_agent
from gpuagent.cli.source import Socket, Url, tell
from gpuagent.core.api_client import DEFAULT_URL

Document = dict[str, Any]

leaks_app = typer.Typer(
    no_args_is_help=True, help="See why a process is called leaking, and say how sure the detector must be."
)
Gpu = Annotated[str, typer.Option(metavar="N|UUID", help="Where the process is on several GPUs: which")]
_OneOf = Annotated[
    Literal["off", "strict", "balanced", "sensitive"],
    typer.Argument(
        show_default=False, help="How much evidence a leak needs, as `leaks.sensitivity`; off: none is told"
    ),
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
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Show why a process is called leaking, or why there is no verdict: the evidence in words, and a plot.

    The plot has the baseline (what was never given back), what was free, the window of the alarm and the forecast.
    Processes that have ended after a leak are remembered too, the last 16. Exit status: 0 it was shown, 1 no agent
    answers, or it knows of no such process.
    """
    from gpuagent.cli.leaks_screen import lines_of

    document = ask_to_read(f"/api/v1/leaks/{pid}{_query(gpu)}", socket, url)
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
        str, typer.Option(help="Processes whose embedded client gives them this name; never more sensitive")
    ] = "",
    unit: Annotated[str, typer.Option(help="Processes of this systemd unit")] = "",
    user: Annotated[str, typer.Option(help="Processes of this user, outside of containers")] = "",
    process_name: Annotated[str, typer.Option(help="Processes of this name, as `gpuagent ps` shows it")] = "",
    container: Annotated[str, typer.Option(help="Processes of this container: its id, or its name")] = "",
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="By default /etc/gpuagent/gpuagent.yaml.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the lines for the configuration, and change nothing")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write and reload without asking")] = False,
    socket: Socket = None,
) -> None:
    """Set how sure the leak detector must be of some processes: all that is given must hold of them.

    Checks the configuration as it would be, shows what would change, and asks; then writes it and has the agent reload.
    Comments and the order of the file stay. Where the file cannot be written or is in a form that is not edited, and
    where nobody can be asked, the lines are printed instead, with what to do. Histories stay; the verdict follows with
    the next block of readings, within 15 s.

    Exit status: 0 it is so (or, with --print, could be), 1 it cannot be so, or was not wanted, 2 wrong usage.
    """
    from gpuagent.cli.leaks_tune import tune_file

    given = {"app": app, "unit": unit, "user": user, "process_name": process_name, "container": container}
    match = {key: value for key, value in given.items() if value}
    if not match:
        raise typer.BadParameter("say for whom: --app, --unit, --user, --process-name or --container")
    raise typer.Exit(tune_file(config, match, sensitivity, socket, show=show, yes=yes))


@leaks_app.command()
def feedback(
    pid: Annotated[int | None, typer.Argument(help="The process", min=1)] = None,
    false: Annotated[bool, typer.Option("--false", help="It does not leak: a false alarm")] = False,
    true: Annotated[bool, typer.Option("--true", help="It leaks")] = False,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why, for those who read it later")] = "",
    gpu: Gpu = "",
    listed: Annotated[bool, typer.Option("--list", "-l", help="Show what was said so far")] = False,
    remove: Annotated[str, typer.Option(metavar="ID", help="Forget one, as --list shows its id")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON document")] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Say whether a process leaks: its history is kept with that, for `gpuagent replay --labelled`.

    It ends no alert and changes no sensitivity: for that there are `gpuagent silence` and `gpuagent leaks tune`. At
    most 200 histories and 16 MiB are kept in the state directory; the oldest go, and the answer says which.

    Exit status: 0 it is kept (or shown, or removed), 1 no agent answers or it refused, 2 wrong usage.
    """
    chosen = [pid is not None, listed, bool(remove)]
    if sum(chosen) != 1:
        raise typer.BadParameter("give a PID with --false or --true, or --list, or --remove ID")
    if listed:
        _list(ask_to_read("/api/v1/leaks/feedback", socket, url), as_json=as_json)
        return
    if url is not None:
        raise typer.BadParameter("the address only reads: feedback goes to the control socket", param_hint="--url")
    if remove:
        from urllib.parse import quote

        ask_agent("POST", f"/api/v1/leaks/feedback/{quote(remove, safe='')}/remove", socket)
        tell("removed")
        return
    if false == true:
        raise typer.BadParameter("say --false (a false alarm) or --true (it leaks)")
    body = {"label": "true" if true else "false", "note": note, "gpu": gpu}
    kept = ask_agent("POST", f"/api/v1/leaks/{pid}/feedback", socket, body)
    if as_json:
        typer.echo(json.dumps(kept, indent=1))
        return
    typer.echo(kept["id"])
    tell(f"kept: {_about(kept)} {_said(kept)}")
    if kept["evicted"]:
        tell(f"the oldest made room: {', '.join(clean(each) for each in kept['evicted'])}")
    tell("`gpuagent replay --labelled` shows what each sensitivity would have said of it")


def _list(document: Document, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    from gpuagent.core.units import format_time

    if not document["feedback"]:
        tell("nobody has said anything of a verdict yet")
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
