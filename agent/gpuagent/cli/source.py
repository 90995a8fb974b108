"""Where a command's figures come from: a running agent, or the GPUs themselves, read once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuagent.ask import NoAgent, fetch_anywhere

Socket = Annotated[Path | None, typer.Option("--socket", help="Control socket of the agent")]
Url = Annotated[str | None, typer.Option("--url", help="Read-only address of the agent, such as http://node:9837")]
Direct = Annotated[bool, typer.Option("--direct", help="Read the GPUs without an agent")]

EXIT_NO_DATA = 3


class NoData(Exception):
    """Neither an agent nor the driver could tell anything."""


def get_document(socket: Path | None, url: str | None, *, direct: bool) -> Any:
    """The status document.

    Raises:
        NoData: with both reasons.
    """
    why = ""
    if not direct:
        try:
            return fetch_anywhere(socket, url)
        except NoAgent as error:
            why = str(error)
            if socket is not None or url is not None:  # that agent was asked for, and no other source
                raise NoData(f"no agent answers: {why}") from None
    from gpuagent.cli.direct import DirectReadFailed, read_direct

    if why:
        typer.echo(f"no agent is running ({why}): reading the GPUs directly, once", err=True)
    try:
        return read_direct()
    except DirectReadFailed as error:
        raise NoData(f"the GPUs cannot be read: {error}") from None
