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
    as_json: Annotated[bool, typer.Option("--json", help="Print the agent's JSON document")] = False,
    dead: Annotated[
        bool, typer.Option(help="Show messages that could not be delivered (dead letters) instead")
    ] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Show pending and firing alerts, active silences, receivers, and rules that cannot be evaluated.

    Exit status: 0 shown, whether or not alerts fire, 3 the agent does not answer.
    """
    if dead and url is not None:
        raise typer.BadParameter("dead letters are shown on the node only, over the control socket", param_hint="--url")
    document = _document("/api/v1/alerts/dead" if dead else "/api/v1/alerts", url or socket)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    width = width_of(sys.stdout)
    if dead and not document["dead"]:
        tell("No undeliverable messages.")
        return
    lines = dead_lines(document, width, paint) if dead else alert_screen(document, width, paint)
    typer.echo("\n".join(paint.text(line.rstrip()) for line in lines))


def _document(path: str, target: Path | str | None) -> Any:
    try:
        return fetch_document(target or default_socket(), path, _TIMEOUT_SECONDS)
    except AgentUnreachable as error:
        tell(f"Cannot reach the agent: {error}. Is it running?")
        raise typer.Exit(EXIT_NO_DATA) from None


def ack(
    alert: Annotated[str, typer.Argument(help="Incident key, rule name or fingerprint, as `gpuagent alerts` shows it")],
    comment: Annotated[str, typer.Option(help="Comment for others who see the alert")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the acknowledgement")] = False,
    socket: Socket = None,
) -> None:
    """Stop repeat notifications for a firing alert. You are still notified when it resolves.

    The acknowledgement ends with the alert: if it fires again, you are notified again.

    Exit status: 0 done, 1 no such alert fires, or with --remove none is acknowledged.
    """
    if remove:
        if comment:
            raise typer.BadParameter("cannot be combined with --remove", param_hint="--comment")
        found = ask_agent("DELETE", f"/api/v1/acks/{quote(alert, safe='')}", socket)["removed"]
        typer.echo(f"No longer acknowledged: {' '.join(found)}")
        return
    typer.echo(report_ack(alert, ask_agent("POST", ACKS_PATH, socket, {"alert": alert, "comment": comment})))


ACKS_PATH = "/api/v1/acks"
SILENCES_PATH = "/api/v1/silences"


def report_ack(alert: str, answer: dict[str, Any]) -> str:
    """Return in one line what the agent has acknowledged."""
    found = answer["acknowledged"]
    if found == [alert] and alert.startswith("inc-"):
        return f"Acknowledged incident {alert}."
    return f"Acknowledged {len(found)} alert{'' if len(found) == 1 else 's'}: {' '.join(found)}"


def silence_body(matchers: list[str], seconds: float, comment: str) -> dict[str, Any]:
    """Return what asks the agent for a silence from now on."""
    return {"matchers": matchers, "seconds": seconds, "comment": comment}


def incident_matcher(key: str) -> str:
    """Return the matcher of all alerts of an incident, later ones too."""
    return f"incident={json.dumps(key)}"


silence_app = typer.Typer(no_args_is_help=True, help="Suppress notifications of some alerts for a while.")


@silence_app.command()
def add(
    duration: Annotated[str, typer.Option("--for", help="Duration, such as 2h")],
    matchers: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Matchers that must all match an alert's labels: {MATCHER_HELP}; NAME means alertname=NAME"
        ),
    ] = None,
    comment: Annotated[str, typer.Option(help="Reason, for others who see the silence")] = "",
    incident: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Silence all alerts of this incident, including later ones; `gpuagent alerts` shows its key",
        ),
    ] = "",
    socket: Socket = None,
) -> None:
    """Silence alerts from now on, as `amtool silence add` does. Matching alerts keep firing without notifications.

    Prints the ID of the silence. Exit status: 0 in force, 1 the agent does not answer, or refused.
    """
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    matchers = [f"alertname={text}" if is_label_name(text) else text for text in matchers or ()]
    if incident:
        matchers.append(incident_matcher(incident))
    if not matchers:
        raise typer.BadParameter("give a matcher, or --incident", param_hint="MATCHERS")
    silence = ask_agent("POST", SILENCES_PATH, socket, silence_body(matchers, seconds, comment))
    typer.echo(silence["id"])
    if silence.get("note"):
        typer.echo(f"note: {silence['note']}", err=True)
    typer.echo(
        f"Silenced for {format_duration(seconds)}. To end it earlier: gpuagent silence expire {silence['id']}", err=True
    )


@silence_app.command("list")
def list_silences(
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Include silences that expired in the last 5 days")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    socket: Socket = None,
) -> None:
    """List active and pending silences."""
    document = ask_agent("GET", "/api/v1/alerts", socket)
    silences = [silence for silence in document["silences"] if show_all or silence["state"] != "expired"]
    if as_json:
        typer.echo(json.dumps({"schema": document["schema"], "silences": silences}, indent=1))
        return
    if not silences:
        typer.echo("No active silences.", err=True)
        return
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    for line in silence_lines(silences, document["time_seconds"], width_of(sys.stdout), paint):
        typer.echo(paint.text(line))


@silence_app.command()
def expire(
    silence_id: Annotated[
        str, typer.Argument(metavar="ID", help="ID of the silence, as `gpuagent silence list` shows it")
    ],
    socket: Socket = None,
) -> None:
    """End a silence now. You are notified of alerts that still fire.

    Exit status: 0 ended, 1 no silence has this ID.
    """
    ask_agent("DELETE", f"/api/v1/silences/{quote(silence_id, safe='')}", socket)
    typer.echo("The silence has ended.")


receivers_app = typer.Typer(no_args_is_help=True, help="Show and test receivers, and resend undelivered messages.")

_TEST_TIMEOUT_SECONDS = 310.0
"""The program of an `exec` receiver may take 300 s."""
_NOT_TAKEN = 502


@receivers_app.command("list")
def list_receivers(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    socket: Socket = None,
) -> None:
    """Show each receiver: queued and held-back messages, the last attempt, and whether it is switched off."""
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
    name: Annotated[str, typer.Argument(help="Name of the receiver in the configuration")], socket: Socket = None
) -> None:
    """Send a test message to a receiver and show the result.

    A receiver that is switched off is switched on again when it accepts the test.

    Exit status: 0 accepted, 1 not accepted.
    """
    path = f"/api/v1/receivers/{quote(name, safe='')}/test"
    answer = ask_agent("POST", path, socket, timeout_seconds=_TEST_TIMEOUT_SECONDS, also=(_NOT_TAKEN,))
    if not answer["taken"]:
        typer.echo(f"{clean(name)} did not accept the message: {clean(answer['outcome'])}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{clean(name)} accepted the message.")


@receivers_app.command()
def replay(
    letter_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="ID of one message, as `gpuagent alerts --dead` shows it")
    ] = None,
    socket: Socket = None,
) -> None:
    """Queue undeliverable messages (dead letters) again: one, or all of them.

    Exit status: 0 queued, or nothing to queue, 1 no message has this ID.
    """
    query = "" if letter_id is None else f"?id={quote(letter_id, safe='')}"
    count = ask_agent("POST", f"/api/v1/receivers/replay{query}", socket)["replayed"]
    typer.echo(f"Queued {count} message{'' if count == 1 else 's'} again.")
