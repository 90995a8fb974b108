"""The outbox: queue messages, hand them to the delivery workers, keep dead letters, and count what became of them."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Message, News
from gpuagent_alerts.notify.outbox.attempt import LATE_SECONDS, DeliveryOutcome, WallSteps, wait_seconds
from gpuagent_alerts.notify.outbox.entry import (
    OUTBOX,
    DroppedMessage,
    MessageState,
    Occasion,
    OutboxEntry,
    QueuedMessage,
    dump_message,
    message_id,
    set_damaged_aside,
)
from gpuagent_alerts.notify.outbox.eviction import OutboxBounds, evict
from gpuagent_alerts.store.cached_query import CachedQuery
from gpuagent_alerts.store.database import Store


@dataclass(slots=True)
class DeliveryCounters:
    """Counters of one receiver; they only grow."""

    sent: int = 0
    failed: int = 0
    """Attempts, not messages."""
    dead: int = 0
    dropped: int = 0
    merged: int = 0
    """Repeats that a newer message of their group replaced before they were sent."""
    held: int = 0
    """Held back, as the receiver had had enough for an hour."""


@dataclass(frozen=True, slots=True)
class DeliveryFigures:
    """Figures of one receiver at a moment."""

    receiver: str
    queued: int = 0
    dead: int = 0
    """Kept now; the counter says how many there ever were."""
    oldest_undelivered_seconds: float | None = None
    """Age of the oldest message that is queued; None if there is none."""
    counters: DeliveryCounters = field(default_factory=DeliveryCounters)


_HEADS = "SELECT min(seq) FROM outbox WHERE state = 'queued' AND receiver = ? GROUP BY group_key"
_WAITING = (
    "SELECT receiver, sum(state = 'queued'), sum(state = 'dead'),"
    " min(CASE WHEN state = 'queued' THEN created END) FROM outbox GROUP BY receiver"
)
_DELIVERIES = (
    "SELECT receiver, group_key, reason, news, state, ifnull(done_at, created) FROM outbox"
    " WHERE state IN ('queued', 'sent', 'dead') ORDER BY seq DESC LIMIT 500"
)
_INCIDENT = ":incident:"
_NO_RECEIVER = "there is no receiver of this name any more"
_OVER = "it was over before it could be told: its end tells both"
_SUPERSEDED = "a newer message of its group was delivered"


class Delivery(NamedTuple):
    """A message, and what became of it."""

    receiver: str
    incident: str
    """Key of the incident that its group is; "" of another group."""
    reason: str
    news: tuple[str, ...]
    """Fingerprints of the alerts that it told of first."""
    state: str
    """`queued`, `sent` or `dead`."""
    at: float
    """Unix time at which it was delivered or given up; of one that waits, at which it was written."""


class Outbox:
    """All receivers' messages. Its calls are short and may come from any thread; they raise StoreFailure."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        bounds: OutboxBounds | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._clock = clock
        self._bounds = bounds or OutboxBounds()
        self._uniform = uniform
        self._steps = WallSteps(clock)
        self._lock = threading.Lock()
        self._in_flight: set[int] = set()
        self._waiting = CachedQuery(store, lambda: store.execute(_WAITING))
        self._deliveries = CachedQuery(store, lambda: [_delivery(*row) for row in store.execute(_DELIVERIES)])
        self._counters: defaultdict[str, DeliveryCounters] = defaultdict(DeliveryCounters)
        self.on_queued: Callable[[Collection[str]], None] = lambda _: None
        """Called with the names of receivers that have something new, once it is kept."""
        nothing: frozenset[tuple[str, str]] = frozenset()
        self.lost = store.at_start(lambda: set_damaged_aside(store), nothing)
        """Receiver and group of messages that waited and could not be read at the start."""
        store.at_start(self._clamp, None)

    # ---- in ----------------------------------------------------------------------------------------------

    def enqueue(self, entries: Sequence[OutboxEntry]) -> list[DroppedMessage]:
        """Put messages in, as part of the transaction under way if there is one.

        Queued repeats of their groups are merged into them. Returns what had to be dropped to make room.
        """
        if not entries:
            return []
        with self._store.transaction():
            self._follow_clock()
            merged = {key: self._merge(*key) for key in {(e.message.receiver, e.message.group) for e in entries}}
            for entry in entries:
                self._insert(entry, merged[entry.message.receiver, entry.message.group])
            losses = evict(self._store, self._bounds, self._flying())
            self._count(dropped=Counter(loss.receiver for loss in losses))
            receivers = {entry.message.receiver for entry in entries}
            self._store.after_commit(lambda: self.on_queued(receivers))
        return losses

    def _merge(self, receiver: str, group: str) -> tuple[int, float, float] | None:
        """Take queued repeats out; returns attempts, next_at and wait of the last one."""
        rows = self._store.execute(
            "DELETE FROM outbox WHERE state = 'queued' AND receiver = ? AND group_key = ? AND reason = 'repeat'"
            " RETURNING attempts, next_at, wait",
            (receiver, group),
        )
        self._count(merged=Counter({receiver: len(rows)}))
        return (rows[-1][0], rows[-1][1], rows[-1][2]) if rows else None

    def _insert(self, entry: OutboxEntry, before: tuple[int, float, float] | None) -> None:
        now = self._clock.wall()
        # A repeat of a repeat goes on with its back-off; what is new is tried at once.
        attempts, next_at, wait = before if before and entry.occasion is Occasion.REPEAT else (0, now, 0.0)
        message, body = entry.message, dump_message(replace(entry.message, written_at=now))
        name = self._free_id(message, now)
        if name is None:
            return
        self._store.execute(
            "INSERT INTO outbox (id, receiver, group_key, reason, news, body, bytes, created, attempts, next_at, wait,"
            " state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(name, message.receiver, message.group, entry.occasion, json.dumps(entry.news)),
                *(
                    body,
                    len(body),
                    now,
                    attempts,
                    next_at,
                    wait,
                    MessageState.HELD if entry.held else MessageState.QUEUED,
                ),
            ),
        )

    def _free_id(self, message: Message, now: float) -> str | None:
        """Return the id under which a message is put in; None where it waits already.

        What is told again, as nobody knows any more that it was told, has the id that it had. Where something else of
        its group was told since, it is news, and no repeat.
        """
        if not self._store.execute("SELECT 1 FROM outbox WHERE id = ?", (message.id,)):
            return message.id
        ((last, state),) = self._store.execute(
            "SELECT id, state FROM outbox WHERE receiver = ? AND group_key = ? ORDER BY seq DESC LIMIT 1",
            (message.receiver, message.group),
        ) or (("", ""),)
        if last != message.id:
            return message_id(now)
        if state in {MessageState.QUEUED, MessageState.HELD}:
            return None
        self._store.execute("DELETE FROM outbox WHERE id = ?", (message.id,))
        return message.id

    # ---- out ---------------------------------------------------------------------------------------------

    def take_due(self, receiver: str, count: int = 1) -> list[QueuedMessage]:
        """Return what to send now: of each group the oldest, if its time has come. They are in flight until settled."""
        with self._store.transaction():
            self._follow_clock()
            taken = self._store.read(
                OUTBOX,
                f"WHERE seq IN ({_HEADS}) AND next_at <= ? ORDER BY seq LIMIT ?",
                (receiver, self._clock.wall(), count),
            )
            taken = [self._if_over(entry) for entry in taken]
        with self._lock:
            self._in_flight.update(entry.seq for entry in taken)
        return taken

    def _if_over(self, entry: QueuedMessage) -> QueuedMessage:
        """Return the end of an incident in place of a late beginning, where that waits too: one message tells both."""
        message = entry.message
        if message.incident is None or message.incident.is_over or self._clock.wall() - entry.created <= LATE_SECONDS:
            return entry
        later = self._store.read(
            OUTBOX,
            "WHERE state = 'queued' AND receiver = ? AND group_key = ? AND seq >= ? ORDER BY seq",
            (message.receiver, message.group, entry.seq),
        )
        last = later[-1] if later else entry
        if last.message.incident is None or not last.message.incident.is_over:
            return entry
        self._store.execute(
            "UPDATE outbox SET state = 'dropped', body = '', bytes = 0, last_error = ?"
            " WHERE state = 'queued' AND receiver = ? AND group_key = ? AND seq >= ? AND seq < ?",
            (_OVER, message.receiver, message.group, entry.seq, last.seq),
        )
        self._count(merged=Counter({message.receiver: len(later) - 1}))
        both = replace(last.message, tells_beginning=message.incident.news is News.BEGAN)
        body = dump_message(both)
        self._store.execute("UPDATE outbox SET body = ?, bytes = ? WHERE seq = ?", (body, len(body), last.seq))
        return replace(last, message=both)

    def seconds_until_due(self, receiver: str) -> float | None:
        """Return when the next message can be tried; None if there is none."""
        with self._store.transaction():
            self._follow_clock()
            ((next_at,),) = self._store.execute(
                f"SELECT min(next_at) FROM outbox WHERE seq IN ({_HEADS})",  # noqa: S608
                (receiver,),
            )
        return None if next_at is None else max(0.0, next_at - self._clock.wall())

    def record_outcome(self, taken: Sequence[QueuedMessage], outcome: DeliveryOutcome) -> float:
        """Note what came of an attempt to send these; returns the seconds for which the whole receiver has to wait."""
        pause = 0.0
        with self._store.transaction():
            self._follow_clock()
            for entry in taken:
                if outcome.ok:
                    self._sent(entry)
                elif outcome.retry or outcome.switch_off:
                    pause = max(pause, self._again(entry, outcome))
                else:
                    self._refused(entry, outcome)
            if not outcome.ok and taken:
                self._count(failed=Counter({taken[0].message.receiver: 1}))
        self.release(taken)
        return pause

    def release(self, taken: Sequence[QueuedMessage]) -> None:
        """Mark them as no longer in flight, whatever came of it."""
        with self._lock:
            self._in_flight.difference_update(entry.seq for entry in taken)

    def _sent(self, entry: QueuedMessage) -> None:
        message = entry.message
        self._store.execute(
            "UPDATE outbox SET state = 'sent', attempts = attempts + 1, body = '', bytes = 0, last_error = '',"
            " done_at = ? WHERE seq = ?",
            (self._clock.wall(), entry.seq),
        )
        # To replay what came before would tell of a past state as if it were the present one.
        self._store.execute(
            "UPDATE outbox SET state = 'dropped', body = '', bytes = 0, last_error = ?"
            " WHERE state = 'dead' AND receiver = ? AND group_key = ? AND seq < ?",
            (_SUPERSEDED, message.receiver, message.group, entry.seq),
        )
        self._count(sent=Counter({message.receiver: 1}))

    def _again(self, entry: QueuedMessage, outcome: DeliveryOutcome) -> float:
        now = self._clock.wall()
        wait = wait_seconds(entry.attempts + 1, outcome, self._uniform)
        self._store.execute(
            "UPDATE outbox SET attempts = attempts + 1, next_at = ?, wait = ?, last_error = ?"
            " WHERE seq = ? AND state = 'queued'",
            (now + wait, wait, str(outcome), entry.seq),
        )
        if not outcome.pause:
            return 0.0
        self._store.execute(
            "UPDATE outbox SET next_at = ?, wait = ? WHERE state = 'queued' AND receiver = ? AND next_at < ?",
            (now + wait, wait, entry.message.receiver, now + wait),
        )
        return wait

    # ---- dead letters ------------------------------------------------------------------------------------

    def dead(self, receiver: str | None = None) -> list[QueuedMessage]:
        """Return what could not be delivered, oldest first."""
        rest = "WHERE state = 'dead' AND receiver = ifnull(?, receiver) ORDER BY seq"
        return self._store.read(OUTBOX, rest, (receiver,))

    def replay(self, letter_id: str | None = None) -> int:
        """Queue a dead letter again, or all of them, in their old places; returns how many."""
        now = self._clock.wall()
        with self._store.transaction():
            rows = self._store.execute(
                "UPDATE outbox SET state = 'queued', attempts = 0, created = ?, next_at = ?, wait = 0, done_at = NULL"
                " WHERE state = 'dead' AND id = ifnull(?, id) RETURNING receiver",
                (now, now, letter_id),
            )
            receivers = {receiver for (receiver,) in rows}
            self._store.after_commit(lambda: self.on_queued(receivers))
        return len(rows)

    def expire(self, receiver: str, max_age_seconds: float) -> None:
        """Give up what has waited for longer than this, or was held back for as long."""
        oldest = self._clock.wall() - max_age_seconds
        reason = f"not delivered within {max_age_seconds / 3600:.0f} h"
        with self._store.transaction():
            self._follow_clock()
            self._bury("receiver = ? AND created < ?", (receiver, oldest), reason)

    def retain(self, receivers: Collection[str]) -> None:
        """Give up what is for a receiver that there is no more."""
        with self._store.transaction():
            rows = self._store.execute("SELECT DISTINCT receiver FROM outbox WHERE state = 'queued'")
            for (receiver,) in rows:
                if receiver not in receivers:
                    self._bury("receiver = ?", (receiver,), _NO_RECEIVER)

    def prune(self) -> None:
        """Forget the oldest of what was sent, dropped or given up, above the bounds."""
        bounds = self._bounds
        delete = (
            "DELETE FROM outbox WHERE seq IN (SELECT seq FROM outbox WHERE {} ORDER BY seq DESC LIMIT -1 OFFSET ?)"
            " RETURNING receiver"
        )
        with self._store.transaction():
            self._store.execute(delete.format("state IN ('sent', 'dropped')"), (bounds.history,))
            rows = self._store.execute(delete.format("state = 'dead'"), (bounds.dead,))
            self._count(dropped=Counter(receiver for (receiver,) in rows))

    def _refused(self, entry: QueuedMessage, outcome: DeliveryOutcome) -> None:
        self._store.execute("UPDATE outbox SET attempts = attempts + 1, last_error = '' WHERE seq = ?", (entry.seq,))
        self._bury("seq = ?", (entry.seq,), str(outcome))

    def _bury(self, which: str, values: tuple[str | int | float, ...], why: str) -> None:
        rows = self._store.execute(
            "UPDATE outbox SET state = 'dead', done_at = ?,"  # noqa: S608
            # What made the last attempt fail says more than that time is up.
            " last_error = ? || CASE last_error WHEN '' THEN '' ELSE ': ' || last_error END"
            f" WHERE state IN ('queued', 'held') AND {which} RETURNING receiver",
            (self._clock.wall(), why, *values),
        )
        self._count(dead=Counter(receiver for (receiver,) in rows))

    # ---- figures -----------------------------------------------------------------------------------------

    def figures(self) -> dict[str, DeliveryFigures]:
        """Return figures by receiver, of every one that ever had a message since the start or has one now."""
        now = self._clock.wall()
        found = {
            receiver: DeliveryFigures(
                receiver, queued, dead, None if oldest is None else max(0.0, now - oldest), self.counters(receiver)
            )
            for receiver, queued, dead, oldest in self._waiting.get()
        }
        return {name: DeliveryFigures(name, counters=counters) for name, counters in self._counters.items()} | found

    def deliveries(self) -> Sequence[Delivery]:
        """Return the latest messages, the newest first, with what became of them. Raises StoreFailure."""
        return self._deliveries.get()

    def counters(self, receiver: str) -> DeliveryCounters:
        """Return what was counted since the start."""
        return self._counters[receiver]

    def count_held(self, receiver: str, number: int) -> None:
        """Count messages that are held back in the transaction under way."""
        self._count(held=Counter({receiver: number}))

    def _count(self, **kinds: Counter[str]) -> None:
        """Count once the transaction is kept."""

        def count() -> None:
            with self._lock:
                for kind, receivers in kinds.items():
                    for receiver, number in receivers.items():
                        counters = self._counters[receiver]
                        setattr(counters, kind, getattr(counters, kind) + number)

        self._store.after_commit(count)

    # ---- time --------------------------------------------------------------------------------------------

    def _follow_clock(self) -> None:
        """Let the times of what is queued go along when the wall clock was set."""
        step = self._steps.step()
        if step:
            self._store.execute(
                "UPDATE outbox SET created = max(created + ?, 0), next_at = max(next_at + ?, 0)"
                " WHERE state IN ('queued', 'held')",
                (step, step),
            )

    def _clamp(self) -> None:
        """Bound times, as the clock may have been set meanwhile: nothing is younger than now, no wait has grown."""
        now = self._clock.wall()
        self._store.execute(
            "UPDATE outbox SET created = min(created, ?), next_at = min(next_at, ? + wait)"
            " WHERE state IN ('queued', 'held')",
            (now, now),
        )

    def _flying(self) -> Collection[int]:
        with self._lock:
            return frozenset(self._in_flight)


def _delivery(receiver: str, group: str, reason: str, news: str, state: str, at: float) -> Delivery:
    try:
        found = tuple(str(one) for one in json.loads(news))
    except (ValueError, TypeError):
        found = ()
    key = str(group).rpartition(_INCIDENT)[2] if _INCIDENT in str(group) else ""
    return Delivery(str(receiver), key, str(reason), found, str(state), float(at))
