"""What each receiver was told last: of what it may hear a resolve, and since when a repeat is due."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.incidents.urgency import Urgency
from gpuagent_alerts.outbox.body import dump_alert, load_alert
from gpuagent_alerts.store.checks import (
    array,
    document,
    flag,
    integer,
    member,
    parsed,
    text,
    texts,
    unix_time,
    unix_time_or_none,
    word,
)
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.rows import Column, Table


class GroupKey(NamedTuple):
    """A group of alerts, as one receiver is told of it."""

    receiver: str
    group: str


@dataclass(frozen=True, slots=True)
class ToldAlert:
    """One alert, as it was told last."""

    alert: Alert
    lost: bool = False
    """The message that told of it had to be dropped: the receiver knows nothing of it."""
    ended_at: float | None = None
    """Unix time at which its end was first told; in an incident, at which it was noticed, and is yet to be told."""

    @property
    def firing(self) -> bool:
        """Whether the receiver takes it for firing."""
        return self.alert.status is Status.FIRING


@dataclass(frozen=True, slots=True)
class ToldIncident:
    """An incident, as it was told last."""

    key: str
    severity: str
    starts_at: float
    """Unix time."""
    urgency: Urgency
    """What a worsening has to rise above."""
    lowered_at: float | None = None
    """Unix time since which it is less urgent than that; None while it is not."""
    calm_at: float | None = None
    """Unix time since which nothing of it fires; None while something does."""


@dataclass(frozen=True, slots=True)
class Told:
    """One group, as it was told last."""

    told_at: float
    """Unix time of the last message."""
    group_labels: Mapping[str, str] = field(default_factory=dict)
    alerts: Mapping[str, ToldAlert] = field(default_factory=dict)
    """By the fingerprint that the alert has on this node."""
    incident: ToldIncident | None = None
    """What all of them belong to; None where a route groups by labels."""


def load_told(store: Store, now: float) -> dict[GroupKey, Told]:
    """Everything that was told; nothing in the future, as the clock may have been set meanwhile."""
    return {key: _until(told, now) for key, told in store.load(TOLD)}


def save_told(store: Store, changes: Mapping[GroupKey, Told | None]) -> None:
    """Keep what was told; None: nothing of it matters any more. Raises StoreFailure."""
    with store.transaction():
        for key, told in changes.items():
            if told is None:
                store.execute("DELETE FROM told WHERE receiver = ? AND group_key = ?", key)
            else:
                dump = json.dumps(_dump(told), separators=(",", ":"))
                store.execute("INSERT OR REPLACE INTO told VALUES (?, ?, ?)", (*key, dump))


def _dump(told: Told) -> dict[str, Any]:
    return {
        "told_at": max(told.told_at, 0.0),
        "group_labels": dict(told.group_labels),
        "alerts": {
            fingerprint: {"alert": dump_alert(one.alert), "lost": one.lost, "ended_at": one.ended_at}
            for fingerprint, one in told.alerts.items()
        },
        **({} if told.incident is None else {"incident": _dump_incident(told.incident)}),
    }


def _dump_incident(one: ToldIncident) -> dict[str, Any]:
    return {
        "key": one.key,
        "severity": one.severity,
        "starts_at": max(one.starts_at, 0.0),
        "urgency": list(one.urgency),
        "lowered_at": one.lowered_at,
        "calm_at": one.calm_at,
    }


def _load_incident(value: object) -> ToldIncident:
    found = document(value)
    severity, stage = array(member(found, "urgency"))
    return ToldIncident(
        word(member(found, "key")),
        text(member(found, "severity")),
        unix_time(member(found, "starts_at")),
        Urgency(integer(severity, -1, 100), integer(stage, -1, 100)),
        unix_time_or_none(member(found, "lowered_at")),
        unix_time_or_none(member(found, "calm_at")),
    )


def _until(told: Told, now: float) -> Told:
    alerts = {
        fingerprint: one if one.ended_at is None else replace(one, ended_at=min(one.ended_at, now))
        for fingerprint, one in told.alerts.items()
    }
    return replace(told, told_at=min(told.told_at, now), alerts=alerts, incident=moved(told.incident, 0.0, now))


def moved(incident: ToldIncident | None, step: float, latest: float) -> ToldIncident | None:
    """Return it with its waits moved by a step of the wall clock; none began after `latest`."""
    if incident is None:
        return None
    lowered, calm = incident.lowered_at, incident.calm_at
    return replace(
        incident,
        lowered_at=None if lowered is None else min(max(lowered + step, 0.0), latest),
        calm_at=None if calm is None else min(max(calm + step, 0.0), latest),
    )


def _load(receiver: str, group: str, dump: str) -> tuple[GroupKey, Told]:
    found = document(parsed(dump))
    alerts = {word(known_as): _alert(document(one)) for known_as, one in document(member(found, "alerts")).items()}
    incident = _load_incident(found["incident"]) if "incident" in found else None
    told = Told(unix_time(member(found, "told_at")), texts(member(found, "group_labels")), alerts, incident)
    return GroupKey(receiver, group), told


def _alert(found: Mapping[str, Any]) -> ToldAlert:
    alert = load_alert(member(found, "alert"))
    ended_at = unix_time_or_none(member(found, "ended_at"))
    if (alert.status is Status.RESOLVED) != (ended_at is not None):
        raise ValueError("an alert that has ended and fires")
    return ToldAlert(alert, flag(member(found, "lost")), ended_at)


TOLD = Table(
    "told",
    ("receiver", "group_key"),
    {"receiver": Column(word), "group_key": Column(text, 2**16), "dump": Column(text, 16 * 2**20)},
    _load,
)
