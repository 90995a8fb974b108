"""Where a command's figures come from: a running agent, or the GPUs themselves, read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from gpuagent.core.api_client import AgentUnreachable, fetch_anywhere
from gpuagent.core.identity import node_name

Socket = Annotated[Path | None, typer.Option("--socket", help="Control socket of the agent")]
Url = Annotated[str | None, typer.Option("--url", help="Read-only address of the agent, such as http://node:9837")]
Direct = Annotated[bool, typer.Option("--direct", help="Read the GPUs without an agent")]

EXIT_NO_DATA = 3


class NoData(Exception):
    """Neither an agent nor the driver could tell anything."""


class Source(NamedTuple):
    """What the options of a command ask for."""

    socket: Path | None = None
    url: str | None = None
    direct: bool = False

    @property
    def named(self) -> bool:
        """One agent was asked for: no other source, and not this node's GPUs, may answer in its place."""
        return self.socket is not None or self.url is not None

    @property
    def hostname(self) -> str:
        """Whose GPUs these are."""
        if self.url is None or self.direct:
            return node_name()
        return urlsplit(self.url if "//" in self.url else f"http://{self.url}").hostname or ""


def tell(text: str) -> None:
    """A message beside the data."""
    typer.echo(text, err=True)


def read_gpus() -> Any:
    """Read the GPUs of this node in this process.

    Raises:
        NoData: with the driver's reason.
    """
    from gpuagent.cli.direct import DirectReadFailed, read_direct  # most of the agent: only where it is needed

    try:
        return read_direct()
    except DirectReadFailed as error:
        raise NoData(f"the GPUs cannot be read: {error}") from None


def get_document(
    source: Source,
    *,
    note: Callable[[str], None] = tell,
    fall_back: bool = True,
    ask: Callable[[Path | None, str | None], Any] = fetch_anywhere,
    read: Callable[[], Any] = read_gpus,
) -> Any:
    """The status document. `note` is told if the GPUs are read directly because no agent answers.

    Raises:
        NoData: with the reason.
    """
    if source.direct:
        return read()
    try:
        return ask(source.socket, source.url)
    except AgentUnreachable as error:
        if source.named or not fall_back:
            raise NoData(f"no agent answers: {error}") from None
        note(f"no agent is running ({error}): read the GPUs directly, once")
    return read()
