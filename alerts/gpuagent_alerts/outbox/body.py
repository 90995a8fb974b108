"""A message as the JSON text that is kept until it is sent."""

from __future__ import annotations

import json
import math
from typing import Any

from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.outbox.incident_body import dump_incident, load_incident
from gpuagent_alerts.store.checks import (
    array,
    document,
    labels,
    measured,
    member,
    parsed,
    texts,
    unix_time,
    unix_time_or_none,
    word,
)
from gpuagent_alerts.store.checks import text as checked_text


def dump_message(message: Message) -> str:
    """As text; NaN and the infinities included, which JSON does not know."""
    return _json(
        {
            "group_labels": dict(message.group_labels),
            "alerts": [dump_alert(alert) for alert in message.alerts],
            **({} if message.incident is None else {"incident": dump_incident(message.incident)}),
        }
    )


def load_message(text: str, *, message_id: str, receiver: str, group: str) -> Message:
    """Read it back. Raises ValueError for what is no message, and RecursionError."""
    found = document(parsed(text))
    alerts = tuple(load_alert(alert) for alert in array(member(found, "alerts")))
    incident = load_incident(found["incident"]) if "incident" in found else None
    return Message(message_id, receiver, group, alerts, texts(member(found, "group_labels")), incident)


def dump_alert(alert: Alert) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "status": str(alert.status),
        "starts_at": alert.starts_at,
        "ends_at": alert.ends_at,
        "value": alert.value if math.isfinite(alert.value) else str(alert.value),
        "true_from": alert.true_from,
        "true_until": alert.true_until,
        "end_reason": alert.end_reason,
    }


def load_alert(value: object) -> Alert:
    """Read it back. Raises ValueError for what is no alert."""
    found = document(value)
    return Alert(
        labels=labels(member(found, "labels")),
        annotations=texts(member(found, "annotations")),
        status=Status(word(member(found, "status"))),
        starts_at=unix_time(member(found, "starts_at")),
        ends_at=unix_time_or_none(member(found, "ends_at")),
        value=measured(member(found, "value")),
        # Older versions wrote none of these.
        true_from=unix_time_or_none(found.get("true_from")),
        true_until=unix_time_or_none(found.get("true_until")),
        end_reason=checked_text(found.get("end_reason", "")),
    )


def _json(document: object) -> str:
    # Only ASCII: SQLite and sockets refuse half of a surrogate pair, which a process may have in its name.
    return json.dumps(document, allow_nan=False, separators=(",", ":"))
