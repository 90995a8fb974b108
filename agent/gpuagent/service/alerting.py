"""Rules over each snapshot, and messages to those who are to be told.

An evaluation happens on the event loop; what has to be kept is written by a thread, in one transaction with the
messages that follow from it. Mostly nothing has to be: then no thread is woken. One lock keeps both and the commands
apart.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpuagent.config.models import Config
from gpuagent.config.remedy_settings import budgets_of
from gpuagent.config.rules import implausible_rules, unknown_metrics, with_external_url
from gpuagent.core.clock import Clock
from gpuagent.core.identity import NodeIdentity
from gpuagent.core.metrics.alerting import AlertingFigures, ReceiverCounts
from gpuagent.core.metrics.series import ExtraFamilies
from gpuagent.core.snapshot import Snapshot
from gpuagent.driver.backend import longest_gap
from gpuagent.service.evaluation_watch import EvaluationWatch
from gpuagent.service.receivers import ReceiverFactory, count_alerts, count_messages, find_undelivered
from gpuagent_alerts.alert import Alert, Status, moved_alert
from gpuagent_alerts.messages.briefing import BriefingWriter, Links, WaitingIncident, find_waiting
from gpuagent_alerts.messages.restored_growth import RestoredGrowth
from gpuagent_alerts.messages.snapshot_inputs import (
    RuleSeries,
    SnapshotFacts,
    explainer,
    silenced_processes,
    subjects_of,
    with_place,
    with_remedy,
)
from gpuagent_alerts.messages.transitions import EndReasons, EvaluatedTick, close_for_handover, log_transitions
from gpuagent_alerts.notify.incident_record import IncidentRecord, kept_reason, process_of, subject_of_alert
from gpuagent_alerts.notify.limiter import HeldSummary
from gpuagent_alerts.notify.notifier import Notifier, Suppressions
from gpuagent_alerts.notify.outbox.attempt import WallSteps
from gpuagent_alerts.notify.outbox.delivery import Delivery, MessageOrigin
from gpuagent_alerts.notify.outbox.queue import Delivery as QueuedDelivery
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.routes import Routes
from gpuagent_alerts.notify.silences import Acks, Silences
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation
from gpuagent_alerts.remedies.safeguards.rule_analysis import UNKNOWN, RuleAnalysis, analyze_rule
from gpuagent_alerts.rules.alert_labels import AlertLabels, labels_of_rules
from gpuagent_alerts.rules.model import AlertRule, Rule, RuleGroup
from gpuagent_alerts.states.engine import DEFAULT_INTERVAL_SECONDS, RuleEngine
from gpuagent_alerts.states.group import RuleKey
from gpuagent_alerts.states.instance import Instance, State
from gpuagent_alerts.states.machine import Change, Transition
from gpuagent_alerts.states.missing import find_missing
from gpuagent_alerts.states.persister import StatePersister
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StateOwner, StoreFailure

if TYPE_CHECKING:  # it loads the HTTP client, which a node without a heartbeat can do without
    from gpuagent_alerts.notify.receivers.heartbeat import Heartbeat

log = logging.getLogger(__name__)

Listener = Callable[[Sequence[AlertEvaluation]], Awaitable[None]]
"""Callback that is given all that fires."""

_ENDED_KEPT = 256
_NEVER: tuple[int, float, Mapping[str, float]] = (0, 0.0, {})
"""A rule that was not evaluated yet: how often, and on readings of which time."""
_STOP_SECONDS = 1.0
_HEAL_SECONDS = 5.0


class Alerting:
    """Fed with snapshots; evaluates, keeps, tells. For one event loop."""

    def __init__(self, config: Config, groups: Iterable[RuleGroup], clock: Clock, where: NodeIdentity) -> None:
        owner = StateOwner(where.machine, simulated=bool(where.simulated), scenario=where.simulated)
        self.store = Store(where.state_file, owner=owner, lost=where.lost)
        self._groups = with_external_url(groups, links_of(config, where.url).page)
        self.engine = RuleEngine(self._groups, longest_gap_seconds=longest_gap(config.poll_interval, clock.speed))
        self.outbox = Outbox(self.store, clock)
        self.origin = MessageOrigin(where.node, simulated=bool(where.simulated))
        self.silences = Silences(self.store, clock)
        self.acks = Acks(self.store, clock)
        self.delivery = Delivery(self.store, self.outbox, clock, self.origin)
        self.lock = asyncio.Lock()
        self.config = config
        self._clock = clock
        self._where = where
        self.receiver_factory = ReceiverFactory(clock, self.store)
        self._keeper = StatePersister(self.store, self.engine, clock)
        self.endings = EndReasons(self.engine.rules)
        self._series = RuleSeries(where.simulated)
        self._ended: dict[str, Alert] = {}
        self._steps = WallSteps(clock)
        self._notifier = Notifier(
            self.store, self.outbox, clock, Suppressions(self.silences, self.acks),
            routes=self._routes(config), node_labels=where.labels,
        )  # fmt: skip
        self.endings.former_id = lambda pid: process_of(self._notifier.incidents, pid)
        self.endings.former_of = lambda name: subject_of_alert(self._notifier.incidents, name)
        self.endings.kept_reason = lambda name: kept_reason(self._notifier.incidents, name)
        self._restored = RestoredGrowth(lambda: self._notifier.incidents)
        self.briefings = BriefingWriter(where.node)
        self._notifier.brief = self.briefings.write
        self._notifier.grows_again = self.endings.regrowth.grows
        self.heartbeats: list[Heartbeat] = []
        self._beating: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._healing: asyncio.Task[None] | None = None
        self._heal_at = 0.0
        self._watch = EvaluationWatch(clock)
        self._evaluation_seconds: float | None = None
        self._figures: AlertingFigures | None = None
        self._listener: Listener | None = None
        self._facts: SnapshotFacts | None = None
        self._evaluated: dict[RuleKey, tuple[int, float, Mapping[str, float]]] = {}
        self._analyses: dict[RuleKey, RuleAnalysis] = {}
        self._further: Callable[[], Sequence[ExtraFamilies]] = tuple
        self.remedy_of: Callable[[Alert], str] = lambda _: ""
        """What a remedy has done about an alert, in words; "" where none has."""
        self._under_way: Callable[[], Collection[tuple[str, str]]] = tuple
        self._freed: Callable[[], Mapping[str, float]] = dict

    @property
    def notifies(self) -> bool:
        """False where Prometheus and Alertmanager do: a fleet is paged once."""
        return self.config.alerting == "node"

    def held_back(self) -> list[HeldSummary]:
        """Return what receivers have not been told yet, as it was too much for an hour. Raises StoreFailure."""
        return self._notifier.held_back()

    @property
    def alert_labels(self) -> list[AlertLabels]:
        """What the labels of alerts can be, by the rules in force."""
        return labels_of_rules(self._groups, [budget.label for budget in self.config.budgets])

    @property
    def node_labels(self) -> Mapping[str, str]:
        """Labels that each alert carries in messages."""
        return self._where.labels

    @property
    def incidents(self) -> Mapping[str, IncidentRecord]:
        """Incidents that go on or ended within a day, by key."""
        return self._notifier.incidents

    def waiting(self) -> list[WaitingIncident]:
        """Return the incidents that go on although nothing of them is true now, with what is waited for."""
        known = {one.fingerprint: one for one in self._firing()}
        present = {name for name, one in known.items() if not one.is_kept}
        labels = {name: one.labels for name, one in known.items()}
        pending = self._pending()
        stirring = self._notifier.about_to_fire(pending, self._facts) if pending and self._facts is not None else {}
        kept = {one.fingerprint: one for one in self.firing() if one.is_kept}
        return find_waiting(self._notifier, self.briefings, present, self._clock.wall(), labels, stirring, kept)

    def silenced_incidents(self) -> set[str]:
        """Return the keys of the incidents that go on and are silenced as a whole, whatever of them is true now."""
        known = {one.fingerprint: one.labels for one in self._firing()}
        return {
            key
            for key, one in self.incidents.items()
            if one.ends_at is None
            and self._notifier.is_incident_silenced(one, {name: old.labels for name, old in one.ended.items()} | known)
        }

    @property
    def routes(self) -> Routes:
        """The routes in force."""
        return self._notifier.routes

    async def open(self, alive: Callable[[], bool]) -> None:
        """Go on where the last agent stopped, and begin to send."""
        loaded = self.engine.load(self._keeper.load(), self._clock.now(), self._clock.wall())
        if loaded.broken:
            log.warning("the state of %d alerts could not be read and begins anew", loaded.broken)
        self._restored.note_loaded(tuple(self.engine.rules()), self._clock.now())
        ended = (alert for one in self.incidents.values() for alert in one.ended.values())
        self._note_ended(Transition(Change.ENDED, alert) for alert in ended)
        self._note_ended(loaded.ended)
        self._tell_of_rules()
        await self._use_receivers(alive)

    async def close(self) -> None:
        """Stop sending. What is queued is sent by the next agent."""
        for task in self._beating:
            task.cancel()
        if running := [task for task in (self._task, self._healing) if task is not None]:
            await asyncio.wait(running, timeout=_STOP_SECONDS)
        with suppress(TimeoutError, StoreFailure):  # the clocks of alerts would be half a minute old at most
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.to_thread(self._keeper.save)
        await self.delivery.stop()
        await self.receiver_factory.close()
        with suppress(TimeoutError):  # a disk that hangs holds the store's lock; what is committed is safe
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.to_thread(self.store.close)

    async def reload(self, config: Config, groups: Iterable[RuleGroup], alive: Callable[[], bool]) -> None:
        """Use other rules, routes and receivers; states and what is queued go on.

        Raises ValueError for routes that cannot be, and changes nothing then.
        """
        async with self.lock:
            routes = self._routes(config)  # may refuse them: nothing has changed then
            # What budgets and places of processes mean, their series mean: the same labels may be others' memory now.
            is_measured_alike = (config.budgets, config.processes) == (self.config.budgets, self.config.processes)
            self.config = config
            self.engine.longest_gap_seconds = longest_gap(config.poll_interval, self._clock.speed)
            self._groups = with_external_url(groups, links_of(config, self._where.url).page)
            self._note_ended(self.engine.reload(self._groups, self._clock.wall()))
            if not is_measured_alike:
                self.engine.interrupt()
            self._keeper.forget()
            self._notifier.routes = routes
            self._tell_of_rules()
            await self._use_receivers(alive)

    def listen(
        self,
        listener: Listener,
        further: Callable[[], Sequence[ExtraFamilies]],
        remedy_of: Callable[[Alert], str],
        under_way: Callable[[], Collection[tuple[str, str]]] = tuple,
        freed: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Tell somebody what fires after each evaluation, and ask what was done about an alert when it is told.

        `further` are series of other parts that rules see too; `under_way` are UUID and pid of the processes on which a
        remedy acts, and `freed` has the Unix time of a remedy that helped, by pid.
        """
        self._listener = listener
        self._further = further
        self.remedy_of = remedy_of
        self._under_way = under_way
        self._freed = freed

    def feed(self, snapshot: Snapshot) -> None:
        """Evaluate what is due on a new snapshot, unless the last evaluation is still being written down."""
        if self.store.problem is not None:
            self._heal_soon()
        is_idle, is_due = self._task is None or self._task.done(), self.engine.is_due(self._clock.now())
        if is_due or not is_idle:
            self._watch.note_due()
        if is_idle and is_due:
            self._task = asyncio.create_task(self._observe(snapshot), name="rules")

    async def housekeeping(self) -> None:
        """Tidy about once a minute."""
        await self.delivery.housekeeping()
        async with self.lock:
            try:
                await asyncio.to_thread(self.silences.prune)
            except StoreFailure as error:
                log.warning("old silences could not be forgotten: %s", error)

    def figures(self) -> AlertingFigures | None:
        """Return figures for the series; None before the first evaluation."""
        return self._figures

    def receivers(self) -> tuple[ReceiverCounts, ...]:
        """Return what became of messages until now. It asks the store: call it in a thread."""
        return count_messages(self.delivery)

    def deliveries(self) -> Sequence[QueuedDelivery]:
        """Return the latest messages with what became of them; none where the store fails. Call it in a thread."""
        try:
            return self.outbox.deliveries()
        except StoreFailure:
            return ()

    def _heal_soon(self) -> None:
        """Go back to the file every few seconds, if writing failed. Until then a kill would cost what has happened."""
        now = self._clock.now()
        if now >= self._heal_at and (self._healing is None or self._healing.done()):
            self._heal_at = now + _HEAL_SECONDS
            self._healing = asyncio.create_task(self._heal(), name="back to the state file")

    async def _heal(self) -> None:
        await asyncio.to_thread(self.store.heal)

    def firing(self) -> list[Alert]:
        """Return every alert that fires now; one that is only kept with the reason for that."""
        return [self.endings.with_reason(instance.as_alert(Status.FIRING)) for instance in self._firing()]

    def _firing(self) -> Iterator[Instance]:
        return (
            instance
            for running in self.engine.rules()
            if running.states is not None
            for instance in running.states.instances
            if instance.state is State.FIRING
        )

    def _pending(self) -> dict[str, Alert]:
        """Return what is true and has not held for long enough, by fingerprint."""
        return {
            instance.fingerprint: instance.as_alert(Status.FIRING)
            for running in self.engine.rules()
            if running.states is not None
            for instance in running.states.instances
            if instance.state is State.PENDING
        }

    def _evaluations(self, snapshot: Snapshot) -> list[AlertEvaluation]:
        """Return all that fires, each with the time of the data that its rule has seen."""
        evaluations = []
        read_seconds = {gpu.identity.uuid: gpu.read_seconds for gpu in snapshot.gpus}
        for runner, running in ((group, rule) for group in self.engine.groups for rule in group.rules):
            if running.states is None:
                continue
            if self._evaluated.get(running.key, _NEVER)[0] != running.evaluations:
                self._evaluated[running.key] = running.evaluations, snapshot.clock_seconds, read_seconds
            _, seen, read = self._evaluated.get(running.key, _NEVER)
            evaluations += [
                AlertEvaluation(
                    each.as_alert(Status.FIRING), running.rule.expression.text, each.true_clock is not None, seen,
                    since_seconds=-math.inf if each.true_clock is None else each.true_clock,
                    for_seconds=running.states.rule.for_seconds,
                    held_seconds=running.states.held_seconds(each),
                    interval_seconds=runner.group.interval_seconds or DEFAULT_INTERVAL_SECONDS,
                    read_seconds=read,
                    measured=running.evaluations > 0 and not running.last_error and not each.frozen,
                    analysis=self._analysis_of(running.key, running.rule),
                    result_labels={
                        name: value for name, value in each.labels.items()
                        if name != "alertname" and name not in running.rule.labels
                    },
                )
                for each in running.states.instances
                if each.state is State.FIRING
            ]  # fmt: skip
        return evaluations

    async def _observe(self, snapshot: Snapshot) -> None:
        async with self.lock:
            told: list[Alert] | None = None
            due, applied = True, False
            try:
                started = time.perf_counter()
                now, wall = self._clock.now(), self._clock.wall()
                index = self._series.index(
                    snapshot, now, self.engine.metric_names(now),
                    alerting=self._figures, preallocates=self.config.preallocates, further=self._further(),
                )  # fmt: skip
                tick = EvaluatedTick(snapshot, index, wall)
                if step := self._steps.step():
                    self._ended = {name: moved_alert(one, step) for name, one in self._ended.items()}
                is_over = partial(self.endings.is_over, seen=tick)
                self._restored.observe(self.engine.rules(), snapshot)
                missing = find_missing(snapshot, self._restored.is_unproven)
                result = self.engine.evaluate(index, now, wall, missing, explainer(snapshot), is_over)
                applied = True
                transitions = self.endings.explain(result.transitions, tick)
                log_transitions(transitions)
                self._note_ended(transitions)
                for key, problem in result.failures:
                    log.debug("rule %s of group %s: %s", key.rule, key.group, problem)
                self._evaluation_seconds = time.perf_counter() - started
                self.briefings.snapshot = snapshot
                due = self._is_due()
                if due:
                    self._facts = SnapshotFacts(
                        snapshot, self._under_way(), self._freed(), budgets_of(self.config.budgets)
                    )
                    self._ended = {name: self.endings.revised(one) for name, one in self._ended.items()}
                    alerts = (*self._ended.values(), *self.firing())
                    told = [with_place(with_remedy(each, self.remedy_of(each)), snapshot) for each in alerts]
            except Exception:
                log.exception("an evaluation of rules failed")
            if due or self._figures is None:
                self._figures = await asyncio.to_thread(self._write_down, told)
            else:
                self._figures = self._count(self._figures.receivers)
            evaluations = self._evaluations(snapshot) if self._listener is not None else []
            if applied:
                self._watch.note_done()
            else:  # what fired before is no reason to act on what nobody has evaluated
                evaluations = [each._replace(measured=False) for each in evaluations]
        if self._listener is not None:
            await self._listener(evaluations)

    def _is_due(self) -> bool:
        """Return whether something has to be written down or told, or may have changed at the receivers."""
        figures = self._figures
        waits = figures is None or any(receiver.queued for receiver in figures.receivers)  # its age is a figure
        firing = {one.fingerprint: not one.is_kept for one in self._firing()}
        return waits or self._keeper.is_due() or self._notifier.is_due(firing)

    def _write_down(self, told: Sequence[Alert] | None) -> AlertingFigures | None:
        """Write in a thread, and in one go: to wake it costs more than what there mostly is to do."""
        try:
            if told is not None:
                self.store.insist(partial(self._keep, told))
        except StoreFailure as error:
            log.error("the state of alerts cannot be kept: %s", error)  # noqa: TRY400  no defect of ours
        except Exception:
            log.exception("the state of alerts cannot be kept")
        return self._count(self.receivers())

    def _keep(self, alerts: Sequence[Alert]) -> None:
        """Save the states, and the messages that follow from them, in one transaction."""
        wall = self._clock.wall()
        others = None if self.notifies else [one for one in alerts if one.status is Status.FIRING]
        if others is not None:
            alerts = [close_for_handover(one, wall) if one.status is Status.FIRING else one for one in alerts]
        with self.store.transaction():
            self._keeper.save_if_due()
            self._notifier.notify(alerts, self._pending(), self._facts, handed_over=others)
        self._ended = {name: alert for name, alert in self._ended.items() if self._notifier.is_open(name)}

    def _note_ended(self, transitions: Iterable[Transition]) -> None:
        """Remember when an alert ended, until everybody has been told."""
        for change, alert in transitions:
            if change is Change.ENDED:
                self._ended.pop(alert.fingerprint, None)
                self._ended[alert.fingerprint] = alert
        while len(self._ended) > _ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    def _tell_of_rules(self) -> None:
        """Log rules that can never fire here, or mean another unit: nobody would notice before it is too late."""
        groups = [runner.group for runner in self.engine.groups]
        for note in (*unknown_metrics(groups), *implausible_rules(groups)):
            log.warning("%s", note)
        self._analyses.clear()

    def _analysis_of(self, key: RuleKey, rule: Rule) -> RuleAnalysis:
        """Return the analysis of a rule that fires; few of a thousand do, and each takes some milliseconds."""
        if key not in self._analyses:
            self._analyses[key] = analyze_rule(rule) if isinstance(rule, AlertRule) else UNKNOWN
        return self._analyses[key]

    def _routes(self, config: Config) -> Routes:
        return Routes(config.routes, self.receiver_factory.recipients(config.receivers))

    async def _use_receivers(self, alive: Callable[[], bool]) -> None:
        for task in self._beating:
            task.cancel()
        self.briefings.links = links_of(self.config, self._where.url)
        self.briefings.budgets = {budget.label: budget.memory for budget in self.config.budgets}
        self.origin.external_url = self.briefings.links.page
        await self.delivery.use(self.receiver_factory.senders(self.config.receivers))
        works = partial(self._works, alive)
        self.heartbeats = self.receiver_factory.heartbeats(self.config.receivers, works)
        self._beating = [asyncio.create_task(beat.run(), name=f"heartbeat {beat.name}") for beat in self.heartbeats]

    def _works(self, alive: Callable[[], bool]) -> bool:
        """Return whether GPUs are read and rules evaluated: a heartbeat without alerts would be an all-clear."""
        return alive() and not self._watch.is_stalled

    def _count(self, receivers: tuple[ReceiverCounts, ...]) -> AlertingFigures | None:
        """Return the figures; those of before where a defect is in the way, which must not stop evaluations."""
        try:
            return self._counted(receivers)
        except Exception:
            log.exception("alerts cannot be counted")
            return self._figures

    def _counted(self, receivers: tuple[ReceiverCounts, ...]) -> AlertingFigures:
        undelivered = find_undelivered(receivers, self.delivery.workers, self.heartbeats, self._clock.now())
        firing = (
            *subjects_of(self.engine, self._notifier.silencing, self.briefings.snapshot, self._notifier.severity_of),
            *(each.subject for each in self.waiting()),
        )
        figures = count_alerts(self.engine, self.store, receivers, self._evaluation_seconds)
        seen = self.briefings.snapshot
        quiet = frozenset() if seen is None else silenced_processes(seen, self._notifier.is_process_silenced)
        return replace(figures, undelivered=undelivered, firing=firing, silenced_processes=quiet)


def links_of(config: Config, own_url: str) -> Links:
    """Return the links by the configuration; `own_url` is the agent's address where none is configured."""
    return Links(_folder(config.external_url or own_url), config.links.grafana or "")


def _folder(url: str) -> str:
    return url if not url or url.endswith("/") else f"{url}/"
