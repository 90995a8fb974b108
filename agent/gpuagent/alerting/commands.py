"""What people may do to alerts: silence, acknowledge, test a receiver, send again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpuagent.alerting.alerting import Alerting
from gpuagent.alerting.document import alerts_document, dead_document, silence_document
from gpuagent.core.clock import Clock
from gpuagent.core.matchers import parse_matcher
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.receivers.probe import probe
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_exporters.api.alert_routes import NotNow

Document = dict[str, Any]
T = TypeVar("T")


class AlertCommands:
    """The commands, each with its answer.

    ValueError and KeyError carry words for the person who asked; NotNow means that the store failed. What asks the
    store does so in a thread: a disk that is slow must not hold up the tick.
    """

    def __init__(self, alerting: Alerting, clock: Clock) -> None:
        self._alerting = alerting
        self._clock = clock

    async def alerts(self) -> Document:
        """What fires, and who is told."""
        async with self._alerting.lock:
            receivers = await asyncio.to_thread(self._alerting.receivers)
            return alerts_document(self._alerting, receivers, self._clock.now(), self._clock.wall())

    async def dead(self) -> Document:
        """What could not be delivered."""
        return await self._in_store(lambda: dead_document(self._alerting, self._clock.wall()))

    async def add_silence(self, matchers: Sequence[str], seconds: float, comment: str, creator: str) -> Document:
        """Say nothing of what matches, for a while. Raises ValueError."""
        parsed = [parse_matcher(text) for text in matchers]
        silences = self._alerting.silences
        async with self._alerting.lock:
            silence = await self._in_store(lambda: silences.add(parsed, seconds, comment=comment, creator=creator))
        return silence_document(self._alerting, silence, self._clock.wall())

    async def expire_silence(self, silence_id: str) -> Document:
        """End a silence. Raises KeyError."""
        async with self._alerting.lock:
            if all(silence.id != silence_id for silence in self._alerting.silences.all()):
                raise KeyError(f"there is no silence {silence_id}")
            silence = await self._in_store(lambda: self._alerting.silences.expire(silence_id))
        return silence_document(self._alerting, silence, self._clock.wall())

    async def acknowledge(self, which: str, comment: str, creator: str) -> list[str]:
        """Somebody is at it: no repeats. `which` is a fingerprint, the name of a rule, or the key of an incident.

        Returns the fingerprints, or the key. Raises KeyError if nothing of that fires, and ValueError.
        """
        async with self._alerting.lock:
            alerts = [alert for alert in self._alerting.firing() if which in (alert.fingerprint, alert.name)]
            incident = self._alerting.incidents.get(which)
            if incident is not None and incident.ends_at is None:
                acks, key = self._alerting.acks, incident.key
                await self._in_store(lambda: acks.add_incident(key, comment=comment, creator=creator))
                return [key]
            if not alerts:
                raise KeyError(f"no alert of this name or fingerprint is firing, and no incident of this key: {which}")
            return await self._in_store(lambda: self._acknowledge(alerts, comment, creator))

    async def unacknowledge(self, which: str) -> list[str]:
        """Nobody is at it any more: it is repeated again. `which` is a fingerprint, a rule's name or an incident's key.

        Returns the fingerprints. Raises KeyError if nothing of that is acknowledged.
        """
        acks = self._alerting.acks
        async with self._alerting.lock:
            found = [ack.fingerprint for ack in acks.all() if which in (ack.fingerprint, ack.alertname)]
            if not found:
                raise KeyError(f"no alert of this name or fingerprint is acknowledged: {which}")
            await self._in_store(lambda: [acks.remove(fingerprint) for fingerprint in found])
        return found

    def _acknowledge(self, alerts: Sequence[Alert], comment: str, creator: str) -> list[str]:
        return [self._alerting.acks.add(alert, comment=comment, creator=creator).fingerprint for alert in alerts]

    async def test_receiver(self, name: str) -> tuple[bool, str]:
        """Tell it now, past the outbox, of an alert and of its end.

        Returns whether it was taken, and the outcome in words. Raises KeyError if there is no such receiver, ValueError
        if it is sent nothing.
        """
        lane = self._alerting.delivery.lanes.get(name)
        if lane is None or not self._alerting.notifies:
            raise self._no_lane(name)
        outcome = await probe(lane.sender, self._alerting.place.context(self._clock.wall()))
        if outcome.ok:
            await self._in_store(lambda: self._alerting.delivery.switch_on(name))
        return outcome.ok, str(outcome)

    async def replay(self, letter_id: str | None) -> int:
        """Send dead letters again, one or all; returns how many. Raises KeyError if there is none of this id."""
        count = await self._in_store(lambda: self._alerting.outbox.replay(letter_id))
        if letter_id is not None and not count:
            raise KeyError(f"no message that could not be delivered has the id {letter_id}")
        return count

    def _no_lane(self, name: str) -> Exception:
        """Why nothing can be sent to a receiver."""
        config = self._alerting.config
        if all(receiver.name != name for receiver in config.receivers):
            return KeyError(f"there is no receiver {name}")
        if not self._alerting.notifies:
            return ValueError(f"alerting: {config.alerting} is configured, so this agent sends nothing")
        return ValueError(f"{name} is a heartbeat: it is called all the time, and takes no messages")

    async def _in_store(self, work: Callable[[], T]) -> T:
        """What fails in the file mostly works in memory, so it is tried twice. Raises NotNow."""
        try:
            return await asyncio.to_thread(self._alerting.store.insist, work)
        except StoreFailure as error:
            raise NotNow(f"it could not be kept: {error}") from None
