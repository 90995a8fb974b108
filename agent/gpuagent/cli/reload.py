"""`gpuagent config reload`: have the running agent read its configuration again. systemd's ExecReload runs it."""

from __future__ import annotations

import typer

from gpuagent.cli.cells import clean
from gpuagent.cli.control import ask_agent
from gpuagent.cli.source import Socket

_TIMEOUT_SECONDS = 60.0
"""Rules are compiled, and files on a slow disk read."""


def reload(socket: Socket = None) -> None:
    """Have the running agent read its configuration and rules again. A bad one is refused, and the old one stays.

    Exit status: 0 it is in force (standard error has the notes on it), 1 it was refused (standard error says why), or
    no agent answers.
    """
    answer = ask_agent("POST", "/api/v1/reload", socket, timeout_seconds=_TIMEOUT_SECONDS, also=(409,))
    if answer.get("error"):
        typer.echo(f"refused, and the old one stays:\n{answer['error']}", err=True)
        raise typer.Exit(1)
    for note in answer.get("notes", ()):
        typer.echo(f"note: {clean(note)}", err=True)
    typer.echo("the configuration was read again")
