"""What fires, who is told, and what could not be delivered: the document behind `gpuagent alerts`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuagent.alerting.alerting import Alerting
from gpuagent.alerting.explain import with_remedy
from gpuagent.core.matchers import MatchOperator
from gpuagent.core.metrics.alerting import ReceiverCounts
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.incidents.record import Record
from gpuagent_alerts.incidents.urgency import severity_rank
from gpuagent_alerts.outbox.entry import Queued
from gpuagent_alerts.routing.acks import Ack
from gpuagent_alerts.routing.inhibition import outranked_by
from gpuagent_alerts.routing.mute import muted_by
from gpuagent_alerts.routing.silences import INCIDENT_LABEL, Silence
from gpuagent_alerts.rules.faults import guess
from gpuagent_alerts.states.instance import Instance, State
from gpuagent_alerts.states.machine import AlertStates
from gpuagent_alerts.store.problem import StoreFailure

if TYPE_CHECKING:  # it loads the HTTP client, which a node without receivers need not have
    from gpuagent_alerts.receivers.heartbeat import Heartbeat

SCHEMA = 1

Document = dict[str, Any]


def alerts_document(
    alerting: Alerting, receivers: Sequence[ReceiverCounts], now_seconds: float, wall_seconds: float
) -> Document:
    """Everything, JSON-ready. `now_seconds` is CLOCK_BOOTTIME, `wall_seconds` Unix time."""
    muted = muted_by(alerting.firing())
    outranked = outranked_by(alerting.firing())
    acks = {ack.fingerprint: ack for ack in alerting.acks.all()}
    incidents = {fingerprint: one for one in alerting.incidents.values() for fingerprint in one.members}
    alerts = []
    for running in alerting.engine.rules():
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is State.INACTIVE:
                continue
            alert = instance.as_alert(Status.FIRING)
            alert = with_remedy(alert, alerting.remedy_of(alert))
            incident = incidents.get(alert.fingerprint)
            key = incident.key if incident is not None else ""
            ack = acks.get(alert.fingerprint) or acks.get(key)
            labels = {**alert.labels, INCIDENT_LABEL: key} if key else alert.labels
            alerts.append(
                _alert(instance, alert, now_seconds)
                | {
                    "fires_in_seconds": _fires_in(instance, running.states, now_seconds),
                    "incident": key,
                    "silenced_by": [silence.id for silence in alerting.silences.silencing(labels)],
                    "muted_by": muted(alert.labels) or outranked(alert.labels),
                    "acknowledged_by": ack.creator if ack else "",
                    "receivers": [one.recipient.name for one in alerting.routes.of(alert.labels)],
                }
            )
    return {
        "schema": SCHEMA,
        "time_seconds": wall_seconds,
        "simulated": alerting.place.simulated,
        "alerting": alerting.config.alerting,
        "alerts": sorted(alerts, key=lambda alert: (alert["state"] != "firing", alert["name"], alert["fingerprint"])),
        "incidents": incident_rows(alerting.incidents.values(), acks),
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


def incident_rows(incidents: Iterable[Record], acks: Mapping[str, Ack]) -> list[Document]:
    """Return the incidents, those that go on first and the worst of them at the top; then the latest to end."""
    rows = [
        {
            "key": one.key,
            "kind": str(one.kind),
            "labels": {name: value for name, value in one.labels.items() if value},
            "severity": one.severity,
            "starts_at_seconds": one.starts_at,
            "ends_at_seconds": one.ends_at,
            "reopened": one.reopened,
            "alerts": sorted(one.members),
            "acknowledged_by": acks[one.key].creator if one.key in acks else "",
        }
        for one in sorted(incidents, key=lambda one: (-severity_rank(one.severity), one.starts_at, one.key))
        if one.identities  # what was handed over to others is theirs to tell of
    ]
    return sorted(rows, key=lambda row: (row["ends_at_seconds"] is not None, -(row["ends_at_seconds"] or 0.0)))


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
    """What could not be delivered, oldest first. Raises StoreFailure."""
    letters = [_queued(letter) for letter in alerting.outbox.dead()]
    return {"schema": SCHEMA, "time_seconds": wall_seconds, "dead": letters}


def silence_document(alerting: Alerting, silence: Silence, wall_seconds: float) -> Document:
    """Return one silence, with a note where it names an alert that no rule has."""
    names = {running.rule.name for running in alerting.engine.rules()}
    wanted = [m.value for m in silence.matchers if m.name == "alertname" and m.op is MatchOperator.EQUAL]
    notes = [
        f"there is no rule {name}; {guess(name, names)}".removesuffix("; ") for name in wanted if name not in names
    ]
    return _silence(silence, wall_seconds) | {"note": "; ".join(notes)}


def _fires_in(instance: Instance, states: AlertStates | None, now_seconds: float) -> float | None:
    """How long a pending alert has still to be true; None for one that fires."""
    if states is None or instance.state is not State.PENDING:
        return None
    return max(0.0, instance.active_clock + states.rule.for_seconds - now_seconds)


def _alert(instance: Instance, alert: Alert, now_seconds: float) -> Document:
    return {
        "name": alert.name,
        "state": str(instance.state),
        "severity": alert.labels.get("severity", ""),
        "fingerprint": alert.fingerprint,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "value": alert.value if math.isfinite(alert.value) else None,
        "active_seconds": max(0.0, now_seconds - instance.active_clock),
        "starts_at_seconds": instance.starts_at,
    }


def _receivers(alerting: Alerting, receivers: Sequence[ReceiverCounts]) -> list[Document]:
    """Those that are configured, and those that are not any more but have something in the outbox."""
    kinds = {receiver.name: receiver.kind for receiver in alerting.config.receivers}
    lanes, off = alerting.delivery.lanes, alerting.delivery.off()
    found = []
    for counts in receivers:
        name = counts.receiver
        last = lanes[name].last if name in lanes else None
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


def _queued(letter: Queued) -> Document:
    return {
        "id": letter.message.id,
        "receiver": letter.message.receiver,
        "status": str(letter.message.status),
        "alerts": [alert.name for alert in letter.message.alerts],
        "created_seconds": letter.created,
        "attempts": letter.attempts,
        "error": letter.last_error,
    }
