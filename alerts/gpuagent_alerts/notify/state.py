"""What each receiver was told last, group by group, and what there is to decide on at one moment.

By this it may hear a resolve, and it is known since when a repeat is due.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpuagent_alerts.alert import Alert, Incident, Status, fingerprint, moved_alert
from gpuagent_alerts.notify.incident_record import IncidentRecord, end_within
from gpuagent_alerts.notify.outbox.entry import Occasion, dump_alert, load_alert
from gpuagent_alerts.notify.routes import Destination, Recipient
from gpuagent_alerts.notify.succession import Watch
from gpuagent_alerts.notify.urgency import Urgency, load_urgency
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.tables import (
    Column,
    Table,
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


class GroupKey(NamedTuple):
    """A group of alerts, as one receiver is told of it."""

    receiver: str
    group: str


@dataclass(frozen=True, slots=True)
class NotifiedAlert:
    """One alert, as it was told last."""

    alert: Alert
    lost: bool = False
    """The message that told of it had to be dropped: the receiver knows nothing of it."""
    ended_at: float | None = None
    """Unix time at which its end was first told; in an incident, at which it was noticed."""
    end_told: bool = False
    """In an incident: a message has told of its end. The incident's own end tells of it once more."""

    @property
    def firing(self) -> bool:
        """Whether the receiver takes it for firing."""
        return self.alert.status is Status.FIRING


@dataclass(frozen=True, slots=True)
class NotifiedIncident:
    """An incident, as it was told last."""

    key: str
    severity: str
    starts_at: float
    """Unix time."""
    urgency: Urgency
    """Urgency that a worsening has to rise above."""
    lowered_at: float | None = None
    """Unix time since which it is less urgent than that; None while it is not."""
    calm_at: float | None = None
    """Unix time since which its end could be told; None while it goes on."""
    restarts: int = 0
    """Restarts of its owner that the last message counted."""
    is_closed: bool = False
    """Its end was told. That is kept while alerts of it still fire, which say no more than that."""
    shown: Urgency | None = None
    """Urgency in the last message; None where an agent before this one has written it."""
    was_eased: bool = False
    """A message has told that it goes on, and is less severe than was told before."""


@dataclass(frozen=True, slots=True)
class NotificationState:
    """One group, as it was told last."""

    told_at: float
    """Unix time of the last message."""
    group_labels: Mapping[str, str] = field(default_factory=dict)
    alerts: Mapping[str, NotifiedAlert] = field(default_factory=dict)
    """By the fingerprint that the alert has on this node."""
    incident: NotifiedIncident | None = None
    """Incident that all of them belong to; None where a route groups by labels."""


def load_notification_states(store: Store, now: float) -> dict[GroupKey, NotificationState]:
    """Return everything that was told; nothing in the future, as the clock may have been set meanwhile."""
    return {key: _until(told, now) for key, told in store.load(TOLD)}


def save_notification_states(store: Store, changes: Mapping[GroupKey, NotificationState | None]) -> None:
    """Keep what was told; None: nothing of it matters any more. Raises StoreFailure."""
    with store.transaction():
        for key, told in changes.items():
            if told is None:
                store.execute("DELETE FROM told WHERE receiver = ? AND group_key = ?", key)
            else:
                dump = json.dumps(_dump(told), separators=(",", ":"))
                store.execute("INSERT OR REPLACE INTO told VALUES (?, ?, ?)", (*key, dump))


def _dump(told: NotificationState) -> dict[str, Any]:
    return {
        "told_at": max(told.told_at, 0.0),
        "group_labels": dict(told.group_labels),
        "alerts": {
            fingerprint: {
                "alert": dump_alert(one.alert),
                "lost": one.lost,
                "ended_at": one.ended_at,
                **({"end_told": True} if one.end_told else {}),
            }
            for fingerprint, one in told.alerts.items()
        },
        **({} if told.incident is None else {"incident": _dump_incident(told.incident)}),
    }


def _dump_incident(one: NotifiedIncident) -> dict[str, Any]:
    return {
        "key": one.key,
        "severity": one.severity,
        "starts_at": max(one.starts_at, 0.0),
        "urgency": list(one.urgency),
        "lowered_at": one.lowered_at,
        "calm_at": one.calm_at,
        "restarts": one.restarts,
        "is_closed": one.is_closed,
        **({} if one.shown is None else {"shown": list(one.shown)}),
        **({"was_eased": True} if one.was_eased else {}),
    }


def _load_incident(value: object) -> NotifiedIncident:
    found = document(value)
    return NotifiedIncident(
        word(member(found, "key")),
        text(member(found, "severity")),
        unix_time(member(found, "starts_at")),
        load_urgency(array(member(found, "urgency"))),
        unix_time_or_none(member(found, "lowered_at")),
        unix_time_or_none(member(found, "calm_at")),
        integer(found.get("restarts", 0)),
        flag(found.get("is_closed", False)),
        load_urgency(array(found["shown"])) if "shown" in found else None,
        flag(found.get("was_eased", False)),
    )


def _until(told: NotificationState, now: float) -> NotificationState:
    alerts = {
        fingerprint: one if one.ended_at is None else replace(one, ended_at=min(one.ended_at, now))
        for fingerprint, one in told.alerts.items()
    }
    return replace(told, told_at=min(told.told_at, now), alerts=alerts, incident=shift_times(told.incident, 0.0, now))


def shift_alert(one: NotifiedAlert, step: float) -> NotifiedAlert:
    """Return it with its times moved by a step of the wall clock."""
    ended_at = None if one.ended_at is None else max(one.ended_at + step, 0.0)
    return replace(one, alert=moved_alert(one.alert, step), ended_at=ended_at)


def shift_times(incident: NotifiedIncident | None, step: float, latest: float) -> NotifiedIncident | None:
    """Return it with its waits moved by a step of the wall clock; none began after `latest`."""
    if incident is None:
        return None
    lowered, calm = incident.lowered_at, incident.calm_at
    return replace(
        incident,
        starts_at=max(incident.starts_at + step, 0.0),
        lowered_at=None if lowered is None else min(max(lowered + step, 0.0), latest),
        calm_at=None if calm is None else min(max(calm + step, 0.0), latest),
    )


def _load(receiver: str, group: str, dump: str) -> tuple[GroupKey, NotificationState]:
    found = document(parsed(dump))
    alerts = {word(known_as): _alert(document(one)) for known_as, one in document(member(found, "alerts")).items()}
    incident = _load_incident(found["incident"]) if "incident" in found else None
    told = NotificationState(
        unix_time(member(found, "told_at")), texts(member(found, "group_labels")), alerts, incident
    )
    return GroupKey(receiver, group), told


def _alert(found: Mapping[str, Any]) -> NotifiedAlert:
    alert = load_alert(member(found, "alert"))
    ended_at = unix_time_or_none(member(found, "ended_at"))
    if (alert.status is Status.RESOLVED) != (ended_at is not None):
        raise ValueError("an alert that has ended and fires")
    return NotifiedAlert(alert, flag(member(found, "lost")), ended_at, flag(found.get("end_told", False)))


TOLD = Table(
    "told",
    ("receiver", "group_key"),
    {"receiver": Column(word), "group_key": Column(text, 2**16), "dump": Column(text, 16 * 2**20)},
    _load,
)


_EVIDENCE = "evidence"
"""How sure a rule is of one and the same thing, and so nothing that calls for a message of its own: a leak that comes
to meet a stricter standard is an update of what was told."""
_LONGEST_KEY = 400


@dataclass(slots=True)
class AlertGroup:
    """Alerts that fire, and that one receiver is told of together."""

    destination: Destination
    labels: Mapping[str, str]
    alerts: dict[str, Alert] = field(default_factory=dict)
    """By the fingerprint that the alert has on this node."""
    incident: IncidentRecord | None = None
    """Incident that all of them belong to; None where a route groups by labels, or a receiver takes them one by one."""
    waits_since: float = math.inf
    """Unix time since which an alert of it fires that a higher tier has inhibited; infinity for none."""


def alert_group(
    known_as: str, alert: Alert, destination: Destination, node: str, incident: IncidentRecord | None = None
) -> tuple[GroupKey, AlertGroup]:
    """Return the group of an alert with this fingerprint, empty.

    The node's labels are in its name: PagerDuty tells incidents apart by it, and hears from many nodes.
    """
    labels = alert.labels
    if destination.group_by:
        labels = {name: labels.get(name, "") for name in destination.group_by}
        name = f"{node}:{format_labels(labels)}"
    elif incident is not None and not destination.recipient.one_by_one:
        key = GroupKey(destination.recipient.name, _bounded(f"{node}:incident:{incident.key}"))
        return key, AlertGroup(destination, {}, incident=incident)
    elif _EVIDENCE in labels and not destination.recipient.one_by_one:
        labels = {name: value for name, value in labels.items() if name != _EVIDENCE}
        name = f"{node}:{alert.name}:{fingerprint(labels)}"
    else:
        name = f"{node}:{alert.name}:{known_as}"
    return GroupKey(destination.recipient.name, _bounded(name)), AlertGroup(destination, labels)


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels as Alertmanager writes those of a group."""
    return "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"


def _bounded(name: str) -> str:
    name = name.encode("utf-8", "replace").decode()
    return name if len(name) <= _LONGEST_KEY else f"{name[:_LONGEST_KEY]}…{fingerprint({'': name})}"


MAX_ALERTS = 100
"""Most alerts in one message. What is new beyond that comes with the next one."""


@dataclass(frozen=True, slots=True)
class NotificationInputs:
    """The moment that is decided on."""

    now: float
    """Unix time."""
    firing: Mapping[str, Alert]
    """All firing alerts by fingerprint, silenced ones too."""
    ended: Mapping[str, Alert]
    """Alerts that ended lately, by fingerprint."""
    destinations: Callable[[Mapping[str, str]], Sequence[Destination]]
    recipients: Mapping[str, Recipient]
    suppressed: Callable[[Alert, IncidentRecord | None], bool]
    """Test whether an alert is silenced or inhibited, as one of an incident, its own or one that shares it."""
    acknowledged: Collection[str]
    """Fingerprints of alerts, and keys of incidents, that are not repeated."""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that tell this node's alerts from others'; added to each where they are not there."""
    pending: Collection[str] = frozenset()
    """Fingerprints of what is true and does not fire yet."""
    incidents: Mapping[str, IncidentRecord] = field(default_factory=dict)
    """By key."""
    inhibited: Callable[[Alert], bool] = lambda _: False
    """Test whether something worse of the same incident says the same. An incident's own messages have both."""
    stirring: Mapping[str, Sequence[Alert]] = field(default_factory=dict)
    """Alerts that are about to fire, by the key of the incident that they belong to: it is not over."""
    grow_again: Mapping[str, Watch] = field(default_factory=dict)
    """What is seen to grow that was started in place of an incident's processes, by the key of the incident."""
    most_alerts: int = MAX_ALERTS
    closing: bool = False
    """Nothing more is told after this: no end waits for what flaps."""

    def has_ended(self, fingerprint: str) -> bool:
        """Return whether an alert that was told is over.

        What fires becomes pending by a reload alone, which ends it first. One that is pending without an end lost its
        state in a restart, and is still true.
        """
        return fingerprint not in self.firing and (fingerprint not in self.pending or fingerprint in self.ended)

    def as_ended(self, fingerprint: str, told: Alert) -> Alert:
        """Return an alert that was told, and fires no more, or is only kept while its incident is over."""
        return as_ended(told, self.ended.get(fingerprint) or self.firing.get(fingerprint), self.now)

    def end_within(self, record: IncidentRecord | None, fingerprint: str) -> Alert | None:
        """Return an alert as it ended in an incident; None where it did not, or that is not known."""
        return end_within(record, fingerprint, self.ended.get(fingerprint))

    def as_told(self, alert: Alert, known: NotifiedAlert | None = None) -> Alert:
        """Return an alert that fires as it is told: under the labels and with the beginning that were told before."""
        if known is not None and known.firing:
            told = known.alert
            return replace(alert, labels=told.labels, starts_at=told.starts_at, true_from=told.true_from)
        return replace(alert, labels={**self.node_labels, **alert.labels})


@dataclass(frozen=True, slots=True)
class NotificationDecision:
    """Decision about one group: a message, unless `alerts` is empty, and what is known as told after it."""

    key: GroupKey
    told: NotificationState | None
    alerts: tuple[Alert, ...] = ()
    group_labels: Mapping[str, str] = field(default_factory=dict)
    occasion: Occasion = Occasion.REPEAT
    news: tuple[str, ...] = ()
    """Fingerprints, as told, of alerts that the receiver has not heard of."""
    incident: Incident | None = None
    urgent: bool = False
    """Something critical begins, or something becomes critical: no cap on messages holds it back."""
    tells_more: bool = False
    """It begins nothing, and says what no message before it has said: a cap may hold it back, and not drop it."""


def as_ended(told: Alert, ended: Alert | None, now: float) -> Alert:
    """Return an alert that no longer fires: as it was told, with its last annotations and its end."""
    ends_at = now if ended is None or ended.ends_at is None else ended.ends_at
    last = told if ended is None else ended
    return replace(
        told,
        status=Status.RESOLVED,
        annotations=last.annotations,
        ends_at=max(ends_at, told.starts_at),
        value=last.value,
        true_until=last.true_until,
        kept_until=None,
        end_reason=last.end_reason,
        end_is_certain=last.end_is_certain,
    )
