"""`gpuagent attach`: the question of `gpuagent blame` to an app that does not have the client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuagent.cli.agent import Socket, ask_agent, tell
from gpuagent.cli.apps import (
    DEFAULT_MAX_PAUSE,
    Census,
    EverythingAsJson,
    Lines,
    MaxPause,
    ShowKeys,
    Window,
    ask_blame,
    blame_args,
    print_blame,
    read_duration,
)
from gpuagent.cli.remedy_requests import read_pid

_CONNECT_SECONDS = 15.0
"""The client connects within a second; an agent under load takes longer to list it."""


def attach(
    pid: Annotated[int, typer.Argument(metavar="PID", parser=read_pid, help="The process, as `gpuagent ps` shows it")],
    window: Window = "60s",
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for the main thread to run Python code")
    ] = "30s",
    census: Census = True,
    lines: Lines = True,
    show_keys: ShowKeys = False,
    max_pause: MaxPause = DEFAULT_MAX_PAUSE,
    client: Annotated[
        Path | None, typer.Option("--client", help="Directory that contains gpuagent_client, else the agent's own")
    ] = None,
    as_json: EverythingAsJson = False,
    socket: Socket = None,
) -> None:
    """Find the line of code that holds growing memory, in a running app without gpuagent-client (Python 3.14).

    Loads the client into the process, asks as `gpuagent blame` does, and removes it again. Run it as the user who owns
    the process, or as root. The app's code and files are not changed.

    Exit status: 0 done, 1 the process cannot be attached to, or the app refused.
    """
    from gpuagent.attach.attachment import attached, describe, find_client  # only where it is needed
    from gpuagent.attach.target import NotAttachable

    args = blame_args(window, max_pause, census=census, lines=lines, show_keys=show_keys)
    wait_seconds = read_duration(wait, "--wait")
    ask_agent("GET", "/api/v1/clients", socket)  # without an agent nothing could be asked: then the app stays as it is
    try:
        directory = find_client() if client is None else str(client.resolve())
        with attached(pid, client_directory=directory, safe_point_seconds=wait_seconds) as attachment:
            try:
                answer = ask_blame(pid, args, socket, absent_seconds=_CONNECT_SECONDS)
            except BaseException:
                tell(f"Removing the client from process {pid} ...")
                raise
    except NotAttachable as error:
        tell(str(error))
        raise typer.Exit(1) from None
    print_blame(answer, as_json=as_json)
    if attachment.own or attachment.left is None or attachment.left.threads or attachment.left.modules:
        tell(f"Process {pid}: {describe(attachment.left)}.")
