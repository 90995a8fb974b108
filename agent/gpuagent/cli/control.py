"""Telling a running agent to do something, and asking what it knows of apps, over its control socket."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer

from gpuagent.cli.cells import clean
from gpuagent.core.api_client import DEFAULT_URL, AgentUnreachable, default_socket, fetch_document, request

Document = dict[str, Any]

_TIMEOUT_SECONDS = 10.0
"""Longer than a question takes: an answer may wait for a disk."""


class Refused(Exception):
    """No agent answers, or it says no: the text says which and why, and is fit for a terminal."""

    def __init__(self, text: str, *, heard: bool = False) -> None:
        """`heard` is whether an agent has answered."""
        super().__init__(text)
        self.heard = heard


def ask_agent(
    method: str,
    path: str,
    socket: Path | None,
    body: Any = None,
    *,
    timeout_seconds: float = _TIMEOUT_SECONDS,
    also: Collection[int] = (),
) -> Document:
    """Return the agent's answer. Where there is none, or a refusal whose status is not in `also`, end with status 1."""
    try:
        return answer_of(method, path, socket, body, timeout_seconds=timeout_seconds, also=also)
    except Refused as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def answer_of(
    method: str,
    path: str,
    socket: Path | str | None,
    body: Any = None,
    *,
    timeout_seconds: float = _TIMEOUT_SECONDS,
    also: Collection[int] = (),
) -> Document:
    """Return the agent's answer, also one of a refusal whose status is in `also`. Raises Refused.

    A text in place of the socket is the URL of an address that only reads.
    """
    try:
        status, received = request(socket or default_socket(), method, path, timeout_seconds, body=body)
    except AgentUnreachable as error:
        raise Refused(f"the agent cannot be told: {error}") from None
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Refused(f"the agent cannot be told: what answers is no gpuagent (HTTP {status})")
    if status >= 300 and status not in also:
        words = answer.get("message") or answer.get("error") or f"HTTP {status}"
        raise Refused(f"the agent refused: {clean(words)}", heard=True)
    return answer


_REFUSALS = (403, 404, 409, 502, 504)
ABSENT = """\
process {pid} has no embedded client that is connected to the agent, so it cannot be asked.
In the app: pip install gpuagent-client, then `import gpuagent_client; gpuagent_client.start()`."""


def ask_app(pid: int, command: str, args: dict[str, Any], socket: Path | None, *, timeout_seconds: float) -> Any:
    """Return the app's answer. Where there is none, the command ends with 1 and says why."""
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
    """Return the connected apps, from the place that was named, else from the first usual one that answers.

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
