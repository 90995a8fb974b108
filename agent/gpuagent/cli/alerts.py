"""`gpuagent alerts`: what fires, who is told, and what stands in the way of that."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuagent.cli.alert_screen import alert_screen, dead_lines
from gpuagent.cli.cells import Paint, width_of
from gpuagent.cli.source import EXIT_NO_DATA, Socket, Url, tell
from gpuagent.core.api_client import AgentUnreachable, default_socket, fetch_document

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
