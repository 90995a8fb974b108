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
    except NoAgent as error:
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
