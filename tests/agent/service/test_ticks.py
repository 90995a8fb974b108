"""A tick that fails is a line in the log, and the next one comes."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

import pytest

from gpuagent.config.models import Config
from gpuagent.core.clock import ScaledClock
from gpuagent.service.service import Parts, Service
from tests.fakes.snapshots import full_snapshot


class _Monitor:
    async def tick(self) -> object:
        return full_snapshot()

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
        given: dict[str, Any] = {field.name: None for field in fields(Parts)}
        given |= {"config": Config(), "clock": ScaledClock(1000), "monitor": _Monitor()}
        given |= {"clients": _Clients(), "leaks": _Leaks(seen)}
        service = Service(Parts(**given))
        ticking = asyncio.create_task(service._tick_for_ever())
        async with asyncio.timeout(20):
            for _ in range(3):
                await seen.get()
        service.stop()
        await ticking

    asyncio.run(run())

    assert caplog.messages.count("a tick failed") >= 2
