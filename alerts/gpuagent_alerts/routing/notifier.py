"""Turns the alerts of a tick into messages in the outbox."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Alert, Message
from gpuagent_alerts.incident import Briefing, Incident
from gpuagent_alerts.incidents.book import Book
from gpuagent_alerts.incidents.cause import Facts, NoFacts
from gpuagent_alerts.incidents.record import Record
from gpuagent_alerts.outbox.entry import Entry, Loss, Occasion
from gpuagent_alerts.outbox.holding import HeldBack
from gpuagent_alerts.outbox.ids import id_of_news, message_id
from gpuagent_alerts.outbox.pacing import WallSteps
from gpuagent_alerts.outbox.queue import Outbox
from gpuagent_alerts.routing.acks import Acks
from gpuagent_alerts.routing.groups import written
from gpuagent_alerts.routing.inhibition import outranked_by
from gpuagent_alerts.routing.limiter import MessageLimiter, Offer
from gpuagent_alerts.routing.mute import muted_by
from gpuagent_alerts.routing.notify import by_status, decide
from gpuagent_alerts.routing.route import Routes
from gpuagent_alerts.routing.silences import INCIDENT_LABEL, Silences
from gpuagent_alerts.routing.told import GroupKey, Told, load_told, moved, save_told
from gpuagent_alerts.routing.view import Telling, View
from gpuagent_alerts.store.database import Store


@dataclass(frozen=True, slots=True)
class Quiet:
    """What people have said about alerts."""

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
        quiet: Quiet,
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
        self._node_labels = dict(node_labels)
        self._limiter = MessageLimiter(store, outbox, clock, written(node_labels))
        self._book = Book(store, written(node_labels), clock.wall())
        self._steps = WallSteps(clock)
        told = load_told(store, clock.wall())
        # While it still fires, it is told again, under the same id.
        self._told = {key: one for key, one in told.items() if key not in outbox.lost}
        self._idle: _Idle | None = None

    def is_due(self, firing: Collection[str]) -> bool:
        """Whether `notify` may have something to do while these fire, by fingerprint. If not, it need not be called.

        What is told follows from who fires, from routes, from the time, and from what the store has: what was told, and
        silences and acknowledgements. It costs no query.
        """
        self._follow_clock()
        idle = self._idle
        return idle is None or self._clock.wall() >= idle.until or self._circumstances(firing) != idle.circumstances

    @property
    def incidents(self) -> Mapping[str, Record]:
        """Those that go on or ended within a day, by key."""
        return self._book.records

    def held_back(self) -> list[HeldBack]:
        """Return what receivers have not been told yet, as it was too much for an hour. Raises StoreFailure."""
        return self._limiter.held_back()

    def notify(
        self, alerts: Iterable[Alert], pending: Collection[str] = frozenset(), facts: Facts | None = None,
        *, closing: bool = False,
    ) -> int:  # fmt: skip
        """Queue what is to be told; returns how many messages that were.

        Needs every alert that fires now, on every call: what is missing counts as ended. Those that ended lately tell
        when they did. `pending` are fingerprints of instances that are true and have not held for long enough: one of
        them that was told and has not ended has lost its state, and is not told again. `facts` tell which alerts have
        one cause. With `closing` no end waits: nobody would tell of it later.

        All of it is one transaction, or part of the one under way. Raises StoreFailure; the next call then makes up for
        it.
        """
        self._follow_clock()
        self._idle = None
        firing, ended = by_status(alerts)
        now = self._clock.wall()
        with self._store.transaction():
            still_pending = {fingerprint for fingerprint in pending if fingerprint not in ended}
            incidents = self._book.update(firing, still_pending, facts or NoFacts(), now, closing=closing)
            view = replace(self._view(now, firing, ended, pending, incidents), closing=closing)
            tellings, next_at = decide(view, self._told)
            offers = [Offer(self._entry(telling, now), telling.urgent) for telling in tellings if telling.alerts]
            losses = self._limiter.send(offers, self.routes.recipients)
            losses = _of_digests(losses, self._limiter.digest_group, self._told)
            changes = _with_losses({telling.key: telling.told for telling in tellings}, self._told, losses)
            save_told(self._store, changes)
            self._quiet.acks.keep({*firing, *(key for key, one in incidents.items() if one.ends_at is None)})
            self._store.after_commit(lambda: self._apply(changes))
        if not tellings:
            self._idle = _Idle(
                self._circumstances(firing), min(next_at, self._limiter.next_at(), self._quiet.silences.next_change())
            )
        return sum(bool(telling.alerts) for telling in tellings)

    def _view(
        self, now: float, firing: Mapping[str, Alert], ended: Mapping[str, Alert], pending: Collection[str],
        incidents: Mapping[str, Record],
    ) -> View:  # fmt: skip
        acks = self._quiet.acks
        outranked = outranked_by(firing.values())
        return View(
            now=now,
            firing=firing,
            ended=ended,
            destinations=self.routes.of,
            recipients=self.routes.recipients,
            hushed=_Hushed(self._quiet.silences, firing, incidents),
            acknowledged={known for known in (*firing, *incidents) if known in acks},
            node_labels=self._node_labels,
            pending=pending,
            incidents=incidents,
            inhibited=lambda alert: bool(outranked(alert.labels)),
        )

    def is_open(self, fingerprint: str) -> bool:
        """Whether some receiver takes the alert for firing."""
        return any(told.alerts[fingerprint].firing for told in tuple(self._told.values()) if fingerprint in told.alerts)

    def _apply(self, changes: Mapping[GroupKey, Told | None]) -> None:
        for key, told in changes.items():
            if told is None:
                self._told.pop(key, None)
            else:
                self._told[key] = told

    def _circumstances(self, firing: Collection[str]) -> tuple[object, ...]:
        return frozenset(firing), self.routes, self._store.changes

    def _entry(self, telling: Telling, now: float) -> Entry:
        receiver, group = telling.key
        is_news = telling.occasion is not Occasion.REPEAT
        name = id_of_news(receiver, group, telling.alerts) if is_news else message_id(now)
        incident = telling.incident
        if incident is not None:
            incident = replace(incident, briefing=self.brief(incident, telling.alerts))
        message = Message(name, receiver, group, telling.alerts, telling.group_labels, incident)
        return Entry(message, telling.occasion, telling.news)

    def _follow_clock(self) -> None:
        step = self._steps.step()
        if step:
            self._idle = None
            now = self._clock.wall()
            self._book.follow_clock(step)
            self._told = {
                key: replace(told, told_at=told.told_at + step, incident=moved(told.incident, step, now))
                for key, told in self._told.items()
            }


class _Hushed:
    """Whether an alert is silenced or muted."""

    def __init__(self, silences: Silences, firing: Mapping[str, Alert], incidents: Mapping[str, Record]) -> None:
        self._silences = silences
        self._keys = {fingerprint: one.key for one in incidents.values() for fingerprint in one.members}
        self._muted = muted_by(firing.values())

    def __call__(self, alert: Alert) -> bool:
        if self._muted(alert.labels):
            return True
        key = self._keys.get(alert.fingerprint, "")
        return bool(self._silences.silencing({**alert.labels, INCIDENT_LABEL: key} if key else alert.labels))


def _of_digests(losses: Iterable[Loss], digests: str, told: Mapping[GroupKey, Told]) -> list[Loss]:
    """Return the losses by the groups that were told of: a digest speaks of alerts of several."""
    found: list[Loss] = []
    for loss in losses:
        groups = [key.group for key in told if key.receiver == loss.receiver] if loss.group == digests else [loss.group]
        found += [replace(loss, group=group) for group in groups]
    return found


def _with_losses(
    changes: Mapping[GroupKey, Told | None], told: Mapping[GroupKey, Told], losses: Iterable[Loss]
) -> dict[GroupKey, Told | None]:
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
