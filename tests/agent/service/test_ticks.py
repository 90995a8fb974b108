"""A tick that fails is a line in the log, and the next one comes."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest

from gpuagent.config.models import Config
from gpuagent.core.clock import ScaledClock
from gpuagent.core.hardware import MemoryOutlook, StallRisk
from gpuagent.core.snapshot import Snapshot
from gpuagent.service.service import Service, ServiceComponents
from tests.fakes.snapshots import full_snapshot


class _Monitor:
    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._snapshot = snapshot or full_snapshot()

    async def tick(self) -> object:
        return self._snapshot

    def tick_skipped(self) -> None:
        """Nobody counts."""


class _Clients:
    def readings(self, _: object) -> dict[int, object]:
        return {}


class _Leaks:
    """What looks at a snapshot after it was measured, and fails."""

    def __init__(self, seen: asyncio.Queue[None]) -> None:
        self._seen = seen

    def observe(self, _: object) -> object:
        self._seen.put_nowait(None)
        raise MemoryError


def test_whoever_looks_at_a_snapshot_cannot_end_the_service(caplog: pytest.LogCaptureFixture) -> None:
    """A fault behind the measuring is a line for the log, and the next tick comes."""

    async def run() -> None:
        seen: asyncio.Queue[None] = asyncio.Queue()
        given: dict[str, Any] = {field.name: None for field in fields(ServiceComponents)}
        given |= {"config": Config(), "clock": ScaledClock(1000), "monitor": _Monitor()}
        given |= {"clients": _Clients(), "leaks": _Leaks(seen)}
        service = Service(ServiceComponents(**given))
        ticking = asyncio.create_task(service._tick_for_ever())
        async with asyncio.timeout(20):
            for _ in range(3):
                await seen.get()
        service.stop()
        await ticking

    asyncio.run(run())

    assert sum(each.startswith("a tick failed") for each in caplog.messages) >= 2


@pytest.mark.parametrize(
    ("risk", "keys", "seconds"),
    [
        (StallRisk.NONE, {}, 1.0),
        (StallRisk.WATCH, {}, 0.25),
        (StallRisk.IMMINENT, {}, 0.25),
        (None, {}, 1.0),
        (StallRisk.WATCH, {"pressure_interval": 0.0}, 1.0),
        (StallRisk.WATCH, {"pressure_interval": 5.0}, 1.0),
        (StallRisk.WATCH, {"pressure_interval": 0.5, "poll_interval": 3.0}, 0.5),
    ],
)
def test_ticks_come_sooner_while_memory_is_short(risk: StallRisk | None, keys: dict[str, Any], seconds: float) -> None:
    """Where GPU and CPU share it: bounded by what is configured, off at 0, and never longer than usual."""
    snapshot = full_snapshot()
    outlook = None if risk is None else MemoryOutlook(risk)
    snapshot = replace(snapshot, node=replace(snapshot.node, memory_outlook=outlook))
    given: dict[str, Any] = {field.name: None for field in fields(ServiceComponents)}
    given |= {"config": Config(**keys), "clock": ScaledClock(1), "monitor": _Monitor(snapshot)}
    given |= {"clients": _Clients(), "leaks": _Leaks(asyncio.Queue())}
    service = Service(ServiceComponents(**given))
    with pytest.raises(MemoryError):
        asyncio.run(service._tick())

    assert service._interval_seconds() == seconds
