"""Alerting over snapshots made by hand, by a clock that stands still, with a real receiver over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent.core.identity import NodeIdentity
from gpuagent.core.snapshot import GpuState, Snapshot
from gpuagent.service.alert_commands import AlertCommands
from gpuagent.service.alerting import Alerting
from gpuagent_alerts.rules.file import load_rule_text
from gpuagent_alerts.rules.model import RuleGroup
from gpuagent_alerts.store.database import Store
from tests.agent.config.loading import load, write
from tests.alerts.notify.receivers.sink import Sink
from tests.fakes.readings import absent_gpu, gpu, snapshot

NODE = "node7"
PATIENCE_SECONDS = 20.0
INTERVAL_SECONDS = 5.0
FULL = "alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, labels: {severity: critical}"

CALM = snapshot([gpu(0, used_gib=2.0)])
BUSY = snapshot([gpu(0, used_gib=23.5)])
BLIND = snapshot([absent_gpu(0, GpuState.BLIND, "a call hangs")])


def rules(*texts: str) -> tuple[RuleGroup, ...]:
    """One group of rules in YAML's flow style."""
    lines = "".join(f"  - {{{text}}}\n" for text in texts)
    return load_rule_text(f"groups:\n- name: g\n  rules:\n{lines}")


def config(folder: Path, receiver: Sink | None, **keys: object) -> Config:
    """A configuration with one webhook, to which all goes at once."""
    hook = [] if receiver is None else [{"name": "hook", "webhook": {"url": receiver.url}}]
    routes: Any = keys.pop("routes", [{"receivers": ["hook"]}] if hook else [])
    routes = [{"group_wait": "0s", **each} for each in routes]
    return load(write(folder, json.dumps({"receivers": hook, "routes": routes, **keys})))


class Told(NamedTuple):
    """What one message said."""

    status: str
    alerts: list[str]
    id: str


def told(receiver: Sink) -> list[Told]:
    """What the receiver took, in order."""
    found = []
    for request in receiver.processed:
        body = json.loads(request.body)
        names = [alert["labels"]["alertname"] for alert in body["alerts"]]
        found.append(Told(body["status"], names, request.headers["webhook-id"]))
    return found


def bodies(receiver: Sink) -> list[dict[str, Any]]:
    """Return what was posted, in order."""
    return [json.loads(request.body) for request in receiver.processed]


class Bench:
    """A running alerting half."""

    def __init__(self, alerting: Alerting, clock: ManualClock) -> None:
        self.alerting = alerting
        self.clock = clock
        self.commands = AlertCommands(alerting, clock)

    async def show(self, seen: Snapshot, times: int = 1, seconds: float = INTERVAL_SECONDS) -> None:
        """Let time pass, and evaluate: so many times."""
        for _ in range(times):
            self.clock.advance(seconds)
            now, wall = self.clock.now(), self.clock.wall()
            self.alerting.feed(replace(seen, clock_seconds=now, measured_seconds=now, time_seconds=wall))
            await self.settled()

    async def settled(self) -> None:
        """Until the last evaluation is written down."""
        before = self.alerting._task
        if before is not None:
            await asyncio.wait([before])

    async def emptied(self, *, meanwhile_seconds: float = 0.0) -> None:
        """Until nothing waits to be sent. What could have been sent has been, then.

        Time may pass meanwhile: a receiver that refused has a pause, which counts from when that is noted.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(counts.queued for counts in await asyncio.to_thread(self.alerting.receivers)):
                if meanwhile_seconds:
                    self.clock.advance(meanwhile_seconds)
                    self.alerting.delivery.wake(self.alerting.delivery.workers)
                await asyncio.sleep(0.01)

    async def state(self, name: str = "Full") -> Any:
        """The alert of this name as the document has it, None if there is none."""
        found = [alert for alert in (await self.commands.alerts())["alerts"] if alert["name"] == name]
        return found[0] if found else None


@asynccontextmanager
async def alerting(
    settings: Config, groups: tuple[RuleGroup, ...], clock: ManualClock, state_file: Path | None, simulated: str = ""
) -> AsyncIterator[Bench]:
    """Alerting from its start to its stop."""
    made = Alerting(settings, groups, clock, NodeIdentity(NODE, state_file, simulated))
    await made.open(lambda: True)
    try:
        yield Bench(made, clock)
    finally:
        await made.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the body of a test, but not for ever."""
    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE_SECONDS))


@asynccontextmanager
async def hanging_disk(store: Store) -> AsyncIterator[None]:
    """Somebody writes, and the disk does not come to an end: whoever wants the store waits."""
    begun, over = threading.Event(), threading.Event()

    def write() -> None:
        with store.transaction():
            begun.set()
            assert over.wait(20)

    writing = asyncio.create_task(asyncio.to_thread(write))
    assert await asyncio.to_thread(begun.wait, 20)
    try:
        yield
        assert not writing.done()
    finally:
        over.set()
        await writing
