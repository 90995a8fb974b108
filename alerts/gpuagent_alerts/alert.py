"""An alert and a message about it: the vocabulary of everything between a rule and a receiver."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent_alerts.incident import Incident


class Status(StrEnum):
    """What a receiver is told of an alert."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """One instance of a rule, as it is told. Its identity is its label set, `alertname` included."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    status: Status
    starts_at: float
    """Unix time at which it began to fire."""
    ends_at: float | None = None
    """Unix time at which it ended; None while it fires."""
    value: float = field(default=float("nan"))
    """Of the expression, when it was last true."""
    true_from: float | None = None
    """Unix time at which the condition began to hold, before `for` had passed; None if that is not known."""
    true_until: float | None = None
    """Unix time at which the condition ceased to hold, before `keep_firing_for` had passed; None while it holds."""
    end_reason: str = ""
    """Why it ended, in the past tense; "" while it fires, and where nothing is known."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stand for the label set, the same over restarts."""
        return fingerprint(self.labels)

    @property
    def name(self) -> str:
        """The rule's."""
        return self.labels.get("alertname", "")


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent to one receiver: alerts that belong together, some firing and some resolved.

    `id` stays the same over every attempt, so that a receiver can tell a repeat. Messages of one `group` arrive in
    order.
    """

    id: str
    receiver: str
    group: str
    alerts: tuple[Alert, ...]
    group_labels: Mapping[str, str] = field(default_factory=dict)
    incident: Incident | None = None
    """What all its alerts belong to; None where a route groups by labels."""

    @property
    def status(self) -> Status:
        """Firing while one of its alerts is."""
        return Status.FIRING if any(alert.status is Status.FIRING for alert in self.alerts) else Status.RESOLVED


def fingerprint(labels: Mapping[str, str]) -> str:
    """16 hex digits that stand for a label set."""
    return hashlib.sha256(_canonical(labels.items()).encode("utf-8", "replace")).hexdigest()[:16]


def _canonical(items: Iterable[tuple[str, str]]) -> str:
    return "\xff".join(f"{name}\xfe{value}" for name, value in sorted(items))
