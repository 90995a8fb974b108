"""An incident, and what is said of it, in the JSON text of a message that waits to be sent."""

from __future__ import annotations

from typing import Any

from gpuagent_alerts.incident import Briefing, CauseKind, Holder, Incident, News
from gpuagent_alerts.store.checks import (
    array,
    document,
    integer,
    labels,
    member,
    text,
    texts,
    unix_time,
    unix_time_or_none,
    word,
)


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
    )


def _holder(value: object) -> Holder:
    pid, process, user, used_bytes = array(value)
    return Holder(integer(pid), text(process), text(user), integer(used_bytes))
