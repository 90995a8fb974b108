"""`gpuagent pause` and `gpuagent resume`: give the GPUs back to the driver for a while.

An open NVML client blocks unloading the driver, resetting a GPU and binding it to another driver
(https://github.com/NVIDIA/dcgm-exporter/issues/706).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from gpuagent.ask import NoAgent, default_socket, request
from gpuagent.units import format_duration, parse_duration

_RELEASED_WITHIN_SECONDS = 10.0

Socket = Annotated[Path | None, typer.Option("--socket", help="Control socket of the agent")]


def pause(
    duration: Annotated[str, typer.Option("--for", help="Resume by itself after this long")] = "10m",
    socket: Socket = None,
) -> None:
    """Close NVML, so that the driver can be reloaded, a GPU reset or MIG changed. Nothing is measured meanwhile.

    Exit status: 0 every handle is closed, 1 the agent could not be told, or did not let go in time.
    """
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    answer = _ask("POST", f"/api/v1/pause?seconds={seconds}", socket)
    deadline = time.monotonic() + _RELEASED_WITHIN_SECONDS
    while not answer.get("released"):
        if time.monotonic() > deadline:
            typer.echo("the agent has not let go of the driver yet: a call is stuck in it", err=True)
            raise typer.Exit(1)
        time.sleep(0.1)
        answer = _ask("GET", "/api/v1/pause", socket)
    typer.echo(f"paused for {format_duration(seconds)}: the GPUs are released. `gpuagent resume` ends it sooner.")


def resume(socket: Socket = None) -> None:
    """Measure again after `gpuagent pause`."""
    _ask("POST", "/api/v1/resume", socket)
    typer.echo("resumed")


def _ask(method: str, path: str, socket: Path | None) -> dict[str, object]:
    try:
        status, body = request(socket or default_socket(), method, path)
        answer: dict[str, object] = json.loads(body)
    except (NoAgent, ValueError) as error:
        typer.echo(f"the agent cannot be told: {error}", err=True)
        raise typer.Exit(1) from None
    if status != 200:
        typer.echo(f"the agent refused: {answer.get('message') or answer.get('error') or status}", err=True)
        raise typer.Exit(1)
    return answer
