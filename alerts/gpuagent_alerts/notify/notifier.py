"""Turns the alerts of a tick into messages in the outbox."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Alert, Briefing, Incident, Message, News
from gpuagent_alerts.notify.cause import CauseFacts, NoCauseFacts, is_one_course
from gpuagent_alerts.notify.decide import by_status, decide
from gpuagent_alerts.notify.incident_record import IncidentRecord, end_within, incident_of
from gpuagent_alerts.notify.incidents import IncidentBook
from gpuagent_alerts.notify.inhibition import inhibited_by_loss, inhibited_by_tier
from gpuagent_alerts.notify.limiter import HeldSummary, MessageLimiter, Offer
from gpuagent_alerts.notify.outbox.attempt import WallSteps
from gpuagent_alerts.notify.outbox.entry import DroppedMessage, Occasion, OutboxEntry, id_of_news, message_id
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.routes import Routes
from gpuagent_alerts.notify.silenced import Silencing, silences_of, silencing_of
from gpuagent_alerts.notify.silences import Acks, Silences
from gpuagent_alerts.notify.state import (
    GroupKey,
    NotificationDecision,
    NotificationInputs,
    NotificationState,
    as_ended,
    format_labels,
    load_notification_states,
    save_notification_states,
    shift_alert,
    shift_times,
)
from gpuagent_alerts.notify.succession import Watch
from gpuagent_alerts.notify.urgency import FULL_ALERTS, UrgencyStage, is_remedy_note
from gpuagent_alerts.store.database import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Suppressions:
    """What people have said about alerts: silences and acknowledgements."""

    silences: Silences
    acks: Acks


class _Idle(NamedTuple):
    """A call that found nothing to do: nor will the next ones, for as long as this holds."""

    circumstances: tuple[object, ...]
    until: float
    """Unix time."""


class Notifier:
    """Compares what fires with what was told, and queues the difference."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        clock: Clock,
        quiet: Suppressions,
        *,
        routes: Routes,
        node_labels: Mapping[str, str],
    ) -> None:
        self.routes = routes
        """May be replaced at any time; what was told by old routes is still resolved."""
        self._store = store
        self._outbox = outbox
        self._clock = clock
        self._quiet = quiet
        self.brief: Callable[[Incident, Sequence[Alert]], Briefing] = lambda _incident, _alerts: Briefing()
        """Says what a message of an incident with these alerts is to tell a person."""
        self.grows_again: Callable[[str, float], bool] = lambda _name, _now: False
        """Tells of an alert, by fingerprint, whether growth that had stopped goes on now, in Unix time."""
        self.growing_again: frozenset[str] = frozenset()
        """Keys of incidents whose end waits for that, as of the last look."""
        self._node_labels = dict(node_labels)
        self._limiter = MessageLimiter(store, outbox, clock, format_labels(node_labels))
        self._book = IncidentBook(store, format_labels(node_labels), clock.wall())
        self._steps = WallSteps(clock)
        told = load_notification_states(store, clock.wall())
        # While it still fires, it is told again, under the same id.
        self._told = {key: one for key, one in told.items() if key not in outbox.lost}
        self._idle: _Idle | None = None
        self._muted: frozenset[str] = frozenset()
        """Fingerprints of alerts that something muted the last time, or that are withheld since."""

    def is_due(self, firing: Mapping[str, bool]) -> bool:
        """Return whether `notify` may have something to do while these fire; if not, it need not run.

        `firing` tells of each, by fingerprint, whether its condition is true now.

        What is told follows from who fires, from routes, from the time, and from what the store has: what was told, and
        silences and acknowledgements. It costs no query.
        """
        self._follow_clock()
        idle = self._idle
        return idle is None or self._clock.wall() >= idle.until or self._circumstances(firing) != idle.circumstances

    @property
    def incidents(self) -> Mapping[str, IncidentRecord]:
        """Incidents that go on or ended within a day, by key."""
        return self._book.records

    def owners(self) -> Mapping[str, Watch]:
        """Return, by key, what was last seen of the owners of processes of incidents that go on."""
        watched = self._book.watched
        going_on = {key: one for key, one in self._book.records.items() if one.ends_at is None}
        return {
            key: watched[key] if key in watched else Watch(one.restarts, holds=one.ceased_at is not None)
            for key, one in going_on.items()
        }

    def held_back(self) -> list[HeldSummary]:
        """Return what receivers have not been told yet, as it was too much for an hour. Raises StoreFailure."""
        return self._limiter.held_back()

    def notify(
        self, alerts: Iterable[Alert], pending: Mapping[str, Alert] | None = None, facts: CauseFacts | None = None,
        *, handed_over: Iterable[Alert] | None = None,
    ) -> int:  # fmt: skip
        """Queue what is to be told; returns how many messages that were.

        Needs every alert that fires now, on every call: what is missing counts as ended. Those that ended lately tell
        when they did. `pending` are instances by fingerprint that are true and have not held for long enough: one of
        them that was told and has not ended has lost its state, and is not told again. `facts` tell which alerts have
        one cause. `handed_over` are the alerts that fire where others tell of them: `alerts` ends them for receivers
        then, and no end waits, as nobody would tell of it later.

        All of it is one transaction, or part of the one under way. Raises StoreFailure; the next call then makes up for
        it.
        """
        self._follow_clock()
        self._idle = None
        firing, ended = by_status(alerts)
        going_on = firing if handed_over is None else {one.fingerprint: one for one in handed_over}
        holding = {name: alert.holds for name, alert in going_on.items()}
        pending = pending or {}
        now = self._clock.wall()
        muted = self._withhold(firing, ended, now)
        with self._store.transaction():
            still_pending = {fingerprint for fingerprint in pending if fingerprint not in ended}
            stirring = self._stirring(pending, facts or NoCauseFacts(), now)
            self.growing_again = self._growing_again(going_on, now)
            stirring = {key: [] for key in self.growing_again} | stirring
            owners = self._book.watch_owners(facts or NoCauseFacts(), now)
            incidents = self._book.update(
                going_on, still_pending, facts or NoCauseFacts(), now, ended=ended,
                about_to_fire=pending.values(),
                describe=lambda record, members: self._headline_of_end(record, members, ended),
                stirring=stirring.keys(), growing=self.growing_again, owners=owners, untold=self._untold_ends(),
            )  # fmt: skip
            held: dict[str, list[Alert]] = {key: [] for key, one in owners.items() if one.holds}
            view = self._view(now, firing, ended, pending, incidents)
            again = {key: one for key, one in owners.items() if one.news_at is not None}
            view = replace(view, closing=handed_over is not None, stirring=held | stirring, grow_again=again)
            decisions, next_at = decide(view, self._told)
            entries = {decision.key: self._entry(decision, now) for decision in decisions if decision.alerts}
            offers = [
                Offer(entries[each.key], each.urgent, each.tells_more) for each in decisions if each.key in entries
            ]
            if told := {one.key: one.briefing.headline for one in _incidents_of(offers) if one.news is News.ENDED}:
                self._book.note_headlines(incidents, told)
            losses = self._limiter.send(offers, self.routes.recipients)
            losses = _of_digests(losses, self._limiter.digest_group, self._told)
            changes = {decision.key: _as_written(decision.told, entries.get(decision.key)) for decision in decisions}
            changes = _with_losses(changes, self._told, losses)
            save_notification_states(self._store, changes)
            self._quiet.acks.keep({*going_on, *(key for key, one in incidents.items() if one.ends_at is None)})
            self._store.after_commit(lambda: self._apply(changes, muted))
        if not decisions:
            next_at = min(next_at, self._limiter.next_at(), self._quiet.silences.next_change())
            self._idle = _Idle(self._circumstances(holding), next_at)
        return sum(bool(decision.alerts) for decision in decisions)

    def _view(
        self, now: float, firing: Mapping[str, Alert], ended: Mapping[str, Alert], pending: Collection[str],
        incidents: Mapping[str, IncidentRecord],
    ) -> NotificationInputs:  # fmt: skip
        acks = self._quiet.acks
        by_tier = inhibited_by_tier(firing.values())
        return NotificationInputs(
            now=now,
            firing=firing,
            ended=ended,
            destinations=self.routes.of,
            recipients=self.routes.recipients,
            suppressed=_Suppressed(self._quiet.silences, firing),
            acknowledged={known for known in (*firing, *incidents) if known in acks},
            node_labels=self._node_labels,
            pending=pending,
            incidents=incidents,
            inhibited=lambda alert: bool(by_tier(alert.labels)),
        )

    def _headline_of_end(
        self, record: IncidentRecord, members: Collection[str], ended: Mapping[str, Alert]
    ) -> str:  # fmt: skip
        """Return what an incident was, and why it is over, by its last alerts and by what receivers heard of others."""
        alerts = {
            name: one.alert for told in self._told.values() if told.incident is not None
            if told.incident.key == record.key for name, one in told.alerts.items() if not one.firing
        }  # fmt: skip
        ends = ((name, end_within(record, name, ended.get(name))) for name in members)
        alerts |= {name: one for name, one in ends if one is not None}
        return self._briefing(incident_of(record, News.ENDED), list(alerts.values())).headline if alerts else ""

    def _stirring(self, pending: Mapping[str, Alert], facts: CauseFacts, now: float) -> dict[str, list[Alert]]:
        """Return what is about to fire of incidents of which a receiver has not been told the end."""
        told = {told.incident.key: told.alerts for told in self._told.values() if told.incident is not None}
        known = {fingerprint for alerts in told.values() for fingerprint in alerts}
        counts = {name: one for name, one in pending.items() if name in known or is_one_course(one.labels)}
        found = self._book.stirring(counts, facts, now) if told and counts else {}
        return {key: alerts for key, alerts in found.items() if key in told}

    def _growing_again(self, firing: Mapping[str, Alert], now: float) -> frozenset[str]:
        """Return the keys of incidents that go on, and of which growth goes on that was said to have stopped."""
        return frozenset(
            one.key for one in self._book.records.values()
            if one.ends_at is None
            and any(self.grows_again(name, now) for name in (*one.members, *one.left)
                    if name not in firing or not firing[name].holds)
        )  # fmt: skip

    def about_to_fire(self, pending: Mapping[str, Alert], facts: CauseFacts) -> dict[str, list[Alert]]:
        """Return those of these alerts, which are about to fire, that belong to an incident, by its key."""
        return self._stirring(pending, facts, self._clock.wall())

    def is_silenced(self, alert: Alert) -> bool:
        """Return whether a silence is in force for an alert, or for its incident."""
        return self.silencing(alert).is_silenced

    def silencing(self, alert: Alert) -> Silencing:
        """Return how far silences hold for an alert."""
        name = alert.fingerprint
        record = next((one for one in self._book.records.values() if name in one.members), None)
        return silencing_of(self._quiet.silences, alert.labels, record, self._node_labels)

    def is_process_silenced(self, labels: Mapping[str, str], identity: str) -> bool:
        """Return whether a silence is in force for an alert with these labels on a process, or for its incident.

        `identity` is as in the identities of incidents. No such alert has to fire.
        """
        records = (one for one in self._book.records.values() if one.ends_at is None and identity in one.identities)
        return bool(silences_of(self._quiet.silences, labels, next(records, None), self._node_labels))

    def severity_of(self, alert: Alert) -> str:
        """Return the severity of an alert that fires: that of its incident while what is worse is about to fire."""
        record = next((one for one in self._book.records.values() if alert.fingerprint in one.members), None)
        is_held = record is not None and record.rises and is_one_course(alert.labels)
        return record.severity if record is not None and is_held else alert.labels.get("severity", "")

    def is_incident_silenced(self, record: IncidentRecord, known: Mapping[str, Mapping[str, str]]) -> bool:
        """Return whether silences are in force for all of an incident: as such, or for each of its alerts.

        `known` are labels of alerts by fingerprint. Where none of its own is known, its own labels stand for them.
        """
        own = [known[name] for name in record.members if name in known]
        # That a memory was full concerned every program there, and is over.
        own += [each for name in record.left if (each := known.get(name)) and each.get("alertname") not in FULL_ALERTS]
        own = [labels for labels in own if not is_remedy_note(labels)]
        every = own or [{name: value for name, value in record.labels.items() if value}]
        return all(silences_of(self._quiet.silences, labels, record, self._node_labels) for labels in every)

    def is_open(self, fingerprint: str) -> bool:
        """Return whether some receiver takes the alert for firing, or the end of its incident is yet to tell of it."""
        untold = self._untold_ends()
        if any(fingerprint in one.left and one.key in untold for one in self._book.records.values()):
            return True
        return any(told.alerts[fingerprint].firing for told in tuple(self._told.values()) if fingerprint in told.alerts)

    def _untold_ends(self) -> set[str]:
        """Return the keys of the incidents of which a receiver was told, and was not told the end."""
        return {one.incident.key for one in tuple(self._told.values()) if one.incident and not one.incident.is_closed}

    def _withhold(self, firing: dict[str, Alert], ended: dict[str, Alert], now: float) -> frozenset[str]:
        """Move what was muted, and is only kept, to what has ended as soon as nothing mutes it any more.

        Its receivers would otherwise be told, as news, of what is over. What one of them takes for firing and only a
        GPU that cannot be read has muted is no news: it is kept for as long as its rule says. Returns what is muted or
        withheld now.
        """
        found: set[str] = set()
        told = {name for one in self._told.values() for name, each in one.alerts.items() if each.firing}
        while True:  # what is withheld mutes nothing any more
            by_loss, by_tier = inhibited_by_loss(firing.values()), inhibited_by_tier(firing.values())
            by_more = {name for name, one in firing.items() if by_tier(one.labels)}
            unread = {name for name, one in firing.items() if by_loss(one.labels)} - by_more
            once_muted = (self._muted | found) - by_more - unread
            released = {name for name in once_muted if name in firing and firing[name].is_kept}
            found |= by_more | (unread - told) | released
            for name in released:
                alert = firing.pop(name)
                ended[name] = as_ended(alert, alert, now)
            if not released:
                return frozenset(found)

    def _apply(self, changes: Mapping[GroupKey, NotificationState | None], muted: frozenset[str]) -> None:
        self._muted = muted
        for key, told in changes.items():
            if told is None:
                self._told.pop(key, None)
            else:
                self._told[key] = told

    def _circumstances(self, firing: Mapping[str, bool]) -> tuple[object, ...]:
        return frozenset(firing.items()), self.routes, self._store.changes

    def _entry(self, decision: NotificationDecision, now: float) -> OutboxEntry:
        receiver, group = decision.key
        is_news = decision.occasion is not Occasion.REPEAT
        incident = decision.incident
        follows = _follows(incident, self._told.get(decision.key))
        name = id_of_news(receiver, group, decision.alerts, follows) if is_news else message_id(now)
        if incident is not None:
            incident = replace(incident, briefing=self._briefing(incident, decision.alerts))
        message = Message(name, receiver, group, decision.alerts, decision.group_labels, incident)
        return OutboxEntry(message, decision.occasion, decision.news)

    def _briefing(self, incident: Incident, alerts: Sequence[Alert]) -> Briefing:
        """Return what is to be told of an incident; nothing but its alerts where a defect is in the way of the rest."""
        try:
            return self.brief(incident, alerts)
        except Exception:
            log.exception("incident %s is told without a briefing", incident.key)
            return Briefing()

    def _follow_clock(self) -> None:
        step = self._steps.step()
        if step:
            self._idle = None
            now = self._clock.wall()
            self._book.follow_clock(step)
            self._told = {
                key: replace(
                    told,
                    told_at=told.told_at + step,
                    incident=shift_times(told.incident, step, now),
                    alerts={name: shift_alert(one, step) for name, one in told.alerts.items()},
                )
                for key, told in self._told.items()
            }


def _follows(incident: Incident | None, before: NotificationState | None) -> str:
    """Return what makes a message of an incident that goes on news, whose alerts may all have been told before."""
    if incident is None or before is None or incident.news in {News.BEGAN, News.ENDED}:
        return ""
    return f"{incident.news} {before.told_at:.3f}"


def _as_written(told: NotificationState | None, entry: OutboxEntry | None) -> NotificationState | None:
    """Return what is known as told after a message: one that says that the memory is full tells no less than that."""
    incident = None if entry is None else entry.message.incident
    if told is None or told.incident is None or incident is None or not incident.briefing.says_full:
        return told
    urgency = told.incident.urgency
    urgency = urgency._replace(stage=max(urgency.stage, UrgencyStage.FULL))
    return replace(told, incident=replace(told.incident, urgency=urgency))


def _incidents_of(offers: Iterable[Offer]) -> Iterator[Incident]:
    for offer in offers:
        if offer.entry.message.incident is not None:
            yield offer.entry.message.incident


class _Suppressed:
    """Test whether an alert is silenced or inhibited."""

    def __init__(self, silences: Silences, firing: Mapping[str, Alert]) -> None:
        self._silences = silences
        self._by_loss = inhibited_by_loss(firing.values())

    def __call__(self, alert: Alert, record: IncidentRecord | None) -> bool:
        return self._by_loss(alert.labels) != "" or bool(silences_of(self._silences, alert.labels, record))


def _of_digests(
    losses: Iterable[DroppedMessage], digests: str, told: Mapping[GroupKey, NotificationState]
) -> list[DroppedMessage]:
    """Return the losses by the groups that were told of: a digest speaks of alerts of several."""
    found: list[DroppedMessage] = []
    for loss in losses:
        groups = [key.group for key in told if key.receiver == loss.receiver] if loss.group == digests else [loss.group]
        found += [replace(loss, group=group) for group in groups]
    return found


def _with_losses(
    changes: Mapping[GroupKey, NotificationState | None],
    told: Mapping[GroupKey, NotificationState],
    losses: Iterable[DroppedMessage],
) -> dict[GroupKey, NotificationState | None]:
    """Mark what a receiver will not hear of, as there was no room."""
    marked = dict(changes)
    for loss in losses:
        key = GroupKey(loss.receiver, loss.group)
        group = marked[key] if key in marked else told.get(key)
        if group is None:
            continue
        alerts = {
            fingerprint: replace(one, lost=one.lost or one.alert.fingerprint in loss.untold)
            for fingerprint, one in group.alerts.items()
        }
        marked[key] = replace(group, alerts=alerts)
    return marked
