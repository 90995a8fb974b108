"""Evict messages when the outbox is full: repeats first, then what began to fire, last what ended.

A receiver must not hear of an end without a beginning, nor of a beginning whose end was dropped. So with a message that
told of a new alert, the end of that alert goes too, if it is queued; unless the receiver may have got the message.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from gpuagent_alerts.alert import Status
from gpuagent_alerts.notify.outbox.entry import OUTBOX, DroppedMessage, Occasion, QueuedMessage, dump_message
from gpuagent_alerts.store.database import Store

_DROP = "UPDATE outbox SET state = 'dropped', body = '', bytes = 0, last_error = ? WHERE seq = ?"
_NO_ROOM = "the outbox was full"


@dataclass(frozen=True, slots=True)
class OutboxBounds:
    """Bounds of what is kept."""

    rows: int = 10_000
    """Messages that wait."""
    size_bytes: int = 32 * 2**20
    """Size of their bodies in all."""
    dead: int = 1000
    """Dead letters."""
    history: int = 1000
    """Messages that were sent or dropped; without their bodies."""


@dataclass(slots=True)
class _Excess:
    rows: int
    size_bytes: int

    def __bool__(self) -> bool:
        return self.rows > 0 or self.size_bytes > 0


def evict(store: Store, bounds: OutboxBounds, in_flight: Collection[int]) -> list[DroppedMessage]:
    """Drop what is too much, inside of the transaction under way. What is being sent just now is left alone."""
    ((rows, size_bytes),) = store.execute("SELECT count(*), ifnull(sum(bytes), 0) FROM outbox WHERE state = 'queued'")
    excess = _Excess(rows - bounds.rows, size_bytes - bounds.size_bytes)
    losses: list[DroppedMessage] = []
    for occasion in Occasion:
        if excess:
            for seq in _oldest(store, occasion, in_flight):
                losses += _drop(store, seq, excess)
                if not excess:
                    break
    return losses


def _oldest(store: Store, occasion: Occasion, in_flight: Collection[int]) -> Iterator[int]:
    rows = store.execute("SELECT seq FROM outbox WHERE state = 'queued' AND reason = ? ORDER BY seq", (occasion,))
    return (seq for (seq,) in rows if seq not in in_flight)


def _drop(store: Store, seq: int, excess: _Excess) -> Iterator[DroppedMessage]:
    found = store.read(OUTBOX, "WHERE seq = ? AND state = 'queued'", (seq,))
    if not found:
        return  # it went with another one
    (dropped,) = found
    receiver, group = dropped.message.receiver, dropped.message.group
    _discard(store, seq, dropped.size_bytes, excess)
    untold: list[str] = []
    for fingerprint in dropped.news if dropped.attempts == 0 else ():
        heir = _Heir.find(store, receiver, group, seq, fingerprint)
        if heir is None:
            untold.append(fingerprint)
        elif heir.status is Status.FIRING:
            heir.mark_first(store, fingerprint)
        elif heir.without(store, fingerprint, excess):
            yield DroppedMessage(receiver, group)
    yield DroppedMessage(receiver, group, tuple(untold))


def _discard(store: Store, seq: int, size_bytes: int, excess: _Excess) -> None:
    store.execute(_DROP, (_NO_ROOM, seq))
    excess.rows -= 1
    excess.size_bytes -= size_bytes


@dataclass(frozen=True, slots=True)
class _Heir:
    """The next queued message that speaks of an alert."""

    queued: QueuedMessage
    status: Status

    @classmethod
    def find(cls, store: Store, receiver: str, group: str, seq: int, fingerprint: str) -> _Heir | None:
        later = store.read(
            OUTBOX, "WHERE state = 'queued' AND receiver = ? AND group_key = ? AND seq > ? ORDER BY seq",
            (receiver, group, seq),
        )  # fmt: skip
        for queued in later:
            for alert in queued.message.alerts:
                if alert.fingerprint == fingerprint:
                    return cls(queued, alert.status)
        return None

    def mark_first(self, store: Store, fingerprint: str) -> None:
        """Mark it as the first message to tell of the alert."""
        occasion = self.queued.occasion
        reason = Occasion.FIRING if occasion is Occasion.REPEAT else occasion
        told = json.dumps([*self.queued.news, fingerprint])
        store.execute("UPDATE outbox SET news = ?, reason = ? WHERE seq = ?", (told, reason, self.queued.seq))

    def without(self, store: Store, fingerprint: str, excess: _Excess) -> bool:
        """Take the alert out of it; returns whether nothing is left and it was dropped."""
        alerts = tuple(alert for alert in self.queued.message.alerts if alert.fingerprint != fingerprint)
        if not alerts:
            _discard(store, self.queued.seq, self.queued.size_bytes, excess)
            return True
        body = dump_message(replace(self.queued.message, alerts=alerts))
        ends = any(alert.status is Status.RESOLVED for alert in alerts)
        store.execute(
            "UPDATE outbox SET body = ?, bytes = ?, reason = CASE WHEN ? THEN reason ELSE 'firing' END WHERE seq = ?",
            (body, len(body), ends, self.queued.seq),
        )
        excess.size_bytes -= self.queued.size_bytes - len(body)
        return False
