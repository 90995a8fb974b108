"""Limit how many messages a receiver gets in an hour; what is too much is held back, and a digest tells of it.

What is critical and begins, or becomes critical, goes out in any case, and never waits for a warning. So does the end
of what the receiver was told of. Reminders take what room is left, and take none away from anything else.

A message that is held back lies in the outbox in a state of its own: what it tells of counts as told, and survives the
process. Later one message tells of all of them, each alert as it was last. Where a receiver has to hear of each group
by itself (PagerDuty), they go out one after another as there is room.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import SUMMARY, Alert, DigestLine, Message, News, Status, shown_annotations
from gpuagent_alerts.notify.outbox.entry import OUTBOX, DroppedMessage, Occasion, OutboxEntry, QueuedMessage, message_id
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.store.database import Store

_HELD = "WHERE state = 'held' AND receiver = ? ORDER BY seq"
_DROP = "UPDATE outbox SET state = 'dropped', body = '', bytes = 0, last_error = ?, done_at = ? WHERE seq = ?"
IN_DIGEST = "it is in a digest"
IN_LATER = "it is in a later message of its group"
MAX_ALERTS = 100


@dataclass(frozen=True, slots=True)
class HeldSummary:
    """Summary of what is held back from one receiver."""

    receiver: str
    messages: int
    since: float
    """Unix time of the oldest."""
    alerts: tuple[str, ...]
    """Names of the alerts, each once."""


class HeldMessages:
    """Messages that are held back, in the outbox's table. Its calls raise StoreFailure."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def receivers(self) -> frozenset[str]:
        """Return those of whom something is held back."""
        return frozenset(str(name) for (name,) in self._store.execute(
            "SELECT DISTINCT receiver FROM outbox WHERE state = 'held'"
        ))  # fmt: skip

    def waiting(self, receiver: str) -> list[QueuedMessage]:
        """Return what is held back, the oldest first."""
        return self._store.read(OUTBOX, _HELD, (receiver,))

    def untold_groups(self, receiver: str) -> frozenset[str]:
        """Return the groups of whose beginning the receiver has not been told."""
        held = self.waiting(receiver)
        return frozenset(one.message.group for one in held if _begins(one))

    def is_digest_queued(self, receiver: str, group: str) -> bool:
        """Return whether the last digest has not been delivered yet."""
        return bool(self._store.execute(
            "SELECT 1 FROM outbox WHERE state = 'queued' AND receiver = ? AND group_key = ? LIMIT 1", (receiver, group)
        ))  # fmt: skip

    def hold(self, ids: Sequence[str]) -> None:
        """Hold back messages that were put into the outbox in the transaction under way."""
        self._store.execute_many(
            "UPDATE outbox SET state = 'held' WHERE id = ? AND state = 'queued'", [(one,) for one in ids]
        )

    def release(self, held: Sequence[QueuedMessage], now: float) -> None:
        """Send these by themselves."""
        self._store.execute_many(
            "UPDATE outbox SET state = 'queued', created = ?, next_at = ? WHERE seq = ?",
            [(now, now, one.seq) for one in held],
        )

    def fold(self, entry: OutboxEntry, now: float) -> OutboxEntry:
        """Return a message with the ends that older ones of its group, held back, were to tell; it replaces them."""
        message = entry.message
        held = [one for one in self.waiting(message.receiver) if one.message.group == message.group]
        if not held:
            return entry
        present = {alert.fingerprint for alert in message.alerts}
        ends = [
            alert for alert in _latest(held)
            if alert.status is Status.RESOLVED and alert.fingerprint not in present
        ]  # fmt: skip
        self._drop(held, IN_LATER, now)
        news = dict.fromkeys((*(name for one in held for name in one.news), *entry.news))
        return replace(entry, message=replace(message, alerts=(*message.alerts, *ends)), news=tuple(news))

    def digest(self, held: Sequence[QueuedMessage], *, group: str, name: str, now: float) -> OutboxEntry:
        """Return the message that tells of these, and forget them as messages."""
        alerts = _latest(held)
        self._drop(held, IN_DIGEST, now)
        receiver = held[0].message.receiver
        labels = {"digest": f"{len(held)} messages that were held back"}
        news = dict.fromkeys(name for one in held for name in one.news)
        message = Message(name, receiver, group, tuple(alerts), labels, digest=tuple(_lines(held)))
        ended = any(alert.status is Status.RESOLVED for alert in alerts)
        return OutboxEntry(message, Occasion.RESOLVED if ended else Occasion.FIRING, tuple(news))

    def summary(self) -> list[HeldSummary]:
        """Return what is held back, by receiver."""
        found = []
        for receiver in sorted(self.receivers()):
            held = self.waiting(receiver)
            if held:
                names = dict.fromkeys(alert.name for one in held for alert in one.message.alerts)
                found.append(HeldSummary(receiver, len(held), min(one.created for one in held), tuple(names)))
        return found

    def _drop(self, held: Sequence[QueuedMessage], why: str, now: float) -> None:
        self._store.execute_many(_DROP, [(why, now, one.seq) for one in held])


def _begins(one: QueuedMessage) -> bool:
    incident = one.message.incident
    return bool(one.news) if incident is None else incident.news is News.BEGAN


def fit_digest(held: Sequence[QueuedMessage]) -> list[QueuedMessage]:
    """Return as many of these, the oldest first, as one digest has room for; at least one."""
    chosen: list[QueuedMessage] = []
    known: set[str] = set()
    for one in held:
        known |= {alert.fingerprint for alert in one.message.alerts}
        if chosen and len(known) > MAX_ALERTS:
            break
        chosen.append(one)
    return chosen


def _lines(held: Sequence[QueuedMessage]) -> Iterator[DigestLine]:
    """Yield what these messages are about: each incident, or group of alerts, once, as its last message has it."""
    by_group: defaultdict[str, list[Message]] = defaultdict(list)
    for one in held:
        incident = one.message.incident
        by_group[one.message.group if incident is None else incident.key].append(one.message)
    for messages in by_group.values():
        last = messages[-1]
        if last.incident is not None and last.incident.briefing.headline:
            yield DigestLine(last.incident.briefing.headline, len(messages), last.incident.is_over)
        else:
            said = [shown_annotations(one).get(SUMMARY) or one.name for one in last.alerts[:1]]
            more = f" and {len(last.alerts) - 1} more" if len(last.alerts) > 1 else ""
            yield DigestLine("".join(said) + more, len(messages), last.status is Status.RESOLVED)


def _latest(held: Sequence[QueuedMessage]) -> list[Alert]:
    """Return each alert once, as the last message has it; what fires first."""
    alerts = {alert.fingerprint: alert for one in held for alert in one.message.alerts}
    return sorted(alerts.values(), key=lambda alert: alert.status is not Status.FIRING)


_HOUR_SECONDS = 3600.0


_NOTHING_NEW = frozenset({News.REMINDER, News.RESTARTED, News.UPDATED})


class Offer(NamedTuple):
    """A message that is to be sent."""

    entry: OutboxEntry
    urgent: bool
    """No cap holds it back."""
    tells_more: bool = False
    """It is a reminder with news: a restart, a lower severity, another process. Held back rather than given up."""

    @property
    def is_reminder(self) -> bool:
        """Whether it is sent because time has passed, and not because of something new."""
        incident = self.entry.message.incident
        return self.entry.occasion is Occasion.REPEAT if incident is None else incident.news in _NOTHING_NEW

    @property
    def is_end(self) -> bool:
        """Whether all that it tells of has ended."""
        return self.entry.message.status is Status.RESOLVED


class MessageLimiter:
    """Between what is to be told and the outbox. Its calls raise StoreFailure."""

    def __init__(self, store: Store, outbox: Outbox, clock: Clock, node: str) -> None:
        self._store = store
        self._outbox = outbox
        self._clock = clock
        self._digest_group = f"{node}:digest"
        self._holding = HeldMessages(store)
        self._sent: defaultdict[str, deque[float]] = defaultdict(deque)
        """When each receiver was sent messages, without reminders."""
        self._reminded: defaultdict[str, deque[float]] = defaultdict(deque)
        now, wall = clock.now(), clock.wall()
        nothing: list[tuple[Any, ...]] = []
        rows = store.at_start(
            lambda: store.execute(
                "SELECT receiver, created, reason FROM outbox"
                " WHERE state IN ('queued', 'sent', 'dead') AND created > ? ORDER BY created",
                (wall - _HOUR_SECONDS,),
            ),
            nothing,
        )
        for receiver, created, reason in rows:
            times = self._reminded if reason == Occasion.REPEAT else self._sent
            times[receiver].append(now - max(wall - created, 0.0))

    @property
    def digest_group(self) -> str:
        """Name of the group that digests are messages of."""
        return self._digest_group

    def held_back(self) -> list[HeldSummary]:
        """Return what is held back, by receiver."""
        return self._holding.summary()

    def send(self, offers: Sequence[Offer], recipients: Mapping[str, Recipient]) -> list[DroppedMessage]:
        """Put messages into the outbox, or hold them back; tell of those that were held back, where there is room.

        It is a part of the transaction under way. Returns what had to be dropped to make room in the outbox.
        """
        held = self._holding.receivers()
        losses: list[DroppedMessage] = []
        by_receiver: defaultdict[str, list[Offer]] = defaultdict(list)
        for offer in offers:
            by_receiver[offer.entry.message.receiver].append(offer)
        for name in dict.fromkeys((*by_receiver, *held)):
            losses += self._send_to(recipients.get(name), name, by_receiver[name], has_held=name in held)
        return losses

    def next_at(self) -> float:
        """Return the Unix time at which there is room for what is held back; infinity if nothing is."""
        now, wall = self._clock.now(), self._clock.wall()
        times = [self._recent(name)[0] for name in self._holding.receivers() if self._recent(name)]
        return min((wall + time + _HOUR_SECONDS - now for time in times), default=math.inf)

    def _send_to(
        self, recipient: Recipient | None, name: str, offers: Sequence[Offer], *, has_held: bool
    ) -> list[DroppedMessage]:
        if recipient is None or recipient.max_messages_per_hour is None:
            if has_held:  # it has no cap any more, or is no receiver any more
                self._release(name, math.inf)
            return self._enqueue(name, [offer.entry for offer in offers])
        untold = self._holding.untold_groups(name) if has_held else frozenset()
        free = [each.urgent or (each.is_end and each.entry.message.group not in untold) for each in offers]
        urgent = [offer.entry for offer, is_free in zip(offers, free, strict=True) if is_free]
        held_up = [offer for offer, is_free in zip(offers, free, strict=True) if not is_free]
        normal = [offer.entry for offer in held_up if not offer.is_reminder]
        reminders = [offer for offer in held_up if offer.is_reminder]
        room = max(recipient.max_messages_per_hour - len(self._recent(name)) - len(urgent), 0)
        if has_held:
            now = self._clock.wall()
            urgent = [self._holding.fold(entry, now) for entry in urgent]
        if has_held and self._holding.is_digest_queued(name, self._digest_group):
            room = 0
        if not has_held and len(normal) <= room:
            losses = self._enqueue(name, [*urgent, *normal])
            return losses + self._remind(recipient, reminders, room - len(normal))
        # The last place of the hour is the digest's.
        alone = normal[: max(room - 1, 0)] if recipient.digests and not has_held else []
        losses = self._enqueue(name, [*urgent, *alone])
        losses += self._hold(name, normal[len(alone) :])
        losses += self._remind(recipient, reminders, 0)
        left = room - len(alone)
        if left > 0:
            losses += self._tell_of_held(recipient, left)
        return losses

    def _remind(self, recipient: Recipient, offers: Sequence[Offer], room: int) -> list[DroppedMessage]:
        """Send as many reminders as there is room for. Of the others only those are held back that have some news."""
        left = max(room - len(self._recent(recipient.name, self._reminded)), 0)
        offers = sorted(offers, key=lambda one: not one.tells_more)
        sent, others = offers[:left], offers[left:]
        if sent:
            self._note(recipient.name, len(sent), self._reminded)
        losses = self._outbox.enqueue([one.entry for one in sent])
        held = [one.entry for one in others if one.tells_more or one.entry.occasion is not Occasion.REPEAT]
        return losses + self._hold(recipient.name, held)

    def _tell_of_held(self, recipient: Recipient, room: int) -> list[DroppedMessage]:
        held = fit_digest(self._holding.waiting(recipient.name))
        if not recipient.digests or len(held) == 1:
            self._release(recipient.name, room)
            return []
        if not held:
            return []
        now = self._clock.wall()
        entry = self._holding.digest(held, group=self._digest_group, name=message_id(now), now=now)
        return self._enqueue(recipient.name, [entry])

    def _enqueue(self, name: str, entries: Sequence[OutboxEntry]) -> list[DroppedMessage]:
        if entries:
            self._note(name, len(entries))
        return self._outbox.enqueue(entries)

    def _hold(self, name: str, entries: Sequence[OutboxEntry]) -> list[DroppedMessage]:
        self._outbox.count_held(name, len(entries))
        return self._outbox.enqueue([replace(entry, held=True) for entry in entries])

    def _release(self, name: str, most: float) -> None:
        waiting = self._holding.waiting(name)
        chosen = [one for place, one in enumerate(waiting) if place < most]
        self._holding.release(chosen, self._clock.wall())
        self._note(name, len(chosen))
        self._store.after_commit(lambda: self._outbox.on_queued({name}))

    def _note(self, name: str, count: int, times: defaultdict[str, deque[float]] | None = None) -> None:
        now = self._clock.now()
        sent = self._sent if times is None else times
        self._store.after_commit(lambda: sent[name].extend([now] * count))

    def _recent(self, name: str, times: defaultdict[str, deque[float]] | None = None) -> deque[float]:
        """Return when it was sent messages within the last hour, as it was on the monotonic clock."""
        sent, now = (self._sent if times is None else times)[name], self._clock.now()
        while sent and now - sent[0] >= _HOUR_SECONDS:
            sent.popleft()
        return sent
