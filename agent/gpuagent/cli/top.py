"""`gpuagent top`: the screen one works in. It needs textual, which is asked for when the command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpuagent.cli.agent import Direct, Socket, Source, Url, tell

_MISSING = "gpuagent top needs the package textual: pip install 'gpuagent[top]'. Without it: gpuagent status --watch."


def top(
    interval: Annotated[
        float | None,
        typer.Option("--interval", "-d", min=0.5, help="Seconds between two readings; default: the agent's"),
    ] = None,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Work with the GPUs on one screen: who holds memory, what is wrong, and what to do about it.

    Shows problems, GPUs and processes; sorts, filters, groups, and shows everything about one process. Acts by key ask
    first, and are checked and recorded by the agent like those of `gpuagent kill`. ? shows the keys.

    With --url it only reads. Without an agent it reads the GPUs itself, until the agent is there again.

    Exit status: 0 quit, 1 textual is not installed, 2 no terminal.
    """
    try:
        import textual  # noqa: F401
    except ImportError:
        tell(_MISSING)
        raise typer.Exit(1) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        tell("gpuagent top needs a terminal: gpuagent status prints the same figures.")
        raise typer.Exit(2)
    from gpuagent.top.app import TopApp
    from gpuagent.top.preferences import preferences_path
    from gpuagent.top.source import AgentSource

    TopApp(AgentSource(Source(socket, url, direct)), preferences_path(), interval_seconds=interval).run()
