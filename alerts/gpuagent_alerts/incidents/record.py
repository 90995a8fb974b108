"""An incident as the agent remembers it, and its row in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent_alerts.incident import CauseKind
from gpuagent_alerts.incidents.urgency import CALM, Urgency
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

MOST_IDENTITIES = 512
"""Of one incident: a job of hundreds of ranks."""


@dataclass(frozen=True, slots=True)
class Record:
    """One incident."""

    key: str
    kind: CauseKind
    identities: tuple[str, ...]
    """By which later alerts find it; see `cause`."""
    labels: Mapping[str, str]
    starts_at: float
    """Unix time."""
    ends_at: float | None = None
    """Unix time at which nothing of it fired any more; None while something does."""
    members: Mapping[str, bool] = field(default_factory=dict)
    """Fingerprints of its firing alerts; whether each keeps it open."""
    severity: str = ""
    """The worst of its firing alerts; of one that has ended, the worst that it had last."""
    worst: Urgency = CALM
    reopened: int = 0
    """How often it began again."""


def save_records(store: Store, before: Mapping[str, Record], after: Mapping[str, Record]) -> None:
    """Keep exactly these. Raises StoreFailure."""
    gone = [(key,) for key in before if key not in after]
    changed = [(key, json.dumps(_dump(one), separators=(",", ":"))) for key, one in after.items()
               if before.get(key) != one]  # fmt: skip
    if gone or changed:
        with store.transaction():
            store.execute_many("DELETE FROM incidents WHERE incident_key = ?", gone)
            store.execute_many("INSERT OR REPLACE INTO incidents VALUES (?, ?)", changed)


def load_records(store: Store, now: float) -> dict[str, Record]:
    """Return every incident that is kept; none ended in the future, as the clock may have been set meanwhile."""
    found = {}
    for one in store.load(INCIDENTS):
        ends_at = one.ends_at if one.ends_at is None else min(one.ends_at, now)
        found[one.key] = one if ends_at == one.ends_at else _replace_end(one, ends_at)
    return found


def _replace_end(one: Record, ends_at: float | None) -> Record:
    return Record(one.key, one.kind, one.identities, one.labels, one.starts_at, ends_at, one.members, one.severity,
                  one.worst, one.reopened)  # fmt: skip


def _dump(one: Record) -> dict[str, Any]:
    return {
        "kind": str(one.kind),
        "identities": list(one.identities),
        "labels": dict(one.labels),
        "starts_at": max(one.starts_at, 0.0),
        "ends_at": None if one.ends_at is None else max(one.ends_at, 0.0),
        "members": dict(one.members),
        "severity": one.severity,
        "worst": list(one.worst),
        "reopened": one.reopened,
    }


def _load(key: str, dump: str) -> Record:
    found = document(parsed(dump))
    severity, stage = array(member(found, "worst"))
    return Record(
        key,
        CauseKind(word(member(found, "kind"))),
        tuple(word(one) for one in array(member(found, "identities"))),
        texts(member(found, "labels")),
        unix_time(member(found, "starts_at")),
        unix_time_or_none(member(found, "ends_at")),
        {word(name): flag(value) for name, value in document(member(found, "members")).items()},
        text(member(found, "severity")),
        Urgency(integer(severity, -1, 100), integer(stage, -1, 100)),
        integer(member(found, "reopened")),
    )


INCIDENTS = Table(
    "incidents",
    ("incident_key",),
    {"incident_key": Column(word), "dump": Column(text, 2**20)},
    _load,
)
