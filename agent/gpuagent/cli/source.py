"""Where a command's figures come from: a running agent, or the GPUs themselves, read once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from gpuagent.core.api_client import AgentUnreachable, fetch_anywhere
from gpuagent.core.identity import node_name

if TYPE_CHECKING:
    from gpuagent.collector.tick import Monitor
    from gpuagent.core.snapshot import Snapshot


Socket = Annotated[Path | None, typer.Option("--socket", help="Control socket of the agent")]
Url = Annotated[str | None, typer.Option("--url", help="Read-only address of the agent, such as http://node:9837")]
Direct = Annotated[bool, typer.Option("--direct", help="Read the GPUs without an agent")]

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
    from gpuagent_exporters.status import status_document

    logging.getLogger().addHandler(logging.NullHandler())
    config = Config()
    node = real_node(config, keep_inventory=False)
    pace = TickTimeouts(fresh_seconds=_DEADLINE_SECONDS, deadline_seconds=_DEADLINE_SECONDS)
    snapshot = asyncio.run(_read_twice(Monitor(node.driver, node.processes, node.clock, pace, node.place)))
    if not snapshot.node.nvml_initializations:
        raise NoData(f"the GPUs cannot be read: {snapshot.node.nvml_reason or 'NVML did not answer in time'}")
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
            raise NoData(f"no agent answers: {error}") from None
        note(f"no agent is running ({error}): read the GPUs directly, once")
    return read()
