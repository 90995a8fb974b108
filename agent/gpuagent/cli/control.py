"""Telling a running agent to do something, over its control socket."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer

from gpuagent.ask import NoAgent, default_socket, request
from gpuagent.cli.cells import clean

Document = dict[str, Any]

_TIMEOUT_SECONDS = 10.0
"""Longer than a question takes: an answer may wait for a disk."""


def ask_agent(
    method: str,
    path: str,
    socket: Path | None,
    body: Any = None,
    *,
    timeout_seconds: float = _TIMEOUT_SECONDS,
    also: Collection[int] = (),
) -> Document:
    """The agent's answer. Where there is none, or a refusal with a status not in `also`, the command ends with 1."""
    try:
        status, received = request(socket or default_socket(), method, path, timeout_seconds, body=body)
    except NoAgent as error:
        typer.echo(f"the agent cannot be told: {error}", err=True)
        raise typer.Exit(1) from None
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        typer.echo(f"the agent cannot be told: what answers is no gpuagent (HTTP {status})", err=True)
        raise typer.Exit(1)
    if status >= 300 and status not in also:
        words = answer.get("message") or answer.get("error") or f"HTTP {status}"
        typer.echo(f"the agent refused: {clean(words)}", err=True)
        raise typer.Exit(1)
    return answer
