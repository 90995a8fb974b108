"""What people may do to alerts - silence, acknowledge, test a receiver, send again - and the document they look at.

The document is the one behind `gpuagent alerts`: what fires, who is told, and what could not be delivered.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from gpuagent.core.clock import Clock
from gpuagent.core.displaced import displaced_gpu, name_displaced
from gpuagent.core.matchers import Matchers, MatchOperator, parse_matchers
from gpuagent.core.metrics.alerting import ENDING, ReceiverCounts
from gpuagent.core.units import format_duration
from gpuagent.service.alerting import Alerting
from gpuagent.service.incident_timeline import AlertTime, by_incident, timeline
from gpuagent_alerts.alert import SUMMARY, Alert, News, Status, resolved_summary
from gpuagent_alerts.messages.briefing_inputs import why_not_measured
from gpuagent_alerts.messages.snapshot_inputs import unmeasured_seconds, with_place, with_remedy
from gpuagent_alerts.notify.incident_record import IncidentRecord, incident_of
from gpuagent_alerts.notify.incidents import REOPEN_SECONDS
from gpuagent_alerts.notify.inhibition import inhibited_by_loss, inhibited_by_tier
from gpuagent_alerts.notify.outbox.entry import QueuedMessage
from gpuagent_alerts.notify.outbox.queue import Delivery
from gpuagent_alerts.notify.receivers.base import send_test_message
from gpuagent_alerts.notify.silenced import silences_of
from gpuagent_alerts.notify.silences import INCIDENT_LABEL, Ack, Silence
from gpuagent_alerts.notify.urgency import severity_rank
from gpuagent_alerts.rules.alert_labels import matcher_note
from gpuagent_alerts.rules.model import suggest
from gpuagent_alerts.states.instance import Instance, State
from gpuagent_alerts.states.machine import AlertStates
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_exporters.api.alert_routes import NotNow

if TYPE_CHECKING:  # it loads the HTTP client, which a node without receivers need not have
    from gpuagent_alerts.notify.receivers.heartbeat import Heartbeat

Document = dict[str, Any]
T = TypeVar("T")
_REOPENS = format_duration(REOPEN_SECONDS)


class AlertCommands:
    """The commands, each with its answer.

    ValueError and KeyError carry words for the person who asked; NotNow means that the store failed. What asks the
    store does so in a thread: a disk that is slow must not hold up the tick.
    """

    def __init__(self, alerting: Alerting, clock: Clock) -> None:
        self._alerting = alerting
        self._clock = clock

    async def alerts(self) -> Document:
        """Return what fires, and who is told."""
        async with self._alerting.lock:
            receivers = await asyncio.to_thread(self._alerting.receivers)
            told = await asyncio.to_thread(self._alerting.deliveries)
            return alerts_document(self._alerting, receivers, self._clock.now(), self._clock.wall(), told)

    async def dead(self) -> Document:
        """Return what could not be delivered."""
        return await self._in_store(lambda: dead_document(self._alerting, self._clock.wall()))

    async def add_silence(self, matchers: Sequence[str], seconds: float, comment: str, creator: str) -> Document:
        """Silence what matches for a while. Raises ValueError."""
        parsed = [matcher for text in matchers for matcher in parse_matchers(text)]
        alerting = self._alerting
        async with alerting.lock:
            silence = await self._in_store(
                lambda: alerting.silences.add(parsed, seconds, comment=comment, creator=creator)
            )
            found = silence_document(alerting, silence, self._clock.wall())
            return found | {"note": found["note"] or note_of_silence(alerting, silence)}

    async def expire_silence(self, silence_id: str) -> Document:
        """End a silence. Raises KeyError."""
        async with self._alerting.lock:
            if all(silence.id != silence_id for silence in self._alerting.silences.all()):
                raise KeyError(f"there is no silence {silence_id}")
            silence = await self._in_store(lambda: self._alerting.silences.expire(silence_id))
        return silence_document(self._alerting, silence, self._clock.wall())

    async def acknowledge(self, which: str, comment: str, creator: str) -> list[str]:
        """Stop repeats of an alert. `which` is a fingerprint, the name of a rule, or the key of an incident.

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
                text = f"no alert of this name or fingerprint is firing, and no incident of this key: {which}"
                raise KeyError("; ".join(part for part in (text, self._meant(which)) if part))
            return await self._in_store(lambda: self._acknowledge(alerts, comment, creator))

    def _meant(self, which: str) -> str:
        """Return a question that names what was probably meant, of all that can be acknowledged now; "" if nothing."""
        going_on = (key for key, one in self._alerting.incidents.items() if one.ends_at is None)
        firing = (text for alert in self._alerting.firing() for text in (alert.name, alert.fingerprint))
        return suggest(which, dict.fromkeys((*firing, *going_on)))

    async def unacknowledge(self, which: str) -> list[str]:
        """Resume repeats. `which` is a fingerprint, the name of a rule, or the key of an incident.

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
        worker = self._alerting.delivery.workers.get(name)
        if worker is None or not self._alerting.notifies:
            raise self._not_configured(name)
        outcome = await send_test_message(worker.sender, self._alerting.origin.context(self._clock.wall()))
        if outcome.ok:
            await self._in_store(lambda: self._alerting.delivery.switch_on(name))
        return outcome.ok, str(outcome)

    async def replay(self, letter_id: str | None) -> int:
        """Send dead letters again, one or all; returns how many. Raises KeyError if there is none of this id."""
        count = await self._in_store(lambda: self._alerting.outbox.replay(letter_id))
        if letter_id is not None and not count:
            raise KeyError(f"no message that could not be delivered has the id {letter_id}")
        return count

    def _not_configured(self, name: str) -> Exception:
        """Return why nothing can be sent to a receiver."""
        config = self._alerting.config
        if all(receiver.name != name for receiver in config.receivers):
            return KeyError(f"there is no receiver {name}")
        if not self._alerting.notifies:
            return ValueError(f"alerting: {config.alerting} is configured, so this agent sends nothing")
        return ValueError(f"{name} is a heartbeat: it is called all the time, and takes no messages")

    async def _in_store(self, work: Callable[[], T]) -> T:
        """Repeat it if the store failed: what fails in the file mostly works in memory. Raises NotNow."""
        try:
            return await asyncio.to_thread(self._alerting.store.insist, work)
        except StoreFailure as error:
            raise NotNow(f"it could not be kept: {error}") from None


SCHEMA = 1
_STATES = ("firing", ENDING, "pending")
"""In the order in which they are listed."""


def alerts_document(
    alerting: Alerting,
    receivers: Sequence[ReceiverCounts],
    now_seconds: float,
    wall_seconds: float,
    deliveries: Sequence[Delivery] = (),
) -> Document:
    """Return everything, JSON-ready. `now_seconds` is CLOCK_BOOTTIME, `wall_seconds` Unix time."""
    by_loss = inhibited_by_loss(alerting.firing())
    by_tier = inhibited_by_tier(alerting.firing())
    acks = {ack.fingerprint: ack for ack in alerting.acks.all()}
    incidents = {fingerprint: one for one in alerting.incidents.values() for fingerprint in one.members}
    snapshot = alerting.briefings.snapshot
    alerts = []
    for running in alerting.engine.rules():
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is State.INACTIVE:
                continue
            alert = alerting.endings.with_reason(instance.as_alert(Status.FIRING))
            alert = with_place(with_remedy(alert, alerting.remedy_of(alert)), snapshot)
            incident = incidents.get(alert.fingerprint)
            key = incident.key if incident is not None else ""
            ack = acks.get(alert.fingerprint) or acks.get(key)
            alerts.append(
                _alert(instance, alert, now_seconds, wall_seconds)
                | {
                    "fires_in_seconds": _fires_in(instance, running.states, now_seconds),
                    "place": name_displaced(gpu) if (gpu := displaced_gpu(alert.labels, snapshot)) else "",
                    "as_of_seconds": wall_seconds - unmeasured_seconds(instance, snapshot) if instance.frozen else None,
                    "incident": key,
                    "silenced_by": [one.id for one in silences_of(alerting.silences, alert.labels, incident)],
                    "muted_by": by_loss(alert.labels) or by_tier(alert.labels),
                    "acknowledged_by": ack.creator if ack else "",
                    "receivers": [one.recipient.name for one in alerting.routes.of(alert.labels) if alerting.notifies],
                }
            )
    return {
        "schema": SCHEMA,
        "time_seconds": wall_seconds,
        "simulated": alerting.origin.simulated,
        "not_measured": why_not_measured(snapshot),
        "alerting": alerting.config.alerting,
        "alerts": sorted(alerts, key=lambda one: (_STATES.index(one["state"]), one["name"], one["fingerprint"])),
        "incidents": incident_rows(
            alerting.incidents.values(),
            acks,
            {one["fingerprint"] for one in alerts if one["state"] == "firing"},
            partial(headline_of_record, alerting),
            _timelines(alerting.incidents, alerts, deliveries, acks),
            {each.key: each.is_pending for each in alerting.waiting() if not each.is_ending},
            alerting.silenced_incidents(),
        ),
        "silences": [silence_document(alerting, silence, wall_seconds) for silence in alerting.silences.all()],
        "receivers": _receivers(alerting, receivers),
        "held_back": _held_back(alerting),
        "heartbeats": [_heartbeat(beat) for beat in alerting.heartbeats],
        "rules": sum(1 for _ in alerting.engine.rules()),
        "failing_rules": [
            {"group": running.key.group, "rule": running.key.rule, "error": running.last_error}
            for running in alerting.engine.rules()
            if running.last_error
        ],
        "store_problem": alerting.store.problem_text,
    }


def headline_of_record(alerting: Alerting, one: IncidentRecord) -> str:
    """Return an incident in one line: of one that goes on, as a message would tell it now; "" if nothing is known."""
    if one.ends_at is not None:
        return one.headline
    firing = [alert for alert in alerting.firing() if alert.fingerprint in one.members]
    keeping = [alert for alert in firing if one.members[alert.fingerprint]]  # what a remedy did is not what goes on
    if not any(alert.holds for alert in keeping):
        waiting = next((each for each in alerting.waiting() if each.key == one.key), None)
        if waiting is not None and (not waiting.is_ending or not keeping):
            return waiting.headline
    if not firing:
        return ""
    return alerting.briefings.headline(incident_of(one, News.BEGAN), firing)


PENDING_SEVERITY = "info"
"""Severity of an incident of which an alert is about to fire, and no other is true: as in the problems of the node."""


def incident_rows(
    incidents: Collection[IncidentRecord],
    acks: Mapping[str, Ack],
    present: Collection[str],
    headline_of: Callable[[IncidentRecord], str],
    timelines: Mapping[str, list[Document]] = MappingProxyType({}),
    held: Mapping[str, bool] = MappingProxyType({}),
    silenced: Collection[str] = (),
) -> list[Document]:
    """Return the incidents, those that go on first and the worst of them at the top; then the latest to end.

    `present` are fingerprints of alerts whose conditions are true now, `held` are keys of incidents that go on without
    one, as what was restarted may grow again, or as one is about to fire: of such a one the value is true, and it has
    the severity of what is pending, none yet. What a remedy did keeps none open. `silenced` are keys of those that are
    silenced as a whole.
    """
    severities = {one.key: PENDING_SEVERITY if held.get(one.key) else one.severity for one in incidents}
    rows = [
        {
            "key": one.key,
            "kind": str(one.kind),
            "headline": headline_of(one),
            "labels": {name: value for name, value in one.labels.items() if value},
            "severity": severities[one.key],
            "starts_at_seconds": one.starts_at,
            "ends_at_seconds": one.ends_at,
            "ending": one.ends_at is None
            and one.key not in held
            and not any(name in present for name, keeps in one.members.items() if keeps),
            "silenced": one.key in silenced,
            "reopened": one.reopened,
            "alerts": sorted(one.members),
            "acknowledged_by": acks[one.key].creator if one.key in acks else "",
            "timeline": timelines.get(one.key, []),
        }
        for one in sorted(incidents, key=lambda one: (-severity_rank(severities[one.key]), one.starts_at, one.key))
    ]
    return sorted(rows, key=lambda row: (row["ends_at_seconds"] is not None, -(row["ends_at_seconds"] or 0.0)))


def _timelines(
    incidents: Mapping[str, IncidentRecord],
    alerts: Sequence[Document],
    deliveries: Sequence[Delivery],
    acks: Mapping[str, Ack],
) -> dict[str, list[Document]]:
    told = by_incident(deliveries, {key: (*one.members, *one.left) for key, one in incidents.items()})
    own: defaultdict[str, list[AlertTime]] = defaultdict(list)
    for each in alerts:
        if each["incident"] and each["starts_at_seconds"] is not None:
            own[each["incident"]].append(AlertTime(each["starts_at_seconds"], each["name"], each["severity"]))
    return {key: timeline(one, own[key], told.get(key, ()), acks.get(key)) for key, one in incidents.items()}


def _held_back(alerting: Alerting) -> list[Document]:
    try:
        found = alerting.held_back()
    except StoreFailure:
        return []
    return [
        {"receiver": one.receiver, "messages": one.messages, "since_seconds": one.since, "alerts": list(one.alerts)}
        for one in found
    ]


def dead_document(alerting: Alerting, wall_seconds: float) -> Document:
    """Return what could not be delivered, oldest first. Raises StoreFailure."""
    letters = [_queued(letter) for letter in alerting.outbox.dead()]
    return {"schema": SCHEMA, "time_seconds": wall_seconds, "dead": letters}


def silence_document(alerting: Alerting, silence: Silence, wall_seconds: float) -> Document:
    """Return one silence, with a note where it names an alert that no rule has."""
    notes = [
        note
        for matcher in silence.matchers
        if (note := matcher_note(matcher, alerting.alert_labels, further=(INCIDENT_LABEL, *alerting.node_labels)))
    ]
    return _silence(silence, wall_seconds) | {"note": "; ".join(notes)}


def note_of_silence(alerting: Alerting, silence: Silence) -> str:
    """Return what a person should know who has just added this: that it silences nothing now; "" if it does."""
    keys = [m.value for m in silence.matchers if m.name == INCIDENT_LABEL and m.op is MatchOperator.EQUAL]
    for key in keys:
        incident = alerting.incidents.get(key)
        if incident is None:
            return f"there is no incident {key}: `gpuagent alerts` shows the keys"
        if incident.ends_at is not None:
            return f"the incident {key} has ended; this silences it if it begins again within {_REOPENS}"
    keys_of = {fingerprint: one.key for one in alerting.incidents.values() for fingerprint in one.members}
    matches = Matchers(silence.matchers)
    for running in alerting.engine.rules():
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is not State.INACTIVE:
                labels = instance.as_alert(Status.FIRING).labels
                if matches({**labels, INCIDENT_LABEL: keys_of.get(instance.fingerprint, "")}):
                    return ""
    return "it matches no alert that is firing or pending now"


def _fires_in(instance: Instance, states: AlertStates | None, now_seconds: float) -> float | None:
    """Return how long a pending alert has still to be true; None for one that fires."""
    if states is None or instance.state is not State.PENDING:
        return None
    return max(0.0, instance.active_clock + states.rule.for_seconds - now_seconds)


def _alert(instance: Instance, alert: Alert, now_seconds: float, wall_seconds: float) -> Document:
    # `for` counts measured time alone. Since when it fires is told as of its incident: what was true before the agent
    # was blind, and is true after it, has lasted.
    measured = now_seconds - instance.active_clock
    active = (
        measured if instance.state is State.PENDING or instance.began_at is None else wall_seconds - alert.begins_at
    )
    return {
        "name": alert.name,
        "state": ENDING if instance.is_kept else str(instance.state),
        "severity": alert.labels.get("severity", ""),
        "fingerprint": alert.fingerprint,
        "labels": dict(alert.labels),
        "annotations": {**alert.annotations, **({SUMMARY: resolved_summary(alert)} if alert.is_kept else {})},
        "value": alert.value if math.isfinite(alert.value) else None,
        "active_seconds": max(0.0, active),
        "starts_at_seconds": instance.starts_at,
        "not_true_since_seconds": instance.ceased_at if instance.is_kept else None,
        "kept_until_seconds": alert.kept_until,
        "end_reason": alert.end_reason,
    }


def _receivers(alerting: Alerting, receivers: Sequence[ReceiverCounts]) -> list[Document]:
    """Return those that are configured, and those that are not any more but have something in the outbox."""
    kinds = {receiver.name: receiver.kind for receiver in alerting.config.receivers}
    workers, off = alerting.delivery.workers, alerting.delivery.off()
    found = []
    for counts in receivers:
        name = counts.receiver
        last = workers[name].last if name in workers else None
        found.append(
            counts._asdict()
            | {
                "kind": kinds.get(name, ""),
                "last": "" if last is None else str(last),
                "off": str(off[name].outcome) if name in off else "",
                "off_since_seconds": off[name].since if name in off else None,
            }
        )
    return found


def _heartbeat(beat: Heartbeat) -> Document:
    return {
        "receiver": beat.name,
        "interval_seconds": beat.interval_seconds,
        "sent": beat.sent,
        "failed": beat.failed,
        "last": "" if beat.last is None else str(beat.last),
    }


def _silence(silence: Silence, wall_seconds: float) -> Document:
    return {
        "id": silence.id,
        "matchers": [str(matcher) for matcher in silence.matchers],
        "state": str(silence.state(wall_seconds)),
        "starts_at_seconds": silence.starts_at,
        "ends_at_seconds": silence.ends_at,
        "comment": silence.comment,
        "creator": silence.creator,
    }


def _queued(letter: QueuedMessage) -> Document:
    return {
        "id": letter.message.id,
        "receiver": letter.message.receiver,
        "status": str(letter.message.status),
        "alerts": [alert.name for alert in letter.message.alerts],
        "created_seconds": letter.created,
        "attempts": letter.attempts,
        "error": letter.last_error,
    }
