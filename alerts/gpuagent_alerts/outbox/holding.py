"""Messages that are held back, as a receiver has had enough for an hour, and the digest that tells of them later.

A message that is held back lies in the outbox in a state of its own: what it tells of counts as told, and survives the
process. Later one message tells of all of them, each alert as it was last. Where a receiver has to hear of each group
by itself (PagerDuty), they go out one after another as there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.outbox.entry import Entry, Occasion, Queued
from gpuagent_alerts.outbox.table import OUTBOX
from gpuagent_alerts.store.database import Store

_HELD = "WHERE state = 'held' AND receiver = ? ORDER BY seq"
_DROP = "UPDATE outbox SET state = 'dropped', body = '', bytes = 0, last_error = ?, done_at = ? WHERE seq = ?"
IN_DIGEST = "it is in a digest"
IN_LATER = "it is in a later message of its group"
MAX_ALERTS = 100


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What is held back of one receiver."""

    receiver: str
    messages: int
    since: float
    """Unix time of the oldest."""
    alerts: tuple[str, ...]
    """Names of the alerts, each once."""


class Holding:
    """What is held back, in the outbox's table. Its calls raise StoreFailure."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def receivers(self) -> frozenset[str]:
        """Return those of whom something is held back."""
        return frozenset(str(name) for (name,) in self._store.execute(
            "SELECT DISTINCT receiver FROM outbox WHERE state = 'held'"
        ))  # fmt: skip

    def waiting(self, receiver: str) -> list[Queued]:
        """Return what is held back, the oldest first."""
        return self._store.read(OUTBOX, _HELD, (receiver,))

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

    def release(self, held: Sequence[Queued], now: float) -> None:
        """Send these by themselves."""
        self._store.execute_many(
            "UPDATE outbox SET state = 'queued', created = ?, next_at = ? WHERE seq = ?",
            [(now, now, one.seq) for one in held],
        )

    def fold(self, entry: Entry, now: float) -> Entry:
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

    def digest(self, held: Sequence[Queued], *, group: str, name: str, now: float) -> Entry:
        """Return the message that tells of these, and forget them as messages."""
        alerts = _latest(held)
        self._drop(held, IN_DIGEST, now)
        receiver = held[0].message.receiver
        labels = {"digest": f"{len(held)} messages that were held back"}
        news = dict.fromkeys(name for one in held for name in one.news)
        message = Message(name, receiver, group, tuple(alerts), labels)
        ended = any(alert.status is Status.RESOLVED for alert in alerts)
        return Entry(message, Occasion.RESOLVED if ended else Occasion.FIRING, tuple(news))

    def summary(self) -> list[HeldBack]:
        """Return what is held back, by receiver."""
        found = []
        for receiver in sorted(self.receivers()):
            held = self.waiting(receiver)
            if held:
                names = dict.fromkeys(alert.name for one in held for alert in one.message.alerts)
                found.append(HeldBack(receiver, len(held), min(one.created for one in held), tuple(names)))
        return found

    def _drop(self, held: Sequence[Queued], why: str, now: float) -> None:
        self._store.execute_many(_DROP, [(why, now, one.seq) for one in held])


def fits(held: Sequence[Queued]) -> list[Queued]:
    """Return as many of these, the oldest first, as one digest has room for; at least one."""
    chosen: list[Queued] = []
    known: set[str] = set()
    for one in held:
        known |= {alert.fingerprint for alert in one.message.alerts}
        if chosen and len(known) > MAX_ALERTS:
            break
        chosen.append(one)
    return chosen


def _latest(held: Sequence[Queued]) -> list[Alert]:
    """Return each alert once, as the last message has it; what fires first."""
    alerts = {alert.fingerprint: alert for one in held for alert in one.message.alerts}
    return sorted(alerts.values(), key=lambda alert: alert.status is not Status.FIRING)
