"""A simulated node with everything between the driver and an alert: monitor, leak detector, shipped rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.alert import Alert, News, Status
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.leak.settings import Sensitivity
from gpuagent_alerts.messages.briefing import BriefingWriter
from gpuagent_alerts.messages.snapshot_inputs import SnapshotFacts, explainer
from gpuagent_alerts.notify.incident_record import IncidentRecord, incident_of
from gpuagent_alerts.notify.incidents import IncidentBook
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.shipped import RULES_FILE
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.states.machine import Change
from gpuagent_alerts.states.missing import find_missing
from gpuagent_alerts.store.database import Store
from tests.fakes.rig import BOOT_ID, Rig, rig

HOUR = 3600.0


class Told(NamedTuple):
    """An alert that began or ended, and when, in seconds of the story."""

    seconds: float
    change: Change
    alert: Alert


class ToldIncident(NamedTuple):
    """An incident that goes on, its alerts that fire, and its headline."""

    record: IncidentRecord
    alerts: tuple[Alert, ...]
    headline: str


@dataclass
class Node:
    """What a test holds in its hands."""

    stage: Rig
    leaks: LeakDetection
    engine: RuleEngine = field(default_factory=lambda: RuleEngine(load_rule_file(RULES_FILE)))
    told: list[Told] = field(default_factory=list)
    verdicts: dict[MemoryKey, list[Verdict]] = field(default_factory=dict)
    """Of each, in the order in which they came."""
    snapshot: Snapshot | None = None
    incidents: IncidentBook = field(default_factory=lambda: IncidentBook(Store(None), "node7", 0.0))

    @property
    def seconds(self) -> float:
        """Story time."""
        return self.stage.node.scenario_clock.now()

    async def tick(self, seconds: float = 15.0) -> Snapshot:
        """Measure, judge, evaluate the rules."""
        return self.judge(await self.stage.tick(seconds))

    def judge(self, measured: Snapshot) -> Snapshot:
        """The agent's part after a tick of the monitor."""
        snapshot = self.snapshot = self.leaks.observe(measured)
        for key, growth in snapshot.growth.items():
            seen = self.verdicts.setdefault(key, [])
            if not seen or seen[-1] is not growth.verdict:
                seen.append(growth.verdict)
        now, wall = self.stage.clock.now(), self.stage.clock.wall()
        if self.engine.is_due(now):
            index = SeriesIndex.of(series(snapshot, now, only=self.engine.metric_names(now)))
            result = self.engine.evaluate(index, now, wall, find_missing(snapshot), explainer(snapshot))
            assert result.failures == ()
            self.told += [
                Told(self.seconds, change, alert)
                for change, alert in result.transitions
                if change is not Change.CONTINUES and alert.name != "Watchdog"
            ]
            firing = {alert.fingerprint: alert for alert in self.firing()}
            self.incidents.update(firing, (), SnapshotFacts(snapshot), wall)
        return snapshot

    def firing(self) -> list[Alert]:
        """Every alert that fires, or is kept."""
        found = (running.states.instances for running in self.engine.rules() if running.states is not None)
        return [one.as_alert(Status.FIRING) for those in found for one in those if one.state is State.FIRING]

    def told_of(self) -> list[ToldIncident]:
        """Each incident that goes on, and the line that `gpuagent alerts`, the page and a message have of it now."""
        writer = BriefingWriter("node7", snapshot=self.snapshot)
        return [
            ToldIncident(one, tuple(own := [alert for alert in self.firing() if alert.fingerprint in one.members]),
                         writer.headline(incident_of(one, News.BEGAN), own))
            for one in self.incidents.records.values()
            if one.ends_at is None
        ]  # fmt: skip

    async def until(self, seconds: float, step: float = 15.0) -> None:
        """Let the story go on until then."""
        while self.seconds < seconds - 0.001:
            await self.tick(min(step, seconds - self.seconds))

    def alerts(self, name: str, change: Change = Change.STARTED) -> list[Told]:
        """Of one rule, that began, or ended."""
        return [told for told in self.told if told.alert.name == name and told.change is change]

    def growth(self, pid: int, gpu: int = 0) -> Growth | None:
        """What is said of a process now."""
        assert self.snapshot is not None
        uuid = next(one.identity.uuid for one in self.snapshot.gpus if one.identity.index == gpu)
        found = [value for key, value in self.snapshot.growth.items() if key[:2] == (uuid, pid)]
        return found[0] if found else None

    def used_bytes(self) -> int:
        """Of GPU 0, now."""
        assert self.snapshot is not None
        memory = self.snapshot.gpus[0].memory
        assert memory is not None
        assert memory.used_bytes is not None
        return memory.used_bytes

    def verdicts_of(self, pid: int) -> list[Verdict]:
        """Every verdict on a process until now, in order."""
        return [verdict for key, seen in self.verdicts.items() if key.pid == pid for verdict in seen]


@asynccontextmanager
async def node(
    scenario: str, *, sensitivity: Sensitivity = "balanced", store: Store | None = None, **options: Any
) -> AsyncIterator[Node]:
    """From a scenario's text or name; `options` are those of the rig."""
    async with rig(scenario, **options) as stage:
        leaks = LeakDetection(sensitivity, stage.clock, store=store, boot_id=BOOT_ID)
        leaks.open()
        yield Node(stage, leaks)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the body of a test."""
    asyncio.run(test())
