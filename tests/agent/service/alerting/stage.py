"""The shipped rules over snapshots made by hand, by a clock that stands still, and every message that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES, RemedyFigures, RemedyNote, RemedyTarget, freed_by
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.messages.briefing import BriefingWriter
from gpuagent_alerts.messages.restored_growth import RestoredGrowth
from gpuagent_alerts.messages.snapshot_inputs import SnapshotFacts, explainer
from gpuagent_alerts.messages.transitions import EndReasons, EvaluatedTick
from gpuagent_alerts.notify.incident_record import kept_reason, process_of, subject_of_alert
from gpuagent_alerts.notify.notifier import Notifier, Suppressions
from gpuagent_alerts.notify.outbox.attempt import DELIVERED
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.routes import Recipient, Routes
from gpuagent_alerts.notify.silences import Acks, Silences
from gpuagent_alerts.notify.urgency import severity_rank, worst_severity
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.remedies.candidates import budget_uses
from gpuagent_alerts.remedies.outcome import RemedyEnding
from gpuagent_alerts.remedies.settings import MemoryBudget
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.shipped import RULES_FILE
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.states.machine import Change
from gpuagent_alerts.states.missing import find_missing
from gpuagent_alerts.states.persister import StatePersister
from gpuagent_alerts.store.database import Store
from tests.alerts.notify.outbox.parts import SteppingClock
from tests.alerts.notify.parts import Route
from tests.fakes import readings

TICK_SECONDS = 15.0
PID = 4242
GROUPS = load_rule_file(RULES_FILE)


class Heard(NamedTuple):
    """One message as its receiver understands it."""

    news: str
    severity: str
    alerts: str
    """`Full/0 -High/0`: names without `Gpu`, and GPUs; `-` has ended, `~` is only kept."""
    key: str


@dataclass
class Stage:
    """A node's alerting from rules to the outbox."""

    path: Path
    recipients: Sequence[Recipient] = (Recipient("slack"),)
    routes: Sequence[Route] = ()
    clock: SteppingClock = field(default_factory=SteppingClock)
    further: RemedyFigures = field(default_factory=lambda: RemedyFigures(1, stopped=False))
    remedy_endings: dict[tuple[str, str], RemedyEnding] = field(default_factory=dict)
    """What remedies did, by pid and UUID of the GPU."""
    is_alive: bool | None = False
    """Whether processes run that have left the driver's list."""
    budgets: tuple[MemoryBudget, ...] = ()
    up: bool = True
    """Whether receivers answer."""

    def __post_init__(self) -> None:
        self.heard: list[Heard] = []
        self.messages: list[Message] = []
        self.open()

    def open(self) -> None:
        """Begin as a new process does."""
        self.store = Store(self.path)
        self.engine = RuleEngine(GROUPS, longest_gap_seconds=60.0)
        self.keeper = StatePersister(self.store, self.engine, self.clock)
        self.engine.load(self.keeper.load(), self.clock.now(), self.clock.wall())
        self.outbox = Outbox(self.store, self.clock)
        self.acks = Acks(self.store, self.clock)
        self.silences = Silences(self.store, self.clock)
        self.notifier = Notifier(
            self.store, self.outbox, self.clock, Suppressions(self.silences, self.acks),
            routes=Routes(self.routes, self.recipients), node_labels={"node": "node7"},
        )  # fmt: skip
        self.briefings = BriefingWriter("node7")
        self.briefings.budgets = {one.label: one.memory_bytes for one in self.budgets}
        self.notifier.brief = self.briefings.write
        self.endings = EndReasons(self.engine.rules)
        self.notifier.grows_again = self.endings.regrowth.grows
        self.endings.ask(lambda pid, uuid: self.remedy_endings.get((pid, uuid)), lambda _: self.is_alive)
        self.endings.former_id = lambda pid: process_of(self.notifier.incidents, pid)
        self.endings.former_of = lambda name: subject_of_alert(self.notifier.incidents, name)
        self.endings.kept_reason = lambda name: kept_reason(self.notifier.incidents, name)
        self.restored = RestoredGrowth(lambda: self.notifier.incidents)
        self.restored.note_loaded(tuple(self.engine.rules()), self.clock.now())
        records = self.notifier.incidents.values()
        self.ended: dict[str, Alert] = {name: alert for one in records for name, alert in one.ended.items()}

    def kill(self) -> None:
        """End the process without a word, and begin anew."""
        self.store.close()
        self.open()

    def show(self, seen: Snapshot, seconds: float = TICK_SECONDS) -> None:
        """Let time pass while the node looks like this."""
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self.clock.advance(min(TICK_SECONDS, until - self.clock.now()))
            self._tick(seen)

    def _tick(self, seen: Snapshot) -> None:
        now, wall = self.clock.now(), self.clock.wall()
        snapshot = replace(seen, clock_seconds=now, measured_seconds=now, time_seconds=wall)
        further = [(REMEDY_FAMILIES, replace(self.further, budgets=tuple(budget_uses(self.budgets, snapshot))))]
        index = SeriesIndex.of(series(snapshot, now, extra_families=further), None)
        tick = EvaluatedTick(snapshot, index, wall)
        is_over = partial(self.endings.is_over, seen=tick)
        self.restored.observe(self.engine.rules(), snapshot)
        missing = find_missing(snapshot, self.restored.is_unproven)
        result = self.engine.evaluate(index, now, wall, missing, explainer(snapshot), is_over)
        assert not result.failures
        for change, alert in self.endings.explain(result.transitions, tick):
            if change is Change.ENDED:
                self.ended[alert.fingerprint] = alert
        self.briefings.snapshot = snapshot
        firing = self._instances(State.FIRING)
        if self.notifier.is_due({name: alert.holds for name, alert in firing.items()}) or self.keeper.is_due():
            with self.store.transaction():
                self.keeper.save_if_due()
                pending = self._instances(State.PENDING)
                self.ended = {name: self.endings.revised(one) for name, one in self.ended.items()}
                alerts = (*self.ended.values(), *firing.values())
                self.notifier.notify(
                    alerts, pending,
                    SnapshotFacts(snapshot, self.further.under_way, freed_by(self.further.ended), self.budgets),
                )  # fmt: skip
            self.ended = {name: one for name, one in self.ended.items() if self.notifier.is_open(name)}
        if self.up:
            self.deliver()

    def _instances(self, state: State) -> dict[str, Alert]:
        return {
            each.fingerprint: self.endings.with_reason(each.as_alert(Status.FIRING))
            for running in self.engine.rules()
            if running.states is not None
            for each in running.states.instances
            if each.state is state
        }

    def firing(self) -> list[Alert]:
        """Return the alerts that fire; those that are only kept with why their conditions ceased to hold."""
        return list(self._instances(State.FIRING).values())

    def pending(self) -> dict[str, Alert]:
        """Return what is true and does not fire yet."""
        return self._instances(State.PENDING)

    def kept(self) -> list[Alert]:
        """Return the alerts that fire only because they are kept."""
        return [one for one in self.firing() if one.is_kept]

    def deliver(self) -> None:
        """Let the receivers take all that waits."""
        for recipient in self.recipients:
            while taken := self.outbox.take_due(recipient.name, 1):
                self.outbox.record_outcome(taken, DELIVERED)
                self.messages += [one.message for one in taken]
                self.heard += [_heard(one.message) for one in taken]

    def told(self) -> list[str]:
        """`began warning: ProcessMemoryLeak/0` for every message so far, without keys."""
        return [f"{one.news} {one.severity}: {one.alerts}" for one in self.heard]

    def headlines(self) -> list[str]:
        """What a phone shows of every message so far."""
        return ["" if one.incident is None else one.incident.briefing.headline for one in self.messages]

    def keys(self) -> set[str]:
        """The keys of all incidents that somebody was told of."""
        return {one.key for one in self.heard}


def _heard(message: Message) -> Heard:
    incident = message.incident
    alerts = " ".join(_written(alert) for alert in message.alerts)
    if incident is None:
        return Heard(str(message.status), "", alerts, "")
    assert (message.status is Status.RESOLVED) == (incident.ends_at is not None)
    present = [alert.labels for alert in message.alerts if alert.holds]
    is_of_restart = incident.news == "restarted"  # what grows again may have no alert yet
    assert bool(present) == (incident.ends_at is None) or is_of_restart, (
        "nothing but an end is told of what is not true"
    )
    # It is as severe as what it shares with another incident, and never less than its own alerts.
    assert not present or severity_rank(incident.severity) >= severity_rank(worst_severity(present))
    return Heard(str(incident.news), incident.severity, alerts, incident.key)


def _written(alert: Alert) -> str:
    tier = alert.labels.get("tier") or alert.labels.get("evidence") or alert.labels.get("xid")
    name = alert.name + (f"[{tier}]" if tier else "")
    mark = "" if alert.holds else "~" if alert.is_kept else "-"
    return f"{mark}{name.removeprefix('Gpu')}/{alert.labels.get('gpu', '')}"


def leaking(*evidence: Evidence, full_in: float | None = None) -> Growth:
    """A leak of 10 GiB/h that has met these standards, the last one the strictest."""
    slope = 10 * GIB / 3600
    return Growth(
        Verdict.LEAKING, evidence[-1], Range(slope, slope, slope), since_seconds=1.0, evidence_told=evidence,
        exhaustion=None if full_in is None else Range(full_in, full_in / 2, 1.5 * full_in),
    )  # fmt: skip


def grown(seen: Snapshot, pid: int, growth: Growth, gpu: int = 0) -> Snapshot:
    """The snapshot, with this said of a process and of its GPU as a whole."""
    uuid = f"GPU-{gpu:08d}"
    said = {**seen.growth, MemoryKey(uuid, pid): growth, MemoryKey(uuid): growth}
    return replace(seen, growth=said)


def dry_run(pid: int, at: float, process: str = "python3") -> RemedyFigures:
    """A ladder in dry run that has come to its end."""
    about = RemedyTarget("0", "GPU-00000000", str(pid), process, "alice", "")
    note = RemedyNote(about, "run-1", "terminate", "dry_run", True, at)
    return RemedyFigures(1, stopped=False, ended=(note,))


def node(used_gib: float, *pids: int, **info: Any) -> Snapshot:
    """One GPU of 24 GiB with processes."""
    processes = [readings.process(pid, **info) for pid in pids or (PID,)]
    return readings.snapshot([readings.gpu(0, used_gib=used_gib)], processes)


def leak(used_gib: float, *evidence: Evidence, full_in: float | None = None) -> Snapshot:
    """One process that leaks."""
    return grown(node(used_gib), PID, leaking(*evidence, full_in=full_in))
