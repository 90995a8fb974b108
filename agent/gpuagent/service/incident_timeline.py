"""What has happened in an incident, in its order: it began, became worse, was told, was acknowledged, ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.outbox.queue import Delivery
from gpuagent_alerts.notify.silences import Ack
from gpuagent_alerts.notify.urgency import severity_rank

Document = dict[str, Any]

MOST_EVENTS = 30
"""Of one incident; the first ones and the latest are kept."""
_KEEP_FIRST = 10
_FORMER_SECONDS = 1.0


class AlertTime(NamedTuple):
    """An alert of an incident, and since when it fires."""

    starts_at: float
    """Unix time."""
    name: str
    severity: str


def timeline(
    one: IncidentRecord,
    alerts: Iterable[AlertTime],
    deliveries: Iterable[Delivery],
    ack: Ack | None,
) -> list[Document]:
    """Return the events, JSON-ready, by time. `alerts` are those of the incident that fire now."""
    ended = (AlertTime(each.starts_at, each.name, each.labels.get("severity", "")) for each in one.ended.values())
    known = sorted(each for each in (*alerts, *ended) if each.starts_at >= one.starts_at - _FORMER_SECONDS)
    events = [_event(one.starts_at, "began", severity=known[0].severity if known else one.severity)]
    worst = severity_rank(known[0].severity) if known else 0
    for each in known[1:]:
        rank = severity_rank(each.severity)
        if rank > worst:
            events.append(_event(each.starts_at, "worsened", severity=each.severity, alert=each.name))
            worst = rank
    events += [
        _event(each.at, "told" if each.state == "sent" else each.state, receiver=each.receiver, reason=each.reason)
        for each in deliveries
        if each.at >= one.starts_at - _FORMER_SECONDS
    ]
    if ack is not None:
        events.append(_event(ack.created_at, "acknowledged", by=ack.creator))
    if one.ends_at is not None:
        events.append(_event(one.ends_at, "ended"))
    events.sort(key=lambda event: event["time_seconds"])
    if len(events) > MOST_EVENTS:
        events[_KEEP_FIRST : len(events) - (MOST_EVENTS - _KEEP_FIRST)] = []
    return events


def by_incident(
    deliveries: Iterable[Delivery], members: Mapping[str, Iterable[str]]
) -> Mapping[str, Sequence[Delivery]]:
    """Return the messages of each incident by its key; `members` are the fingerprints of each one's alerts.

    A route that groups by labels names no incident: its messages are those of the alerts that they tell of first.
    """
    owner = {name: key for key, names in members.items() for name in names}
    found: defaultdict[str, list[Delivery]] = defaultdict(list)
    for each in deliveries:
        keys = {each.incident} if each.incident else {owner[name] for name in each.news if name in owner}
        for key in keys:
            found[key].append(each)
    return found


def _event(at: float, event: str, **facts: str) -> Document:
    nothing = {"severity": "", "alert": "", "receiver": "", "reason": "", "by": ""}
    return {"time_seconds": at, "event": event, **nothing, **facts}
