"""An agent for `gpuagent top`, made of documents; it can die and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuagent.cli.agent import NoData
from gpuagent.top.source import ScreenData

SOCKET = Path("/run/gpuagent/control.sock")


class FakeSource:
    """Answers with these documents."""

    hostname = "node7"

    def __init__(
        self,
        status: dict[str, Any],
        alerts: dict[str, Any] | None = None,
        *,
        place: Path | str | None = SOCKET,
        evidence: dict[str, Any] | None = None,
    ) -> None:
        self.status = status
        self.alerts = alerts
        self.place = place
        self.evidence = evidence
        self.dead = ""
        self.closed = False

    def read(self) -> ScreenData:
        if self.dead:
            raise NoData(self.dead)
        return ScreenData(self.status, self.alerts, self.place)

    def explain(self, place: Path | str, pid: int, gpu_uuid: str) -> dict[str, Any] | None:
        return self.evidence

    def remedies(self, place: Path | str, pid: int) -> dict[str, Any] | None:
        return None

    def alerts_changed(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
