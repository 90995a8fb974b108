"""Where the figures come from: an agent, or the driver itself while no agent answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpuagent.cli.agent import NoData, Source
from gpuagent.core.api_client import DEFAULT_URL, AgentUnreachable, default_socket, fetch_document

Document = dict[str, Any]

_ALERTS_EVERY_SECONDS = 5.0
"""Alerts change seldom, and with many of them the document is large."""
_STATUS_TIMEOUT_SECONDS = 5.0
_MOST_POINTS = 360
_HISTORY_INTERVAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ScreenData:
    """The status document as it was received, and what is known beside it."""

    status: Document
    alerts: Document | None = None
    place: Path | str | None = None
    """Control socket or URL of the agent that answered; None where the GPUs were read without one."""
    note: str = ""
    """Why no agent answered."""
    received_seconds: float = field(default_factory=time.monotonic)

    @property
    def act_refusal(self) -> str:
        """Why nothing can be asked of this source; "" if it can."""
        if self.place is None:
            return "No agent is running, and only an agent can act: it checks and records each act."
        if isinstance(self.place, str):
            return (
                f"{self.place} is read-only. Acts need the control socket: run `gpuagent top` on the node itself, "
                "as root or in the agent's group."
            )
        return ""


class NodeSource(Protocol):
    """What the screen asks; its methods block, and are called from threads."""

    hostname: str

    def read(self) -> ScreenData:
        """Return the present figures. Raises NoData."""

    def explain(self, place: Path | str, pid: int, gpu_uuid: str) -> Document | None:
        """Return the evidence of a verdict; None where there is none."""

    def remedies(self, place: Path | str, pid: int) -> Document | None:
        """Return what was done to a process; None where that may not be read."""

    def alerts_changed(self) -> None:
        """Read the alerts anew at the next reading: one was silenced or acknowledged."""

    def close(self) -> None:
        """Give back what reading without an agent holds."""


class AgentSource:
    """An agent, by the options of the command; without one the driver, until the agent is there again."""

    def __init__(
        self,
        source: Source,
        fetch: Callable[..., Any] = fetch_document,
        direct: Callable[[], DirectReader] | None = None,
    ) -> None:
        """`direct` opens the driver."""
        self.hostname = source.hostname
        self._source = source
        self._fetch = fetch
        self._open_direct = direct or DirectReader
        self._direct: DirectReader | None = None
        self._alerts: Document | None = None
        self._alerts_place: Path | str | None = None
        self._alerts_due_seconds = 0.0

    def read(self) -> ScreenData:
        """Return the present figures. Raises NoData."""
        if self._source.direct:
            return self._read_directly("")
        first: AgentUnreachable | None = None
        for place in self._places():
            try:
                status = self._fetch(place, timeout_seconds=_STATUS_TIMEOUT_SECONDS)
            except AgentUnreachable as error:
                first = first or error
                continue
            self._close_direct()
            return ScreenData(status, self._read_alerts(place), place)
        if self._source.named:
            raise NoData(f"Cannot reach the agent: {first}. Is it running?")
        return self._read_directly(str(first))

    def explain(self, place: Path | str, pid: int, gpu_uuid: str) -> Document | None:
        """Return the evidence of a verdict; None where there is none."""
        return self._optional(place, f"/api/v1/leaks/{pid}?gpu={gpu_uuid}")

    def remedies(self, place: Path | str, pid: int) -> Document | None:
        """Return what was done to a process; None where that may not be read."""
        return self._optional(place, f"/api/v1/processes/{pid}/remedies")

    def close(self) -> None:
        """Give back what reading without an agent holds."""
        self._close_direct()

    def _places(self) -> Sequence[Path | str]:
        named = self._source.url if self._source.url is not None else self._source.socket
        return [default_socket(), DEFAULT_URL] if named is None else [named]

    def _read_alerts(self, place: Path | str) -> Document | None:
        now = time.monotonic()
        if place == self._alerts_place and now < self._alerts_due_seconds:
            return self._alerts
        self._alerts = self._optional(place, "/api/v1/alerts")
        self._alerts_place, self._alerts_due_seconds = place, now + _ALERTS_EVERY_SECONDS
        return self._alerts

    def alerts_changed(self) -> None:
        """Read the alerts anew at the next reading: one was silenced or acknowledged."""
        self._alerts_due_seconds = 0.0

    def _optional(self, place: Path | str, path: str) -> Document | None:
        with suppress(AgentUnreachable):
            found: Document = self._fetch(place, path, _STATUS_TIMEOUT_SECONDS)
            return found
        return None

    def _read_directly(self, note: str) -> ScreenData:
        if self._direct is None:
            self._direct = self._open_direct()
        try:
            return ScreenData(self._direct.read(), note=note)
        except NoData:
            self._close_direct()
            raise

    def _close_direct(self) -> None:
        if self._direct is not None:
            self._direct.close()
            self._direct = None


class DirectReader:
    """The agent's own monitor in this process, a tick for each reading. One thread at a time may use it."""

    def __init__(self) -> None:
        # Most of the agent: only where it is needed.
        import asyncio
        import logging

        from gpuagent.collector.tick import Monitor, TickTimeouts
        from gpuagent.config.models import Config
        from gpuagent.node import real_node

        logging.getLogger().addHandler(logging.NullHandler())
        self._node = real_node(Config(), keep_inventory=False)
        pace = TickTimeouts(fresh_seconds=_STATUS_TIMEOUT_SECONDS, deadline_seconds=_STATUS_TIMEOUT_SECONDS)
        self._monitor = Monitor(self._node.driver, self._node.processes, self._node.clock, pace, self._node.place)
        self._runner = asyncio.Runner()
        self._history: dict[str, deque[float | None]] = {}

    def read(self) -> Document:
        """Return the status document of one tick.

        Raises:
            NoData: NVML cannot be used, with the driver's reason.
        """
        import os

        from gpuagent import __version__
        from gpuagent_exporters.status.document import status_document

        snapshot = self._runner.run(self._monitor.tick())
        if not snapshot.node.nvml_initializations:
            raise NoData(f"Cannot read the GPUs: {snapshot.node.why_unread or 'NVML did not answer in time'}")
        for gpu in snapshot.gpus:
            used = gpu.memory.used_bytes if gpu.memory else None
            self._history.setdefault(gpu.identity.uuid, deque(maxlen=_MOST_POINTS)).append(used)
        return status_document(
            snapshot,
            now_seconds=self._node.clock.now(),
            source="direct",
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=None,
            poll_interval_seconds=_HISTORY_INTERVAL_SECONDS,
            history={uuid: list(points) for uuid, points in self._history.items()},
            history_interval_seconds=_HISTORY_INTERVAL_SECONDS,
        )

    def close(self) -> None:
        """End the session with the driver."""
        with suppress(Exception):
            self._runner.run(self._monitor.close())
        self._runner.close()
