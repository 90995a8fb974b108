"""`gpuagent receivers`: who is told, try whether somebody can be, and tell again what could not be told."""

from __future__ import annotations

import json
import sys
from typing import Annotated
from urllib.parse import quote

import typer

from gpuagent.cli.alert_screen import receiver_lines
from gpuagent.cli.cells import Paint, clean, width_of
from gpuagent.cli.control import ask_agent
from gpuagent.cli.source import Socket

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
