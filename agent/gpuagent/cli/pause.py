"""`gpuagent pause` and `gpuagent resume`: give the GPUs back to the driver for a while.

An open NVML client blocks unloading the driver, resetting a GPU and binding it to another driver
(https://github.com/NVIDIA/dcgm-exporter/issues/706).
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpuagent.cli.control import ask_agent
from gpuagent.cli.source import Socket
from gpuagent.core.units import format_duration, parse_duration

_RELEASED_WITHIN_SECONDS = 10.0


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
    answer = ask_agent("POST", f"/api/v1/pause?seconds={seconds}", socket)
    deadline = time.monotonic() + _RELEASED_WITHIN_SECONDS
    while not answer.get("released"):
        if time.monotonic() > deadline:
            typer.echo("the agent has not let go of the driver yet: a call is stuck in it", err=True)
            raise typer.Exit(1)
        time.sleep(0.1)
        answer = ask_agent("GET", "/api/v1/pause", socket)
    typer.echo(f"paused for {format_duration(seconds)}: the GPUs are released. `gpuagent resume` ends it sooner.")


def resume(socket: Socket = None) -> None:
    """Measure again after `gpuagent pause`."""
    ask_agent("POST", "/api/v1/resume", socket)
    typer.echo("resumed")
