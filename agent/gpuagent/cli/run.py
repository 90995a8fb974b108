"""`gpuagent run`: the service."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

EXIT_CONFIGURATION = 78
"""EX_CONFIG of sysexits.h: starting again will not help, and systemd's RestartPreventExitStatus may know it."""
EXIT_ADDRESS = 71


def run(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file; default: /etc/gpuagent/gpuagent.yaml")
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(help="Run on a simulated node: the name of a shipped scenario, or a file", metavar="SCENARIO"),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="With --simulate: how much faster than real time", min=0.1, max=1000)
    ] = 1.0,
    bind: Annotated[
        list[str] | None,
        typer.Option(help="With --simulate: use a real process for one that the scenario names", metavar="KEY=PID"),
    ] = None,
) -> None:
    """Run the agent in the foreground: measure this node, export metrics, send alerts.

    Exit status: 0 stopped by a signal, 71 an address is in use or another agent uses the state directory, 78 the
    configuration is invalid.
    """
    from gpuagent.service.assemble import AnotherAgentError, StartError, assemble

    if math.isnan(speed):  # no bound holds of it
        raise typer.BadParameter("must be a number", param_hint="--speed")
    if simulate is None and (speed != 1.0 or bind):
        raise typer.BadParameter("needs --simulate", param_hint="--bind" if bind else "--speed")
    try:
        start = assemble(config, simulate=simulate, speed=speed, bind=_bindings(bind or []))
    except AnotherAgentError as error:
        typer.echo(error, err=True)
        raise typer.Exit(EXIT_ADDRESS) from None
    except StartError as error:
        typer.echo(error, err=True)
        raise typer.Exit(EXIT_CONFIGURATION) from None
    try:
        replace = start.run()
    except StartError as error:
        typer.echo(error, err=True)
        raise typer.Exit(EXIT_ADDRESS) from None
    sys.stderr.flush()
    if replace:
        start.renewal.take_over([sys.executable, "-m", "gpuagent", *sys.argv[1:]])
    # Threads that are stuck in the driver would be waited for by the interpreter's own way out.
    os._exit(0)


def _bindings(texts: list[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        key, _, pid = text.partition("=")
        if not key or not pid.isdecimal():
            raise typer.BadParameter(f"{text!r} is not KEY=PID", param_hint="--bind")
        found[key] = int(pid)
    return found
