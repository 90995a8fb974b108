"""A running agent, asked or commanded; where none runs, the GPUs themselves, read once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from gpuagent.cli.cells import clean
from gpuagent.core.api_client import (
    DEFAULT_URL,
    AgentUnreachable,
    default_socket,
    fetch_anywhere,
    fetch_document,
    request,
)
from gpuagent.core.identity import node_name

if TYPE_CHECKING:
    from gpuagent.collector.tick import Monitor
    from gpuagent.core.snapshot import Snapshot


Socket = Annotated[Path | None, typer.Option("--socket", help="Control socket of the agent")]
Url = Annotated[str | None, typer.Option("--url", help="HTTP address of the agent, such as http://node:9837")]
Direct = Annotated[bool, typer.Option("--direct", help="Read the GPUs in this process, without the agent")]

EXIT_NO_DATA = 3
_DEADLINE_SECONDS = 5.0
_BETWEEN_SECONDS = 0.25


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
    """Print a message beside the data."""
    typer.echo(text, err=True)


def read_gpus() -> dict[str, object]:
    """Read the GPUs of this node in this process: the same monitor, for two ticks, without an agent.

    Raises:
        NoData: NVML cannot be used, with the driver's reason.
    """
    # Most of the agent: only where it is needed.
    import asyncio
    import logging

    from gpuagent import __version__
    from gpuagent.collector.tick import Monitor, TickTimeouts
    from gpuagent.config.models import Config
    from gpuagent.node import real_node
    from gpuagent_exporters.status.document import status_document

    logging.getLogger().addHandler(logging.NullHandler())
    config = Config()
    node = real_node(config, keep_inventory=False)
    pace = TickTimeouts(fresh_seconds=_DEADLINE_SECONDS, deadline_seconds=_DEADLINE_SECONDS)
    snapshot = asyncio.run(_read_twice(Monitor(node.driver, node.processes, node.clock, pace, node.place)))
    if not snapshot.node.nvml_initializations:
        raise NoData(f"Cannot read the GPUs: {snapshot.node.why_unread or 'NVML did not answer in time'}")
    return status_document(
        snapshot,
        now_seconds=node.clock.now(),
        source="direct",
        version=__version__,
        pid=os.getpid(),
        uptime_seconds=None,
        poll_interval_seconds=config.poll_interval,
        history={},
        history_interval_seconds=0.0,
    )


async def _read_twice(monitor: Monitor) -> Snapshot:
    """Return the second tick where there are GPUs: utilization is told between two readings."""
    import asyncio

    from gpuagent.core.snapshot import GpuState

    snapshot = await monitor.tick()
    if any(gpu.state is GpuState.OK for gpu in snapshot.gpus):
        await asyncio.sleep(_BETWEEN_SECONDS)
        snapshot = await monitor.tick()
    await monitor.close()
    return snapshot


def get_document(
    source: Source,
    *,
    note: Callable[[str], None] = tell,
    fall_back: bool = True,
    ask: Callable[[Path | None, str | None], Any] = fetch_anywhere,
    read: Callable[[], Any] = read_gpus,
) -> Any:
    """Return the status document. `note` is told if the GPUs are read directly because no agent answers.

    Raises:
        NoData: with the reason.
    """
    if source.direct:
        return read()
    try:
        return ask(source.socket, source.url)
    except AgentUnreachable as error:
        if source.named or not fall_back:
            raise NoData(f"Cannot reach the agent: {error}. Is it running?") from None
        note(f"No agent is running ({error}): showing one direct reading of the GPUs.")
    return read()


Document = dict[str, Any]

_COMMAND_TIMEOUT_SECONDS = 10.0
"""Longer than a question takes: an answer may wait for a disk."""


class Refused(Exception):
    """No agent or app answers, or it says no: the text says which and why, and is fit for a terminal."""

    def __init__(self, text: str, *, heard: bool = False) -> None:
        """`heard` is whether an agent has answered."""
        super().__init__(text)
        self.heard = heard


@contextmanager
def exit_where_refused() -> Generator[None]:
    """End the command with status 1, and say why, where no answer comes."""
    try:
        yield
    except Refused as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def ask_agent(
    method: str,
    path: str,
    socket: Path | None,
    body: Any = None,
    *,
    timeout_seconds: float = _COMMAND_TIMEOUT_SECONDS,
    also: Collection[int] = (),
) -> Document:
    """Return the agent's answer. Where there is none, or a refusal whose status is not in `also`, end with status 1."""
    with exit_where_refused():
        return answer_of(method, path, socket, body, timeout_seconds=timeout_seconds, also=also)


def answer_of(
    method: str,
    path: str,
    socket: Path | str | None,
    body: Any = None,
    *,
    timeout_seconds: float = _COMMAND_TIMEOUT_SECONDS,
    also: Collection[int] = (),
) -> Document:
    """Return the agent's answer, also one of a refusal whose status is in `also`. Raises Refused.

    A text in place of the socket is the URL of an address that only reads.
    """
    try:
        status, received = request(socket or default_socket(), method, path, timeout_seconds, body=body)
    except AgentUnreachable as error:
        raise Refused(f"Cannot reach the agent: {error}. Is it running?") from None
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Refused(f"Cannot reach the agent: another program answered (HTTP {status}).")
    if status >= 300 and status not in also:
        words = answer.get("message") or answer.get("error") or f"HTTP {status}"
        raise Refused(f"The agent refused: {clean(words)}", heard=True)
    return answer


_REFUSALS = (403, 404, 409, 502, 504)
_ABSENT = """\
Process {pid} has no client that is connected to the agent, so it cannot be asked.
In the app: pip install gpuagent-client, then `import gpuagent_client; gpuagent_client.start()`.
"""
_LISTENS = """\
This agent listens for apps at {socket}; if the app was started where that is not
the usual place, start it with GPUAGENT_SOCKET={socket}.
"""
_UNCHANGED = "Without a change to the app: docs/blame.md, and on Python 3.14 `gpuagent attach {pid}`."


_MADE_UP = """\
Process {pid} is made up by the scenario of a simulated node: there is no app to ask.
To try it with a real one: docs/first-leak.md."""


def absent_text(pid: int, socket: Path | None) -> str:
    """Say that an app is not connected, where the agent behind this control socket listens, and what to do."""
    from gpuagent.procfs.table import HIGHEST_PID  # only where it is needed

    if pid > HIGHEST_PID:
        return _MADE_UP.format(pid=pid)
    try:
        path = answer_of("GET", "/api/v1/clients", socket).get("socket")
    except Refused:  # an agent that ends meanwhile
        path = ""
    listens = _LISTENS.format(socket=clean(path)) if path and isinstance(path, str) else ""
    return f"{_ABSENT.format(pid=pid)}{listens}{_UNCHANGED.format(pid=pid)}"


def answer_of_app(
    pid: int,
    command: str,
    args: dict[str, Any],
    socket: Path | None,
    *,
    timeout_seconds: float,
    absent_seconds: float = 0.0,
) -> Document:
    """Return the app's answer. Raises Refused where there is none.

    An app that is not connected is waited for as long as `absent_seconds` says.
    """
    give_up = time.monotonic() + absent_seconds
    while True:
        answer = answer_of(
            "POST", f"/api/v1/clients/{pid}/{command}", socket, args, timeout_seconds=timeout_seconds, also=_REFUSALS
        )
        if answer.get("reason") != "absent" or time.monotonic() >= give_up:
            break
        time.sleep(_BETWEEN_SECONDS)
    if "reason" not in answer or "message" not in answer:
        return answer
    if answer["reason"] == "absent":
        raise Refused(absent_text(pid, socket), heard=True)
    raise Refused(f"The app did not do it: {clean(answer['message'])}", heard=True)


def fetch_clients(socket: Path | None, url: str | None) -> Any:
    """Return the connected apps, from the place that was named, else from the first usual one that answers.

    Raises:
        AgentUnreachable: none answers; the reason is that of the first.
    """
    named = url if url is not None else socket
    first: AgentUnreachable | None = None
    places: list[Path | str] = [default_socket(), DEFAULT_URL]
    for place in places if named is None else [named]:
        try:
            return fetch_document(place, "/api/v1/clients")
        except AgentUnreachable as error:
            first = first or error
    raise first or AgentUnreachable("no address was tried")
