"""The moment that is decided on, and what a decision is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.incident import Incident
from gpuagent_alerts.incidents.record import Record
from gpuagent_alerts.outbox.entry import Occasion
from gpuagent_alerts.routing.route import Destination, Recipient
from gpuagent_alerts.routing.told import GroupKey, Told, ToldAlert

MAX_ALERTS = 100
"""In one message. What is new beyond that comes with the next one."""


@dataclass(frozen=True, slots=True)
class View:
    """The moment that is decided on."""

    now: float
    """Unix time."""
    firing: Mapping[str, Alert]
    """By fingerprint; all of them, silenced ones too."""
    ended: Mapping[str, Alert]
    """Those that ended lately."""
    destinations: Callable[[Mapping[str, str]], Sequence[Destination]]
    recipients: Mapping[str, Recipient]
    hushed: Callable[[Alert], bool]
    """Whether an alert is silenced or muted."""
    acknowledged: Collection[str]
    """Fingerprints of alerts, and keys of incidents, that are not repeated."""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """What tells this node's alerts from others'; added to each where it is not there."""
    pending: Collection[str] = frozenset()
    """Fingerprints of what is true and does not fire yet."""
    incidents: Mapping[str, Record] = field(default_factory=dict)
    """By key."""
    inhibited: Callable[[Alert], bool] = lambda _: False
    """Whether something worse of the same incident says what an alert says. An incident's own messages have both."""
    most_alerts: int = MAX_ALERTS
    closing: bool = False
    """Nothing more is told after this: no end waits for what flaps."""

    def has_ended(self, fingerprint: str) -> bool:
        """Whether an alert that was told is over.

        What fires becomes pending by a reload alone, which ends it first. One that is pending without an end lost its
        state in a restart, and is still true.
        """
        return fingerprint not in self.firing and (fingerprint not in self.pending or fingerprint in self.ended)

    def as_ended(self, fingerprint: str, told: Alert) -> Alert:
        """Return an alert that was told, and fires no more."""
        return as_ended(told, self.ended.get(fingerprint), self.now)

    def as_told(self, alert: Alert, known: ToldAlert | None = None) -> Alert:
        """Return an alert that fires as it is told: under the labels and with the beginning that were told before."""
        if known is not None and known.firing:
            return replace(known.alert, annotations=alert.annotations, value=alert.value, true_until=alert.true_until)
        return replace(alert, labels={**self.node_labels, **alert.labels})


@dataclass(frozen=True, slots=True)
class Telling:
    """What happens to one group: a message, unless `alerts` is empty, and what is known as told after it."""

    key: GroupKey
    told: Told | None
    alerts: tuple[Alert, ...] = ()
    group_labels: Mapping[str, str] = field(default_factory=dict)
    occasion: Occasion = Occasion.REPEAT
    news: tuple[str, ...] = ()
    """Fingerprints, as told, of alerts that the receiver has not heard of."""
    incident: Incident | None = None
    urgent: bool = False
    """Something critical begins, or something becomes critical: no cap on messages holds it back."""


def as_ended(told: Alert, ended: Alert | None, now: float) -> Alert:
    """An alert that was told and fires no more: as it was told, with its last annotations and its end."""
    ends_at = now if ended is None or ended.ends_at is None else ended.ends_at
    last = told if ended is None else ended
    return replace(
        told,
        status=Status.RESOLVED,
        annotations=last.annotations,
        ends_at=max(ends_at, told.starts_at),
        value=last.value,
        true_until=last.true_until,
        end_reason=last.end_reason,
    )
