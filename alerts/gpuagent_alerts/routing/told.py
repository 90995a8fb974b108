"""What each receiver was told last: of what it may hear a resolve, and since when a repeat is due."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.outbox.body import dump_alert, load_alert
from gpuagent_alerts.store.checks import document, flag, member, parsed, text, texts, unix_time, unix_time_or_none, word
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
    """Unix time at which its end was first told."""

    @property
    def firing(self) -> bool:
        """Whether the receiver takes it for firing."""
        return self.alert.status is Status.FIRING


@dataclass(frozen=True, slots=True)
class Told:
    """One group, as it was told last."""

    told_at: float
    """Unix time of the last message."""
    group_labels: Mapping[str, str] = field(default_factory=dict)
    alerts: Mapping[str, ToldAlert] = field(default_factory=dict)
    """By the fingerprint that the alert has on this node."""


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
    }


def _until(told: Told, now: float) -> Told:
    alerts = {
        fingerprint: one if one.ended_at is None else replace(one, ended_at=min(one.ended_at, now))
        for fingerprint, one in told.alerts.items()
    }
    return replace(told, told_at=min(told.told_at, now), alerts=alerts)


def _load(receiver: str, group: str, dump: str) -> tuple[GroupKey, Told]:
    found = document(parsed(dump))
    alerts = {word(known_as): _alert(document(one)) for known_as, one in document(member(found, "alerts")).items()}
    told = Told(unix_time(member(found, "told_at")), texts(member(found, "group_labels")), alerts)
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
