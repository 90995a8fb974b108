"""Incidents on the page, each with its alerts and its timeline: began, worsened, who was notified, what was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from gpuagent.core.units import MAX_SECONDS, format_time
from gpuagent.core.wording import since_of, summary_of
from gpuagent_exporters.page.html import (
    SEVERITIES,
    Document,
    ago,
    attribute,
    chapter,
    count,
    duration,
    is_number,
    size,
    text,
)

_MOST = 100
_MOST_ENDED = 20
_MOST_EVENTS = 12
_SAME_SECONDS = 90.0
"""Messages to several receivers within this time are one line."""
_SENT = {"told": "told", "queued": "being told", "dead": "not told"}
_REASONS = {"firing": "", "repeat": "again", "resolved": "that it ended"}


def alerts(document: Document, *, hidden: bool, acts: Document | None = None) -> str:
    """Incidents with their timeline and alerts, gravest first, after what is wrong with alerting; then those ended.

    `acts` is the document of remedies, of which each incident tells its own. `hidden`: the text of an alert and who
    acknowledged it may name users, so an open address is not shown them.
    """
    told = document.get("alerts") or ()
    found = sorted((alert for alert in told if not _always(alert)), key=_urgency)
    now = float(document.get("time_seconds") or 0.0)
    incidents = [one for one in document.get("incidents") or () if not _always(one)]
    runs = (acts or {}).get("remedies") or ()
    going_on = [one for one in incidents if one.get("ends_at_seconds") is None]
    by_key: dict[str, list[Document]] = {}
    for alert in found[:_MOST]:
        by_key.setdefault(str(alert.get("incident") or ""), []).append(alert)
    items = "".join(
        _incident(one, by_key.pop(str(one.get("key")), ()), runs, now, hidden=hidden) for one in going_on[:_MOST]
    )
    items += "".join(_alert(alert, now, hidden=hidden) for alert in sorted(chain(*by_key.values()), key=_urgency))
    body = "".join(f'<p class="banner">{trouble}</p>' for trouble in _troubles(document))
    body += f'<ul class="list">{items}</ul>' if items else "<p>None.</p>"
    over = [one for one in incidents if one.get("ends_at_seconds") is not None]
    body += _ended(over, runs, document.get("time_seconds"), hidden=hidden)
    always = sorted({str(alert.get("name")) for alert in told if _always(alert)})
    if always:
        body += f'<p class="quiet">{text(", ".join(always))} fires for nobody, which shows that alerting works.</p>'
    if len(found) > _MOST:
        body += f'<p class="quiet">{len(found) - _MOST} more in /api/v1/alerts</p>'
    return chapter("alerts", "Incidents", body)


def going_on(document: Document) -> int:
    """How many entries fire: incidents, each once however many alerts it has, and alerts that belong to none.

    One of which nothing is true any more is not counted, though it is listed until its end is told.
    """
    listed = {str(one.get("key")) for one in document.get("incidents") or () if one.get("ends_at_seconds") is None}
    incidents = [
        one
        for one in document.get("incidents") or ()
        if one.get("ends_at_seconds") is None and not one.get("ending") and not _always(one)
    ]
    alone = [
        one
        for one in document.get("alerts") or ()
        if one.get("state") == "firing" and not _always(one) and str(one.get("incident") or "") not in listed
    ]
    return len(incidents) + len(alone)


def pending(document: Document) -> int:
    """How many are true and may come to fire."""
    return sum(alert.get("state") == "pending" and not _always(alert) for alert in document.get("alerts") or ())


def unread(name: str, title: str, reason: str) -> str:
    """In the place of a part that could not be had, which must not look like an empty one."""
    return chapter(name, title, f'<p class="banner">UNKNOWN: could not be read: {text(reason)}</p>')


def _always(alert: Document) -> bool:
    """Tell whether an alert is for a machine and not for a person, like the watchdog."""
    return alert.get("severity") == "none"


def _urgency(alert: Document) -> tuple[bool, bool, int]:
    severity, state = alert.get("severity"), alert.get("state")
    rank = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return state != "firing", state == "pending", rank


def _incident(
    incident: Document, alerts: Sequence[Document], runs: Sequence[Document], now: float, *, hidden: bool
) -> str:
    """One incident: what happened, since when, who is at it; below it what became of it, and its alerts."""
    severity = str(incident.get("severity") or "")
    silenced = bool(incident.get("silenced"))
    kind = severity if severity in SEVERITIES and not silenced else "calm"
    who = incident.get("acknowledged_by")
    facts = [
        str(incident.get("key") or ""),
        severity or "no severity",
        "silenced" if silenced else "",
        f"began {ago(incident.get('starts_at_seconds'), now)}",
        f"began again {count(incident['reopened'], 'time')}" if incident.get("reopened") else "",
        ("acknowledged" if hidden else f"acknowledged by {who}") if who else "",
    ]
    items = "".join(_alert(alert, now, hidden=hidden) for alert in alerts)
    return (
        f'<li class="{kind}" data-key="{attribute(incident.get("key"))}"><b>{text(_headline(incident))}</b>'
        f'<br><span class="quiet">{text(" · ".join(filter(None, facts)))}</span>'
        + _timeline(incident, runs, now, hidden=hidden)
        + (_folded(f"alerts-{incident.get('key')}", count(len(alerts), "alert"), items) if items else "")
        + "</li>"
    )


def _folded(key: str, title: str, items: str) -> str:
    return f'<details data-key="{attribute(key)}"><summary>{title}</summary><ul class="list">{items}</ul></details>'


def _headline(incident: Document) -> str:
    """Return the line that a message would have; without one, what it happened to."""
    labels = incident.get("labels") or {}
    shown = " ".join(f"{name} {labels[name]}" for name in ("gpu", "pid", "receiver") if labels.get(name))
    return str(incident.get("headline") or f"incident of a {incident.get('kind') or 'rule'} {shown}".rstrip())


def _ended(incidents: Sequence[Document], runs: Sequence[Document], now: object, *, hidden: bool) -> str:
    """Return the incidents of the last day that are over, a line for each, the latest first."""
    if not incidents:
        return ""
    items = "".join(
        f'<li class="calm" data-key="{attribute(one.get("key"))}">'
        f'<details data-key="{attribute(one.get("key"))}"><summary>{text(_headline(one))} '
        f'<span class="quiet">{text(_when_it_ended(one, now))}</span></summary>'
        f"{_timeline(one, runs, now, hidden=hidden)}</details></li>"
        for one in incidents[:_MOST_ENDED]
    )
    more = (
        f'<p class="quiet">{len(incidents) - _MOST_ENDED} more in /api/v1/alerts</p>' if incidents[_MOST_ENDED:] else ""
    )
    return f'<p class="quiet">Ended in the last day:</p><ul class="list">{items}</ul>{more}'


def _when_it_ended(incident: Document, now: object) -> str:
    ends = incident.get("ends_at_seconds") or 0.0
    lasted = duration(max(0.0, ends - (incident.get("starts_at_seconds") or ends)))
    return f"ended {ago(ends, now)}, lasted {lasted}"


def _alert(alert: Document, now: float, *, hidden: bool) -> str:
    severity, labels = str(alert.get("severity") or ""), alert.get("labels") or {}
    kind = severity if alert.get("state") == "firing" and severity in SEVERITIES else "calm"
    facts = [
        severity or "no severity",
        since_of(alert, now),
        str(alert.get("place") or "") or (f"GPU {labels['gpu']}" if labels.get("gpu") else ""),
        f"pid {labels['pid']}" if labels.get("pid") else "",
        *_quieted(alert, hidden=hidden),
    ]
    summary = "" if hidden else summary_of(alert)
    return (
        f'<li class="{kind}" data-key="{attribute(alert.get("fingerprint"))}">'
        f"<b>{text(str(alert.get('state') or 'unknown').upper())}</b> {text(alert.get('name'))} "
        f'<span class="quiet">{text(" · ".join(filter(None, facts)))}</span>'
        + (f"<br>{text(summary)}" if summary else "")
        + "</li>"
    )


def _quieted(alert: Document, *, hidden: bool) -> Iterator[str]:
    """Why nobody hears of it."""
    if alert.get("silenced_by"):
        yield "silenced"
    if alert.get("muted_by"):
        yield f"muted by {alert['muted_by']}"
    if alert.get("acknowledged_by"):
        yield "acknowledged" if hidden else f"acknowledged by {alert['acknowledged_by']}"


def _troubles(document: Document) -> Iterator[str]:
    """Why somebody may not be told."""
    if document.get("not_measured"):
        yield f"{text(document['not_measured'])}: alerts are as they were measured last, and may be over by now"
    if document.get("store_problem"):
        yield f"STORE: {text(document['store_problem'])}"
    failing = document.get("failing_rules") or ()
    if failing:
        names = ", ".join(str(rule.get("rule")) for rule in failing[:5])
        yield f"RULES: {count(len(failing), 'rule')} cannot be evaluated: {text(names)}"
    for receiver in document.get("receivers") or ():
        if receiver.get("off"):
            yield f"OFF: the receiver {text(receiver.get('receiver'))} is switched off: {text(receiver['off'])}"


def _timeline(incident: Document, runs: Sequence[Document], now: object, *, hidden: bool) -> str:
    """Render the events by time; empty where none is known. `runs` are remedies, `now` is Unix time."""
    events = [*_recorded_events(incident, hidden=hidden), *_remedy_events(incident, runs)]
    events.sort(key=lambda event: event[0])
    left_out = len(events) - _MOST_EVENTS
    if left_out > 0:
        half = _MOST_EVENTS // 2
        between = (events[half][0], "", f"{left_out} more")
        events = [*events[:half], between, *events[len(events) - half :]]
    items = "".join(
        f'<li><time datetime="{attribute(_iso(at))}">{text(_when(at, now))}</time><b>{text(what)}</b>'
        f"<span>{text(words)}</span></li>"
        for at, what, words in events
    )
    return f'<ol class="timeline">{items}</ol>' if items else ""


def _recorded_events(incident: Document, *, hidden: bool) -> Iterator[tuple[float, str, str]]:
    """Yield what the agent tells of it: time, what happened, and more about that."""
    sent: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for event in incident.get("timeline") or ():
        at, kind = event.get("time_seconds"), str(event.get("event"))
        if not is_number(at) or at > MAX_SECONDS:
            continue
        if kind in _SENT:
            key = (kind, str(event.get("reason")))
            if key in sent and at - sent[key][0] > _SAME_SECONDS:
                yield _message_event(key, sent.pop(key))
            sent.setdefault(key, (at, []))[1].append(str(event.get("receiver")))
        elif kind == "began":
            yield at, "began", str(event.get("severity") or "")
        elif kind == "worsened":
            yield at, "worsened", f"{event.get('severity')}: {event.get('alert')}"
        elif kind == "acknowledged":
            yield at, "acknowledged", "" if hidden else f"by {event.get('by')}"
        elif kind == "ended":
            yield at, "ended", ""
    for key, found in sent.items():
        yield _message_event(key, found)


def _message_event(key: tuple[str, str], found: tuple[float, list[str]]) -> tuple[float, str, str]:
    (kind, reason), (at, receivers) = key, found
    words = ", ".join(dict.fromkeys(receivers))
    return at, _SENT[kind], " ".join(filter(None, (words, _REASONS.get(reason, ""))))


def _remedy_events(incident: Document, runs: Sequence[Document]) -> Iterator[tuple[float, str, str]]:
    """Yield what was done: to the process that it is about, or by one of its alerts, while it went on."""
    begins, ends = incident.get("starts_at_seconds") or 0.0, incident.get("ends_at_seconds")
    pid = str((incident.get("labels") or {}).get("pid") or "")
    alerts = set(incident.get("alerts") or ())
    for run in runs:
        at = run.get("time_seconds")
        if not is_number(at) or at < begins or (ends is not None and at > ends):
            continue
        if run.get("fingerprint") not in alerts and str(run.get("pid")) != pid:
            continue
        end = run.get("end")
        result = "under way" if end is None else str(end.get("result") or "").replace("_", " ")
        freed = "" if end is None or end.get("released_bytes") is None else f"{size(end['released_bytes'])} came back"
        dry = "dry run" if run.get("dry_run") else ""
        who = f"{run.get('name') or 'process'} (pid {run.get('pid')})"
        yield at, "acted", ", ".join(filter(None, (f"{who}: {result}", freed, dry)))


def _when(at: float, now: object) -> str:
    return f"{duration(max(0.0, now - at))} ago" if is_number(now) else format_time(at)


def _iso(at: float) -> str:
    day, clock, _ = format_time(at).split(" ")
    return f"{day}T{clock}Z"
