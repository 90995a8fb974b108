"""`gpuagent alerts`, `ack`, `silence` and `receivers`: what fires, who is told, and who is not for now."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gpuagent.cli.agent import EXIT_NO_DATA, Socket, Url, ask_agent, tell
from gpuagent.cli.alert_screen import alert_screen, dead_lines, receiver_lines, silence_lines
from gpuagent.cli.cells import Paint, clean, width_of
from gpuagent.core.api_client import AgentUnreachable, default_socket, fetch_document
from gpuagent.core.matchers import MATCHER_HELP, is_label_name
from gpuagent.core.units import format_duration, parse_duration

_TIMEOUT_SECONDS = 10.0
"""The agent may be waiting for its disk."""


def alerts(
    as_json: Annotated[bool, typer.Option("--json", help="The agent's document")] = False,
    dead: Annotated[bool, typer.Option(help="The messages that could not be delivered, instead")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Show which alerts are pending or firing, the silences, the receivers, and rules that fail.

    Exit status: 0 something could be shown, whatever fires, 3 no agent answers.
    """
    if dead and url is not None:
        raise typer.BadParameter("the read-only address does not tell of messages: ask on the node", param_hint="--url")
    document = _document("/api/v1/alerts/dead" if dead else "/api/v1/alerts", url or socket)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    width = width_of(sys.stdout)
    if dead and not document["dead"]:
        tell("every message could be delivered, or still waits for that")
        return
    lines = dead_lines(document, width, paint) if dead else alert_screen(document, width, paint)
    typer.echo("\n".join(paint.text(line.rstrip()) for line in lines))


def _document(path: str, target: Path | str | None) -> Any:
    try:
        return fetch_document(target or default_socket(), path, _TIMEOUT_SECONDS)
    except AgentUnreachable as error:
        tell(f"no agent answers: {error}")
        raise typer.Exit(EXIT_NO_DATA) from None


def ack(
    alert: Annotated[
        str, typer.Argument(help="Key of an incident, name of a rule, or the fingerprint that `gpuagent alerts` shows")
    ],
    comment: Annotated[str, typer.Option(help="For those who see it too")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Nobody is at it any more: take it back")] = False,
    socket: Socket = None,
) -> None:
    """Acknowledge alerts that fire: they are not repeated any more, and their end is told all the same.

    It lasts until the alert has ended: when it begins anew, that is told. Exit status: 0 done, 1 nothing of that fires,
    or with --remove is acknowledged.
    """
    if remove:
        if comment:
            raise typer.BadParameter("there is nothing to comment on with --remove", param_hint="--comment")
        found = ask_agent("DELETE", f"/api/v1/acks/{quote(alert, safe='')}", socket)["removed"]
        typer.echo(f"no longer acknowledged: {' '.join(found)}")
        return
    answer = ask_agent("POST", "/api/v1/acks", socket, {"alert": alert, "comment": comment})
    found = answer["acknowledged"]
    if found == [alert] and alert.startswith("inc-"):
        typer.echo(f"acknowledged incident {alert}")
        return
    typer.echo(f"acknowledged {len(found)} alert{'' if len(found) == 1 else 's'}: {' '.join(found)}")


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


receivers_app = typer.Typer(no_args_is_help=True, help="Show and test receivers, and send again what they did not get.")

_TEST_TIMEOUT_SECONDS = 310.0
"""The program of an `exec` receiver may take 300 s."""
_NOT_TAKEN = 502


@receivers_app.command("list")
def list_receivers(
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    socket: Socket = None,
) -> None:
    """Show each receiver: what waits for it or is held back, the last attempt, and whether it is switched off."""
    document = ask_agent("GET", "/api/v1/alerts", socket)
    if as_json:
        keys = ("schema", "time_seconds", "alerting", "receivers", "held_back", "heartbeats")
        typer.echo(json.dumps({key: document.get(key) for key in keys}, indent=1))
        return
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    for line in receiver_lines(document, width_of(sys.stdout), paint):
        typer.echo(paint.text(line.rstrip()))


@receivers_app.command("test")
def try_receiver(
    name: Annotated[str, typer.Argument(help="As the configuration calls it")], socket: Socket = None
) -> None:
    """Send one harmless message now, and tell what came of it.

    A receiver that was switched off is used again once it has taken the test. Exit status: 0 taken, 1 not.
    """
    path = f"/api/v1/receivers/{quote(name, safe='')}/test"
    answer = ask_agent("POST", path, socket, timeout_seconds=_TEST_TIMEOUT_SECONDS, also=(_NOT_TAKEN,))
    if not answer["taken"]:
        typer.echo(f"{clean(name)} did not take the message: {clean(answer['outcome'])}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{clean(name)} took the message")


@receivers_app.command()
def replay(
    letter_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="One message, as `gpuagent alerts --dead` shows it")
    ] = None,
    socket: Socket = None,
) -> None:
    """Queue messages that could not be delivered once more: one, or all of them.

    Exit status: 0 queued, also where there was nothing to queue, 1 there is none of this id.
    """
    query = "" if letter_id is None else f"?id={quote(letter_id, safe='')}"
    count = ask_agent("POST", f"/api/v1/receivers/replay{query}", socket)["replayed"]
    typer.echo(f"queued {count} message{'' if count == 1 else 's'} again")
