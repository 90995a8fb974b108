"""Rules over each snapshot, and messages to those who are to be told.

An evaluation happens on the event loop; what has to be kept is written by a thread, in one transaction with the
messages that follow from it. One lock keeps both and the commands apart.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuagent.alerting.receivers import Receivers
from gpuagent.catalogue.alerting import AlertCount, AlertingFigures, ReceiverCounts, RuleFailures
from gpuagent.catalogue.series import series
from gpuagent.clock import Clock
from gpuagent.config.models import Config
from gpuagent.reading import Snapshot
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.outbox.counters import Figures
from gpuagent_alerts.outbox.delivery import Delivery
from gpuagent_alerts.outbox.lane import Place
from gpuagent_alerts.outbox.queue import Outbox
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.routing.acks import Acks
from gpuagent_alerts.routing.notifier import Notifier, Quiet
from gpuagent_alerts.routing.route import Routes
from gpuagent_alerts.routing.silences import Silences
from gpuagent_alerts.rules.model import RuleGroup
from gpuagent_alerts.states.engine import InstanceRecord, RuleEngine
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.states.machine import Change, Transition
from gpuagent_alerts.states.missing import find_missing
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.instances import Instances
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

_ENDED_KEPT = 256


@dataclass(frozen=True, slots=True)
class Where:
    """Where this agent is, and where it keeps what must survive."""

    node: str
    state_file: Path | None
    simulated: str = ""
    credentials: Path | None = None


class Alerting:
    """Fed with snapshots; evaluates, keeps, tells. For one event loop."""

    def __init__(self, config: Config, groups: Iterable[RuleGroup], clock: Clock, where: Where) -> None:
        self.store = Store(where.state_file)
        self.engine = RuleEngine(tuple(groups))
        self.outbox = Outbox(self.store, clock)
        self.silences = Silences(self.store, clock)
        self.acks = Acks(self.store, clock)
        self.delivery = Delivery(self.store, self.outbox, clock, Place(where.node))
        self.lock = asyncio.Lock()
        self.config = config
        self._clock = clock
        self._where = where
        self._receivers = Receivers(clock, where.credentials)
        self._instances = Instances(self.store)
        self._ended: dict[str, Alert] = {}
        self._notifier = Notifier(
            self.store, self.outbox, clock, Quiet(self.silences, self.acks),
            routes=self._routes(config), node_labels={"node": where.node},
        )  # fmt: skip
        self._heartbeats: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._evaluation_seconds: float | None = None
        self._metric_names = self.engine.metric_names()
        self._figures: AlertingFigures | None = None

    @property
    def notifies(self) -> bool:
        """False where Prometheus and Alertmanager do: a fleet is paged once."""
        return self.config.alerting == "node"

    @property
    def routes(self) -> Routes:
        """The routes in force."""
        return self._notifier.routes

    async def open(self, alive: Callable[[], bool]) -> None:
        """Go on where the last agent stopped, and begin to send."""
        records = [
            InstanceRecord(group, rule, fingerprint, json.loads(dump))
            for (group, rule, fingerprint), dump in self._instances.load().items()
        ]
        loaded = self.engine.load(records, self._clock.now(), self._clock.wall())
        if loaded.broken:
            log.warning("the state of %d alerts could not be read and begins anew", loaded.broken)
        self._note_ended(loaded.ended)
        await self._use_receivers(alive)

    async def close(self) -> None:
        """Stop sending. What is queued is sent by the next agent."""
        for task in self._heartbeats:
            task.cancel()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1.0)
        await self.delivery.stop()
        await self._receivers.close()
        self.store.close()

    async def reload(self, config: Config, groups: Iterable[RuleGroup], alive: Callable[[], bool]) -> None:
        """Other rules, routes and receivers; states and what is queued go on.

        Raises ValueError for routes that cannot be, and changes nothing then.
        """
        async with self.lock:
            routes = self._routes(config)  # may refuse them: nothing has changed then
            self.config = config
            self._note_ended(self.engine.reload(tuple(groups), self._clock.wall()))
            self._metric_names = self.engine.metric_names()
            self._notifier.routes = routes
            await self._use_receivers(alive)

    def feed(self, snapshot: Snapshot) -> None:
        """Evaluate what is due on a new snapshot, unless the last evaluation is still being written down."""
        if (self._task is None or self._task.done()) and self.engine.is_due(self._clock.now()):
            self._task = asyncio.create_task(self._observe(snapshot), name="rules")

    async def housekeeping(self) -> None:
        """About once a minute."""
        await self.delivery.housekeeping()
        async with self.lock:
            try:
                await asyncio.to_thread(self.silences.prune)
            except StoreFailure as error:
                log.warning("old silences could not be forgotten: %s", error)

    def figures(self) -> AlertingFigures | None:
        """For the series; None before the first evaluation."""
        return self._figures

    def receivers(self) -> tuple[ReceiverCounts, ...]:
        """What became of messages until now. It asks the store: for a thread."""
        try:
            figures: Mapping[str, Figures] = self.delivery.figures()
        except StoreFailure:
            figures = {}
        return tuple(
            ReceiverCounts(
                name, one.queued, one.dead, one.oldest_undelivered_seconds,
                one.counters.sent, one.counters.failed, one.counters.dropped,
            )
            for name, one in sorted(figures.items())
        )  # fmt: skip

    def firing(self) -> list[Alert]:
        """Every alert that fires now."""
        return [
            instance.as_alert(Status.FIRING)
            for running in self.engine.rules()
            if running.states is not None
            for instance in running.states.instances
            if instance.state is State.FIRING
        ]

    async def _observe(self, snapshot: Snapshot) -> None:
        async with self.lock:
            try:
                started = time.perf_counter()
                now, wall = self._clock.now(), self._clock.wall()
                index = SeriesIndex.of(
                    series(
                        snapshot,
                        now,
                        simulated=self._where.simulated,
                        alerting=self._figures,
                        preallocates=self.config.processes.preallocates,
                        only=self._metric_names,
                    )
                )
                result = self.engine.evaluate(index, now, wall, find_missing(snapshot))
                self._note_ended(result.transitions)
                for key, problem in result.failures:
                    log.debug("rule %s of group %s: %s", key.rule, key.group, problem)
                self._evaluation_seconds = time.perf_counter() - started
                await asyncio.to_thread(self.store.insist, self._keep)
            except StoreFailure as error:
                log.error("the state of alerts cannot be kept: %s", error)  # noqa: TRY400  no defect of ours
            except Exception:
                log.exception("an evaluation of rules failed")
            self._figures = await asyncio.to_thread(self._count)

    def _keep(self) -> None:
        """In a thread: the states, and the messages that follow from them, in one transaction."""
        with self.store.transaction():
            self._instances.save(
                {
                    (record.group, record.rule, record.fingerprint): json.dumps(record.dump)
                    for record in self.engine.dump(self._clock.now())
                }
            )
            if self.notifies:
                self._notifier.notify([*self._ended.values(), *self.firing()])
        self._ended.clear()

    def _note_ended(self, transitions: Iterable[Transition]) -> None:
        """Remember when an alert ended, for the message that says so."""
        for change, alert in transitions:
            if change is Change.ENDED and len(self._ended) < _ENDED_KEPT:
                self._ended[alert.fingerprint] = alert

    def _routes(self, config: Config) -> Routes:
        return Routes(config.routes, self._receivers.recipients(config.receivers))

    async def _use_receivers(self, alive: Callable[[], bool]) -> None:
        for task in self._heartbeats:
            task.cancel()
        await self.delivery.use(self._receivers.senders(self.config.receivers if self.notifies else ()))
        self._heartbeats = [
            asyncio.create_task(beat.run(), name=f"heartbeat {beat.name}")
            for beat in self._receivers.heartbeats(self.config.receivers, alive)
        ]

    def _count(self) -> AlertingFigures:
        states: dict[tuple[str, str, str], int] = {}
        for running in self.engine.rules():
            for instance in running.states.instances if running.states is not None else ():
                if instance.state is not State.INACTIVE:
                    key = (running.rule.name, str(instance.state), instance.labels.get("severity", ""))
                    states[key] = states.get(key, 0) + 1
        return AlertingFigures(
            rules=sum(1 for _ in self.engine.rules()),
            evaluation_seconds=self._evaluation_seconds,
            alerts=tuple(AlertCount(*key, number) for key, number in sorted(states.items())),
            failures=tuple(
                RuleFailures(running.key.group, running.key.rule, running.failures)
                for running in self.engine.rules()
                if running.failures
            ),
            receivers=self.receivers(),
            store_ok=self.store.problem is None or not self.store.problem.in_memory,
        )
