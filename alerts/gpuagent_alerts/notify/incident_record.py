"""One incident of this node as it is kept: what it is about, its alerts, and its life so far."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.alert import Alert, CauseKind, Incident, News, moved_alert
from gpuagent_alerts.notify.outbox.entry import dump_alert, load_alert
from gpuagent_alerts.notify.succession import Restarts, dump_restarts, find_process, load_restarts
from gpuagent_alerts.notify.urgency import CALM, Urgency, load_urgency
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


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """One incident."""

    key: str
    kind: CauseKind
    identities: tuple[str, ...]
    """Identities by which later alerts find it; see `cause`."""
    labels: Mapping[str, str]
    starts_at: float
    """Unix time at which the first of its conditions began to hold; of one that began again, since its last end."""
    ends_at: float | None = None
    """Unix time at which the last of its conditions ceased to hold; None while it goes on."""
    members: Mapping[str, bool] = field(default_factory=dict)
    """Fingerprints of its alerts that fire or are kept; whether each keeps it open."""
    severity: str = ""
    """The worst of what is true of it; while nothing is, the worst that it had last."""
    gravest: str = ""
    """Fingerprint of the worst of its alerts while something was true: nothing being true, it lasts as long as this."""
    worst: Urgency = CALM
    shared: tuple[str, ...] = field(default=(), compare=False)
    """Fingerprints of true alerts of other incidents that are about the memory in which its processes grow too: it is
    as severe as they are. Never written down, as each update finds them anew."""
    rises: bool = field(default=False, compare=False)
    """Whether a critical alert of it is about to fire, and none does. Never written down."""
    left: tuple[str, ...] = field(default=(), compare=False)
    """Fingerprints of its alerts that have ended while it went on; after its end of all. That one has left is alone no
    change to write down."""
    ended: Mapping[str, Alert] = field(default_factory=dict, compare=False)
    """Those of them that are remembered: its end names them, also after a restart of the agent."""
    reasons: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """What became of a process, by fingerprint of alerts that are only kept, and whether that is certain: an agent that
    is started meanwhile has not seen it."""
    grew_on: tuple[str, ...] = ()
    """UUIDs of the GPUs on which its processes have grown, with alerts about them or without."""
    grew_together: int = 0
    """Most of its processes that grew at one time, with alerts about them or without."""
    reopened: int = 0
    """Number of times it began again."""
    headline: str = ""
    """What happened and why it is over, in one line; only of one that has ended."""
    restarts: Restarts = field(default_factory=Restarts)
    """How often the owner of its processes was restarted since it began."""
    ceased_at: float | None = None
    """Unix time at which the last condition ceased to hold, while a restart holds its end back; else None."""


def process_of(records: Mapping[str, IncidentRecord], pid: int) -> ProcessId | None:
    """Return the process that an incident which goes on knows by its pid; None if there is none."""
    found = (find_process(one.identities, pid) for one in records.values() if one.ends_at is None)
    return next((one for one in found if one is not None), None)


def subject_of_alert(records: Mapping[str, IncidentRecord], fingerprint: str) -> tuple[str, ProcessId] | None:
    """Return name and identity of the one process that the incident of an alert is about; None of others."""
    record = next((one for one in records.values() if one.ends_at is None and fingerprint in one.members), None)
    pid = "" if record is None else record.labels.get("pid", "")
    if record is None or not pid.isdecimal():
        return None
    found = find_process(record.identities, int(pid))
    return None if found is None else (record.labels.get("process", "a process"), found)


def are_processes_gone(records: Mapping[str, IncidentRecord], fingerprint: str, running: Collection[str]) -> bool:
    """Return whether the incident of an alert knows processes, and none of them is among those that run.

    `running` are identities as in `process:` ones.
    """
    record = next((one for one in records.values() if one.ends_at is None and fingerprint in one.members), None)
    own = () if record is None else [one for one in record.identities if one.startswith("process:")]
    return bool(own) and not any(one.removeprefix("process:") in running for one in own)


def name_of_owner(records: Mapping[str, IncidentRecord], fingerprint: str) -> str:
    """Return the incident that an alert belongs to, in words: its process where it is about one, and its key."""
    found = next((one for one in records.values() if fingerprint in one.members), None)
    if found is None:
        return ""
    name, pid = found.labels.get("process", ""), found.labels.get("pid", "")
    who = f"{name} (pid {pid}), " if name and pid else ""
    return f"{who}{found.key}"


def kept_reason(records: Mapping[str, IncidentRecord], fingerprint: str) -> tuple[str, bool] | None:
    """Return what was seen to become of the process of an alert that is only kept, and whether that is certain."""
    found = (one.reasons.get(fingerprint) for one in records.values() if fingerprint in one.members)
    return next((one for one in found if one is not None), None)


def incident_of(record: IncidentRecord, news: News) -> Incident:
    """Return a record as it is told of."""
    labels = {name: value for name, value in record.labels.items() if value}
    return Incident(
        record.key, record.kind, labels, record.severity, record.starts_at, record.ends_at, news,
        restarts=record.restarts.count, restarted_pids=record.restarts.pids,
        flat_seconds=record.restarts.flat_seconds, grows_by=record.restarts.grows_by,
        grew_on=record.grew_on, grew_together=record.grew_together, last_run=record.restarts.last_run,
    )  # fmt: skip


_SAME_START_SECONDS = 1.0
"""The start of an alert may have moved by so much with the wall clock."""


def end_within(
    record: IncidentRecord | None, name: str, ended: Alert | None, *, was_member: bool = False
) -> Alert | None:
    """Return the end of an alert of an incident, by the alert's fingerprint; None where it is not known.

    `ended` is the alert as it ended last, which may have been in another incident: a GPU has one alert, whoever fills
    it. `was_member` says that it fired in this one until now.
    """
    if record is None:
        return ended
    known = record.ended.get(name)
    if ended is None or known is None:
        is_of_later = ended is not None and record.ends_at is not None and ended.begins_at > record.ends_at
        return known if ended is None or (is_of_later and not was_member) else ended
    is_same = was_member or abs(ended.starts_at - known.starts_at) < _SAME_START_SECONDS
    return ended if is_same else known


def moved_record(one: IncidentRecord, step: float) -> IncidentRecord:
    """Return a record whose times have moved by so many seconds, none before 1970."""

    def moved(time: float | None) -> float | None:
        return None if time is None else max(time + step, 0.0)

    restarts = replace(one.restarts, since=moved(one.restarts.since), unread_since=moved(one.restarts.unread_since))
    return replace(
        one,
        starts_at=max(one.starts_at + step, 0.0),
        ends_at=moved(one.ends_at),
        ceased_at=moved(one.ceased_at),
        restarts=restarts,
        ended={name: moved_alert(alert, step) for name, alert in one.ended.items()},
    )


def save_records(store: Store, before: Mapping[str, IncidentRecord], after: Mapping[str, IncidentRecord]) -> None:
    """Keep exactly these. Raises StoreFailure."""
    gone = [(key,) for key in before if key not in after]
    changed = [(key, json.dumps(_dump(one), separators=(",", ":"))) for key, one in after.items()
               if before.get(key) != one]  # fmt: skip
    if gone or changed:
        with store.transaction():
            store.execute_many("DELETE FROM incidents WHERE incident_key = ?", gone)
            store.execute_many("INSERT OR REPLACE INTO incidents VALUES (?, ?)", changed)


def load_records(store: Store, now: float) -> dict[str, IncidentRecord]:
    """Return every incident that is kept; none ended in the future, as the clock may have been set meanwhile."""
    found = {}
    for one in store.load(INCIDENTS_TABLE):
        found[one.key] = one if one.ends_at is None or one.ends_at <= now else replace(one, ends_at=now)
    return found


def _dump(one: IncidentRecord) -> dict[str, Any]:
    return {
        "kind": str(one.kind),
        "identities": list(one.identities),
        "labels": dict(one.labels),
        "starts_at": max(one.starts_at, 0.0),
        "ends_at": None if one.ends_at is None else max(one.ends_at, 0.0),
        "members": dict(one.members),
        "severity": one.severity,
        "worst": list(one.worst),
        "gravest": one.gravest,
        "reopened": one.reopened,
        "headline": one.headline,
        "restarts": dump_restarts(one.restarts),
        "ceased_at": one.ceased_at,
        "grew_on": list(one.grew_on),
        "grew_together": one.grew_together,
        "reasons": {name: list(reason) for name, reason in one.reasons.items()},
        "ended": [dump_alert(alert) for alert in one.ended.values()] if _is_yet_to_be_told(one) else [],
    }


def _is_yet_to_be_told(one: IncidentRecord) -> bool:
    """Return whether its end may yet be told: that of one that began again waits for calm."""
    return one.ends_at is None or one.reopened > 0


def _load(key: str, dump: str) -> IncidentRecord:
    found = document(parsed(dump))
    ended = {alert.fingerprint: alert for alert in map(load_alert, array(found.get("ended", [])))}
    return IncidentRecord(
        key,
        CauseKind(word(member(found, "kind"))),
        tuple(word(one) for one in array(member(found, "identities"))),
        texts(member(found, "labels")),
        unix_time(member(found, "starts_at")),
        unix_time_or_none(member(found, "ends_at")),
        {word(name): flag(value) for name, value in document(member(found, "members")).items()},
        text(member(found, "severity")),
        text(found.get("gravest", "")),
        load_urgency(array(member(found, "worst"))),
        reopened=integer(member(found, "reopened")),
        headline=text(found.get("headline", "")),
        restarts=load_restarts(found.get("restarts")),
        ceased_at=unix_time_or_none(found.get("ceased_at")),
        left=tuple(ended),
        ended=ended,
        grew_on=tuple(word(one) for one in array(found.get("grew_on", []))),
        grew_together=integer(found.get("grew_together", 0)),
        reasons={word(name): _load_reason(told) for name, told in document(found.get("reasons", {})).items()},
    )


def _load_reason(value: object) -> tuple[str, bool]:
    told, is_certain = array(value)
    return text(told), flag(is_certain)


INCIDENTS_TABLE = Table(
    "incidents",
    ("incident_key",),
    {"incident_key": Column(word), "dump": Column(text, 2**20)},
    _load,
)
