"""A message in the outbox: its states, its id, the JSON text that is kept until it is sent, and its row."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from gpuagent_alerts.alert import (
    Alert,
    Briefing,
    CauseKind,
    DigestLine,
    Holder,
    Incident,
    LastRun,
    Message,
    News,
    Report,
    Status,
)
from gpuagent_alerts.notify.outbox.attempt import MAX_RETRY_AFTER_SECONDS
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.tables import (
    Column,
    Table,
    array,
    document,
    finite,
    flag,
    integer,
    labels,
    measured,
    member,
    number,
    parsed,
    text,
    texts,
    unix_time,
    unix_time_or_none,
    word,
)
from gpuagent_alerts.store.tables import text as checked_text


class Occasion(StrEnum):
    """Why a message is sent. The order is the order in which they are given up when there is no room."""

    REPEAT = "repeat"
    """Nothing new: a newer message of its group replaces it."""
    FIRING = "firing"
    """Some alert began to fire, none ended."""
    RESOLVED = "resolved"
    """Some alert ended."""


class MessageState(StrEnum):
    """State of a message on its way."""

    QUEUED = "queued"
    HELD = "held"
    """Its receiver has had enough for an hour: a digest tells of it."""
    SENT = "sent"
    DEAD = "dead"
    """It could not be delivered; it is kept and can be replayed."""
    DROPPED = "dropped"
    """There was no room for it, or a newer message of its group made it pointless."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A message to put into the outbox."""

    message: Message
    occasion: Occasion
    news: tuple[str, ...] = ()
    """Fingerprints of the alerts that no earlier message told of."""
    held: bool = False
    """Whether it is held back and not sent by itself."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that is in the outbox."""

    seq: int
    message: Message
    occasion: Occasion
    state: MessageState
    created: float
    """Unix time."""
    attempts: int
    next_at: float
    """Unix time before which it is not tried again."""
    last_error: str
    news: tuple[str, ...] = ()
    """Fingerprints of the alerts that no earlier message told of."""
    size_bytes: int = 0
    """Size of its body."""


@dataclass(frozen=True, slots=True)
class DroppedMessage:
    """A message that had to be dropped."""

    receiver: str
    group: str
    untold: tuple[str, ...] = ()
    """Fingerprints of the alerts of which the receiver has not heard, and will not by what is queued."""


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def message_id(wall_seconds: float, random_bits: Callable[[int], int] = secrets.randbits) -> str:
    """Return `gpa_` and a ULID (https://github.com/ulid/spec): milliseconds in 48 bits, 80 random bits, base 32."""
    milliseconds = min(max(int(wall_seconds * 1000), 0), 2**48 - 1)
    return _written(milliseconds << 80 | random_bits(80))


def id_of_news(receiver: str, group: str, alerts: Iterable[Alert], follows: str = "") -> str:
    """Return the id of a message that tells of beginnings and ends: the same whenever the same is told.

    It follows from the receiver, the group, and of each alert the labels, the beginning and whether it fires. So what
    is told once more, as the note that it was told is lost, can be recognized by the receiver. `follows` says what else
    makes it news: an incident gets worse without any alert of its own that begins or ends.
    """
    what = sorted(f"{alert.fingerprint} {alert.status} {alert.starts_at:.3f}" for alert in alerts)
    text = "\xff".join((receiver, group, *what, *([follows] if follows else [])))
    return _written(int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]))


def _written(number: int) -> str:
    return "gpa_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def dump_message(message: Message) -> str:
    """Return it as text; NaN and the infinities included, which JSON does not know."""
    return _json(
        {
            "group_labels": dict(message.group_labels),
            "alerts": [dump_alert(alert) for alert in message.alerts],
            **({} if message.incident is None else {"incident": dump_incident(message.incident)}),
            **(
                {"digest": [[one.headline, one.messages, one.is_over] for one in message.digest]}
                if message.digest
                else {}
            ),
            **({} if message.report is None else {"report": list(message.report)}),
            **({"tells_beginning": True} if message.tells_beginning else {}),
            **({} if message.written_at is None else {"written_at": max(message.written_at, 0.0)}),
        }
    )


def load_message(text: str, *, message_id: str, receiver: str, group: str) -> Message:
    """Read it back. Raises ValueError for what is no message, and RecursionError."""
    found = document(parsed(text))
    alerts = tuple(load_alert(alert) for alert in array(member(found, "alerts")))
    incident = load_incident(found["incident"]) if "incident" in found else None
    digest = tuple(_digest_line(one) for one in array(found.get("digest", [])))
    written_at = unix_time_or_none(found.get("written_at"))  # older versions did not write it
    group_labels, both = texts(member(found, "group_labels")), flag(found.get("tells_beginning", False))
    report = _report(found["report"]) if "report" in found else None
    return Message(message_id, receiver, group, alerts, group_labels, incident, digest, written_at, both, report)


def _report(value: object) -> Report:
    title, body, form = array(value)
    if form not in {"markdown", "html"}:
        raise ValueError("a report has no form that is known")
    return Report(word(title), word(body), word(form))


def _digest_line(value: object) -> DigestLine:
    headline, messages, is_over = array(value)
    return DigestLine(text(headline), integer(messages), flag(is_over))


def dump_alert(alert: Alert) -> dict[str, Any]:
    """Return it ready for JSON."""
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "status": str(alert.status),
        "starts_at": alert.starts_at,
        "ends_at": alert.ends_at,
        "value": alert.value if math.isfinite(alert.value) else str(alert.value),
        "true_from": alert.true_from,
        "true_until": alert.true_until,
        "kept_until": alert.kept_until,
        "end_reason": alert.end_reason,
        "end_is_certain": alert.end_is_certain,
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
        kept_until=unix_time_or_none(found.get("kept_until")),
        end_reason=checked_text(found.get("end_reason", "")),
        end_is_certain=flag(found.get("end_is_certain", False)),
    )


def _json(document: object) -> str:
    # Only ASCII: SQLite and sockets refuse half of a surrogate pair, which a process may have in its name.
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def dump_incident(incident: Incident) -> dict[str, Any]:
    """Return it ready for JSON."""
    said = incident.briefing
    return {
        "key": incident.key,
        "kind": str(incident.kind),
        "labels": dict(incident.labels),
        "severity": incident.severity,
        "starts_at": incident.starts_at,
        "ends_at": incident.ends_at,
        "news": str(incident.news),
        **(_dump_restarts(incident) if incident.restarts else {}),
        "briefing": {
            "headline": said.headline,
            "numbers": said.numbers,
            "holders": [[one.pid, one.process, one.user, one.used_bytes] for one in said.holders],
            "culprit": said.culprit,
            "remedies": list(said.remedies),
            "next_command": said.next_command,
            "links": dict(said.links),
            "silence_command": said.silence_command,
            "end_reason": said.end_reason,
        },
    }


def _dump_restarts(incident: Incident) -> dict[str, Any]:
    return {
        "restarts": incident.restarts,
        "restarted_pids": list(incident.restarted_pids),
        "flat_seconds": incident.flat_seconds,
        "grows_by": incident.grows_by,
        "grew_on": list(incident.grew_on),
        "grew_together": incident.grew_together,
        "last_run": [dict(incident.last_run.labels), incident.last_run.grew, incident.last_run.left_at],
    }


def load_incident(value: object) -> Incident:
    """Read it back. Raises ValueError for what is none."""
    found = document(value)
    said = document(member(found, "briefing"))
    return Incident(
        key=word(member(found, "key")),
        kind=CauseKind(word(member(found, "kind"))),
        labels=labels(member(found, "labels")),
        severity=text(member(found, "severity")),
        starts_at=unix_time(member(found, "starts_at")),
        ends_at=unix_time_or_none(member(found, "ends_at")),
        news=News(word(member(found, "news"))),
        briefing=Briefing(
            headline=text(member(said, "headline")),
            numbers=text(member(said, "numbers")),
            holders=tuple(_holder(one) for one in array(member(said, "holders"))),
            culprit=text(member(said, "culprit")),
            remedies=tuple(text(one) for one in array(member(said, "remedies"))),
            next_command=text(member(said, "next_command")),
            links=texts(member(said, "links")),
            silence_command=text(member(said, "silence_command")),
            end_reason=text(member(said, "end_reason")),
        ),
        restarts=integer(found.get("restarts", 0)),
        restarted_pids=tuple(integer(one) for one in array(found.get("restarted_pids", []))),
        flat_seconds=finite(found.get("flat_seconds", 0.0)),
        grows_by=finite(found.get("grows_by", 0.0)),
        grew_on=tuple(word(one) for one in array(found.get("grew_on", []))),
        grew_together=integer(found.get("grew_together", 0)),
        last_run=_last_run(found.get("last_run")),
    )


def _last_run(value: object) -> LastRun:
    if value is None:  # written by an older version, or without restarts
        return LastRun()
    known, grew, left_at = array(value)
    return LastRun(labels(known), flag(grew), unix_time_or_none(left_at))


def _holder(value: object) -> Holder:
    pid, process, user, used_bytes = array(value)
    return Holder(integer(pid), text(process), text(user), integer(used_bytes))


_KEPT = frozenset({MessageState.QUEUED, MessageState.HELD, MessageState.DEAD})
"""States in which a message has a body."""
_SETTLED = frozenset[object](str(state) for state in MessageState if state not in _KEPT)
_WITH_BODY = "WHERE state IN ('queued', 'held', 'dead')"
_WITHOUT = "WHERE state NOT IN ('queued', 'held', 'dead')"


def _queued(
    seq: int, name: str, receiver: str, group: str, reason: str, news: str, body: str, size_bytes: int,
    created: float, attempts: int, next_at: float, _wait: float, state: str, last_error: str, _done_at: float | None,
) -> QueuedMessage:  # fmt: skip
    state = MessageState(state)
    message = Message(name, receiver, group, ())
    if state in _KEPT:
        message = load_message(body, message_id=name, receiver=receiver, group=group)
        if not message.alerts:
            raise ValueError("a message of no alert")
    told = tuple(word(one) for one in array(parsed(news)))
    return QueuedMessage(
        seq, message, Occasion(reason), state, created, attempts, next_at, last_error, told, size_bytes
    )


def _done_at(value: object) -> float | None:
    return None if value is None else unix_time(value)


OUTBOX = Table(
    "outbox",
    ("seq",),
    {
        "seq": Column(integer, 64),
        "id": Column(word),
        "receiver": Column(word),
        "group_key": Column(text, 2**16),
        "reason": Column(word),
        "news": Column(text, 2**20),
        "body": Column(text, 16 * 2**20),
        "bytes": Column(integer, 64),
        "created": Column(unix_time, 64),
        "attempts": Column(integer, 64),
        "next_at": Column(unix_time, 64),
        "wait": Column(partial(number, low=0.0, high=MAX_RETRY_AFTER_SECONDS), 64),
        "state": Column(word),
        "last_error": Column(text, 2**16),
        "done_at": Column(_done_at, 64),
    },
    _queued,
)


def set_damaged_aside(store: Store) -> frozenset[tuple[str, str]]:
    """Look at every message before SQL counts and orders them. Raises StoreFailure.

    Returns the receiver and group of each message that waited and is lost: what it told of is taken for untold.
    """
    with store.transaction():
        damaged = [*store.check(OUTBOX, _WITH_BODY), *store.check(OUTBOX, _WITHOUT)]
    waited = [row.cells for row in damaged if row.cells["state"] not in _SETTLED]
    places = [(cells["receiver"], cells["group_key"]) for cells in waited]
    return frozenset((name, group) for name, group in places if isinstance(name, str) and isinstance(group, str))
