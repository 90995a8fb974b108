"""A cap on how many messages a receiver gets in an hour; what is too much is held back, and told of in a digest.

What is critical and begins, or becomes critical, goes out in any case, and never waits for a warning.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpuagent.core.clock import Clock
from gpuagent_alerts.outbox.entry import Entry, Loss
from gpuagent_alerts.outbox.holding import HeldBack, Holding, fits
from gpuagent_alerts.outbox.ids import message_id
from gpuagent_alerts.outbox.queue import Outbox
from gpuagent_alerts.routing.route import Recipient
from gpuagent_alerts.store.database import Store

_HOUR_SECONDS = 3600.0


class Offer(NamedTuple):
    """A message that is to be sent."""

    entry: Entry
    urgent: bool
    """No cap holds it back."""


class MessageLimiter:
    """Between what is to be told and the outbox. Its calls raise StoreFailure."""

    def __init__(self, store: Store, outbox: Outbox, clock: Clock, node: str) -> None:
        self._store = store
        self._outbox = outbox
        self._clock = clock
        self._digest_group = f"{node}:digest"
        self._holding = Holding(store)
        self._sent: defaultdict[str, deque[float]] = defaultdict(deque)
        now, wall = clock.now(), clock.wall()
        nothing: list[tuple[Any, ...]] = []
        rows = store.at_start(
            lambda: store.execute(
                "SELECT receiver, created FROM outbox"
                " WHERE state IN ('queued', 'sent', 'dead') AND created > ? ORDER BY created",
                (wall - _HOUR_SECONDS,),
            ),
            nothing,
        )
        for receiver, created in rows:
            self._sent[receiver].append(now - max(wall - created, 0.0))

    @property
    def digest_group(self) -> str:
        """Name of the group that digests are messages of."""
        return self._digest_group

    def held_back(self) -> list[HeldBack]:
        """Return what is held back, by receiver."""
        return self._holding.summary()

    def send(self, offers: Sequence[Offer], recipients: Mapping[str, Recipient]) -> list[Loss]:
        """Put messages into the outbox, or hold them back; tell of those that were held back, where there is room.

        It is a part of the transaction under way. Returns what had to be dropped to make room in the outbox.
        """
        held = self._holding.receivers()
        losses: list[Loss] = []
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
    ) -> list[Loss]:
        if recipient is None or recipient.max_messages_per_hour is None:
            if has_held:  # it has no cap any more, or is no receiver any more
                self._release(name, math.inf)
            return self._enqueue(name, [offer.entry for offer in offers])
        urgent = [offer.entry for offer in offers if offer.urgent]
        normal = [offer.entry for offer in offers if not offer.urgent]
        room = max(recipient.max_messages_per_hour - len(self._recent(name)) - len(urgent), 0)
        if has_held:
            now = self._clock.wall()
            urgent = [self._holding.fold(entry, now) for entry in urgent]
        if has_held and self._holding.is_digest_queued(name, self._digest_group):
            room = 0
        if not has_held and len(normal) <= room:
            return self._enqueue(name, [*urgent, *normal])
        # The last place of the hour is the digest's.
        alone = normal[: max(room - 1, 0)] if recipient.digests and not has_held else []
        losses = self._enqueue(name, [*urgent, *alone])
        losses += self._hold(name, normal[len(alone) :])
        left = room - len(alone)
        if left > 0:
            losses += self._tell_of_held(recipient, left)
        return losses

    def _tell_of_held(self, recipient: Recipient, room: int) -> list[Loss]:
        held = fits(self._holding.waiting(recipient.name))
        if not recipient.digests or len(held) == 1:
            self._release(recipient.name, room)
            return []
        if not held:
            return []
        now = self._clock.wall()
        entry = self._holding.digest(held, group=self._digest_group, name=message_id(now), now=now)
        return self._enqueue(recipient.name, [entry])

    def _enqueue(self, name: str, entries: Sequence[Entry]) -> list[Loss]:
        if entries:
            self._note(name, len(entries))
        return self._outbox.enqueue(entries)

    def _hold(self, name: str, entries: Sequence[Entry]) -> list[Loss]:
        self._outbox.count_held(name, len(entries))
        return self._outbox.enqueue([replace(entry, held=True) for entry in entries])

    def _release(self, name: str, most: float) -> None:
        waiting = self._holding.waiting(name)
        chosen = [one for place, one in enumerate(waiting) if place < most]
        self._holding.release(chosen, self._clock.wall())
        self._note(name, len(chosen))
        self._store.after_commit(lambda: self._outbox.on_queued({name}))

    def _note(self, name: str, count: int) -> None:
        now = self._clock.now()
        self._store.after_commit(lambda: self._sent[name].extend([now] * count))

    def _recent(self, name: str) -> deque[float]:
        """Return when it was sent messages within the last hour, as it was on the monotonic clock."""
        sent, now = self._sent[name], self._clock.now()
        while sent and now - sent[0] >= _HOUR_SECONDS:
            sent.popleft()
        return sent
