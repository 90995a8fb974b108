"""Asking an app through the agent, and a plain sentence where that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gpuagent.cli.cells import clean
from gpuagent.cli.control import ask_agent
from gpuagent.core.api_client import DEFAULT_URL, AgentUnreachable, default_socket, fetch_document

_REFUSALS = (403, 404, 409, 502, 504)
ABSENT = """\
process {pid} has no embedded client that is connected to the agent, so it cannot be asked.
In the app: pip install gpuagent-client, then `import gpuagent_client; gpuagent_client.start()`."""


def ask_app(pid: int, command: str, args: dict[str, Any], socket: Path | None, *, timeout_seconds: float) -> Any:
    """The app's answer. Where there is none, the command ends with 1 and says why."""
    answer = ask_agent(
        "POST", f"/api/v1/clients/{pid}/{command}", socket, args, timeout_seconds=timeout_seconds, also=_REFUSALS
    )
    if "reason" not in answer or "message" not in answer:
        return answer
    if answer["reason"] == "absent":
        typer.echo(ABSENT.format(pid=pid), err=True)
    else:
        typer.echo(f"the app did not do it: {clean(answer['message'])}", err=True)
    raise typer.Exit(1)


def fetch_clients(socket: Path | None, url: str | None) -> Any:
    """The connected apps, from the place that was named, else from the first usual one that answers.

    Raises:
        NoAgent: none answers; the reason is that of the first.
    """
    named = url if url is not None else socket
    first: AgentUnreachable | None = None
    places: list[Path | str] = [default_socket(), DEFAULT_URL]
    for place in places if named is None else [named]:
        try:
            return fetch_document(place, "/api/v1/clients")
        except AgentUnreachable as error:
            first = first or error
    raise first or AgentUnreachable("nobody was asked")
