"""`gpuagent silence`: alerts that nobody wants to hear of for a while."""

from __future__ import annotations

import json
import sys
from typing import Annotated
from urllib.parse import quote

import typer

from gpuagent.cli.alert_screen import silence_lines
from gpuagent.cli.cells import Paint, width_of
from gpuagent.cli.control import ask_agent
from gpuagent.cli.source import Socket
from gpuagent.matchers import MATCHER_HELP, is_label_name
from gpuagent.units import format_duration, parse_duration

silence_app = typer.Typer(no_args_is_help=True, help="Do not tell of some alerts for a while.")


@silence_app.command()
def add(
    duration: Annotated[str, typer.Option("--for", help="It ends by itself after this long")],
    matchers: Annotated[
        list[str] | None,
        typer.Argument(help=f"All must hold of an alert's labels: {MATCHER_HELP}; NAME is short for alertname=NAME"),
    ] = None,
    comment: Annotated[str, typer.Option(help="Why, for those who see it too")] = "",
    incident: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="All alerts of this incident, also those that join it later; `gpuagent alerts` shows its key",
        ),
    ] = "",
    socket: Socket = None,
) -> None:
    """Begin a silence now, as with `amtool silence add`. What matches goes on firing, and nobody is told.

    Exit status: 0 it is in force, and its id is on standard output, 1 the agent could not be told or refused.
    """
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    matchers = [f"alertname={text}" if is_label_name(text) else text for text in matchers or ()]
    if incident:
        matchers.append(f"incident={json.dumps(incident)}")
    if not matchers:
        raise typer.BadParameter("say what to silence: a matcher, or --incident", param_hint="MATCHERS")
    body = {"matchers": matchers, "seconds": seconds, "comment": comment}
    silence = ask_agent("POST", "/api/v1/silences", socket, body)
    typer.echo(silence["id"])
    if silence.get("note"):
        typer.echo(f"note: {silence['note']}", err=True)
    typer.echo(f"silenced for {format_duration(seconds)}; `gpuagent silence expire {silence['id']}` ends it", err=True)


@silence_app.command("list")
def list_silences(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also those that ended in the last 5 days")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    socket: Socket = None,
) -> None:
    """Show the silences in force, and those that are to begin."""
    document = ask_agent("GET", "/api/v1/alerts", socket)
    silences = [silence for silence in document["silences"] if show_all or silence["state"] != "expired"]
    if as_json:
        typer.echo(json.dumps({"schema": document["schema"], "silences": silences}, indent=1))
        return
    if not silences:
        typer.echo("no silence is in force", err=True)
        return
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    for line in silence_lines(silences, document["time_seconds"], width_of(sys.stdout), paint):
        typer.echo(paint.text(line))


@silence_app.command()
def expire(
    silence_id: Annotated[str, typer.Argument(metavar="ID", help="As `gpuagent silence list` shows it")],
    socket: Socket = None,
) -> None:
    """End a silence now. What still fires is told. Exit status: 0 it has ended, 1 there is none of this id."""
    ask_agent("DELETE", f"/api/v1/silences/{quote(silence_id, safe='')}", socket)
    typer.echo("the silence has ended")
