"""Choosing where a recording reads: what was asked for, else the agent that answers, else the GPUs themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuagent.ask import DEFAULT_URL, NoAgent, default_socket, fetch_document
from gpuagent.config.models import Config
from gpuagent.monitor.monitor import Monitor, Pace
from gpuagent.node import real_node
from gpuagent.recording.sources import AgentSource, DirectSource, Source

_DEADLINE_SECONDS = 5.0


class NoSource(Exception):
    """Neither an agent nor the driver can tell anything, and why."""


def open_source(
    named: Path | str | None,
    *,
    direct: bool,
    note: Callable[[str], None],
    usual: Sequence[Path | str] | None = None,
    fetch: Callable[[Path | str], Any] = fetch_document,
    read_gpus: Callable[[], Source] | None = None,
) -> Source:
    """A source that has answered once. It stays the same for the whole recording.

    Args:
        named: The one agent to ask, and no other.
        direct: No agent at all.
        note: Told if no agent answers and the GPUs are read directly.
        usual: Where agents usually are.
        fetch: How an agent is asked.
        read_gpus: How the GPUs are read.

    Raises:
        NoSource: nothing answers.
    """
    if not direct:
        reason = ""
        for place in [named] if named is not None else (usual or (default_socket(), DEFAULT_URL)):
            try:
                fetch(place)
            except NoAgent as error:
                reason = reason or str(error)
            else:
                return AgentSource(place, fetch)
        if named is not None:
            raise NoSource(f"no agent answers: {reason}")
        note(f"no agent is running ({reason}): the GPUs are read directly")
    source = (read_gpus or _direct)()
    reading = source.read()
    if reading.unread is None:
        source.close()
        raise NoSource(f"the GPUs cannot be read: {reading.problem}")
    return source


def _direct() -> Source:
    logging.getLogger().addHandler(logging.NullHandler())
    node = real_node(Config(), keep_inventory=False)
    pace = Pace(fresh_seconds=_DEADLINE_SECONDS, deadline_seconds=_DEADLINE_SECONDS)
    return DirectSource(Monitor(node.library, node.processes, node.clock, pace, node.place), node.clock)
