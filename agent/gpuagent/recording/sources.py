"""Where a recording's readings come from: a running agent, or the GPUs themselves where none runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gpuagent import __version__
from gpuagent.collector.tick import Monitor, TickTimeouts
from gpuagent.config.models import Config
from gpuagent.core.api_client import DEFAULT_URL, AgentUnreachable, default_socket, fetch_document
from gpuagent.core.clock import Clock
from gpuagent.node import real_node
from gpuagent_exporters.status.document import status_document


class MemorySample(NamedTuple):
    """The memory of one process on one GPU (or MIG instance), in bytes; None is what nobody tells."""

    pid: int
    gpu: int
    name: str
    age_seconds: float | None
    """The process's age."""
    used_bytes: int | None
    free_bytes: int | None
    """What is free on the GPU."""
    total_bytes: int | None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


class GpuSample(NamedTuple):
    """One look at all GPUs."""

    held: tuple[MemorySample, ...] = ()
    unread: frozenset[int] | None = frozenset()
    """GPUs whose processes could not be read this time; None if that is so of all of them."""
    problem: str = ""
    """Why, in words."""


class Source(Protocol):
    """Something to look at, again and again."""

    def read(self) -> GpuSample:
        """Return a look; never raises: what could not be read is in the reading."""
        ...

    def close(self) -> None:
        """Close the source."""
        ...


class AgentRecorderSource:
    """A running agent, asked for its status over its socket or address."""

    def __init__(self, place: Path | str, fetch: Callable[[Path | str], Any] = fetch_document) -> None:
        self._place = place
        self._fetch = fetch

    def read(self) -> GpuSample:
        try:
            return reading_of(self._fetch(self._place))
        except AgentUnreachable as error:
            return GpuSample(unread=None, problem=str(error))

    def close(self) -> None:
        pass


class DirectSource:
    """The GPUs of this node, read by this process with the agent's own monitor."""

    def __init__(self, monitor: Monitor, clock: Clock) -> None:
        self._monitor = monitor
        self._clock = clock
        self._runner = asyncio.Runner()

    def read(self) -> GpuSample:
        snapshot = self._runner.run(self._monitor.tick())
        if not snapshot.node.nvml_initializations:
            return GpuSample(unread=None, problem=snapshot.node.why_unread or "NVML has not answered yet")
        document = status_document(
            snapshot,
            now_seconds=self._clock.now(),
            source="direct",
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=None,
            poll_interval_seconds=1.0,
            history={},
            history_interval_seconds=0.0,
        )
        return reading_of(document)

    def close(self) -> None:
        self._runner.run(self._monitor.close())
        self._runner.close()


def reading_of(document: Mapping[str, Any]) -> GpuSample:
    """Return what a status document tells of processes and of the room beside them."""
    if document["stale"] or document["age_seconds"] is None:
        return GpuSample(unread=None, problem="the agent has no fresh reading of the GPUs")
    gpus = {gpu["index"]: gpu for gpu in document["gpus"]}
    unread = frozenset(index for index, gpu in gpus.items() if gpu["processes"] is None)
    reasons = [f"GPU {index}: {gpus[index]['reason'] or gpus[index]['state']}" for index in sorted(unread)]
    held = tuple(_held(process, gpus.get(process["gpu"], {})) for process in document["processes"])
    return GpuSample(held, unread, "; ".join(reasons))


def _held(process: Mapping[str, Any], gpu: Mapping[str, Any]) -> MemorySample:
    room: Mapping[str, Any] = gpu
    instance = process["gpu_instance_id"]
    if instance is not None:
        room = next((one for one in gpu.get("mig", ()) if one["gpu_instance_id"] == instance), gpu)
    return MemorySample(
        pid=process["pid"],
        gpu=process["gpu"],
        name=process["process"],
        age_seconds=process["age_seconds"],
        used_bytes=process["memory_used_bytes"],
        free_bytes=room.get("memory_free_bytes"),
        total_bytes=room.get("memory_total_bytes"),
        # Not there in the answer of an agent from before embedded clients.
        allocated_bytes=process.get("allocated_bytes"),
        reserved_bytes=process.get("reserved_bytes"),
    )


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
    """Return a source that has answered once. It stays the same for the whole recording.

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
            except AgentUnreachable as error:
                reason = reason or str(error)
            else:
                return AgentRecorderSource(place, fetch)
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
    pace = TickTimeouts(fresh_seconds=_DEADLINE_SECONDS, deadline_seconds=_DEADLINE_SECONDS)
    return DirectSource(Monitor(node.driver, node.processes, node.clock, pace, node.place), node.clock)
