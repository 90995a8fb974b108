"""The screens of `gpuagent alerts`, `silence list` and `receivers list`, from the agent's documents alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpuagent.cli.cells import Paint, cut, fit, wrap
from gpuagent.core.units import format_duration
from gpuagent.core.wording import since_of, summary_of

Document = dict[str, Any]

_NARROWEST, _WIDEST = 40, 160
_INDENT = 9
_SHOWN_LABELS = ("gpu", "process", "pid", "user", "unit", "slurm_job", "pod_name", "receiver")
_SEVERITIES = ("critical", "warning", "info")
_MOST_NAMES = 4
_NOWHERE = "No receivers are configured: alerts go nowhere."
_WATCHDOG = "Watchdog"
"""Alert that fires for as long as alerting works: no incident."""
_WORDS = {"": "no severity", "none": "for no one"}


def alert_screen(document: Document, width: int, paint: Paint) -> list[str]:
    """Return lines of at most `width` cells: what is wrong with alerting itself first, then what fires."""
    width = max(_NARROWEST, min(width, _WIDEST))
    lines = [*_troubles(document, width, paint), *_incidents(document, width, paint), *_alerts(document, width, paint)]
    silences = [silence for silence in document["silences"] if silence["state"] == "active"]
    if silences:
        lines += ["", paint("Silences in force", "bold"), *silence_lines(silences, _now(document), width, paint)]
    if not document["receivers"] and document["alerting"] == "node":
        return [*(paint(line, "critical") for line in wrap(_NOWHERE, width)), "", *lines]
    return [*lines, "", *_receivers(document, width, paint)] if document["receivers"] else lines


def simulated_lines(document: Document, width: int) -> list[str]:
    """Return what says that it is all made up, where it is. An older agent does not tell."""
    return wrap("SIMULATED: no real GPU stands behind this", width) if document.get("simulated") else []


def silence_lines(silences: Sequence[Document], now: float, width: int, paint: Paint) -> list[str]:
    """Two lines or more for each silence. `now` is the agent's Unix time."""
    width = max(_NARROWEST, min(width, _WIDEST))
    lines = []
    for silence in silences:
        head = f"{fit(silence['id'], _INDENT)}{_span(silence, now)}, by {silence['creator'] or 'unknown'}"
        lines += [cut(head, width), *_indented(" ".join(silence["matchers"]), width)]
        if silence["comment"]:
            lines += [paint(line, "dim") for line in _indented(silence["comment"], width)]
    return lines


def dead_lines(document: Document, width: int, paint: Paint) -> list[str]:
    """Return the messages that could not be delivered, oldest first."""
    width = max(_NARROWEST, min(width, _WIDEST))
    lines = []
    for letter in document["dead"]:
        age = format_duration(max(0.0, _now(document) - letter["created_seconds"]))
        attempts = _count(letter["attempts"], "attempt")
        head = f"to {letter['receiver']}: {letter['status']}, queued {age} ago, {attempts}"
        lines += [
            paint(cut(letter["id"], width), "bold"),
            *_indented(head, width),
            *_indented(", ".join(letter["alerts"]), width),
            *(paint(line, "warning") for line in _indented(letter["error"], width)),
        ]
    return [*lines, paint(cut("gpuagent receivers replay [ID] queues them again", width), "dim")]


def receiver_lines(document: Document, width: int, paint: Paint) -> list[str]:
    """Return a table, and below each receiver what came of the last attempt."""
    width = max(_NARROWEST, min(width, _WIDEST))
    if not document["receivers"] and not document["heartbeats"]:
        return [cut(_NOWHERE, width)]
    lines = []
    held = {one["receiver"]: one for one in document.get("held_back", ())}
    for counts in document["receivers"]:
        head = f"{counts['receiver']}, {counts['kind'] or 'no longer configured'}"
        facts = [f"{counts['sent']} sent", f"{counts['queued']} queued"]
        if counts["oldest_seconds"] is not None:
            facts[-1] += f" (oldest {format_duration(counts['oldest_seconds'])})"
        if counts["failed"]:
            facts.append(_count(counts["failed"], "failed attempt"))
        facts += [f"{counts[key]} {key}" for key in ("dead", "dropped") if counts[key]]
        lines += [paint(cut(head, width), "bold"), *_indented(", ".join(facts), width)]
        if counts["receiver"] in held:
            lines += _indented(_held_back(held[counts["receiver"]], _now(document)), width)
        if counts["off"]:
            ago = format_duration(max(0.0, _now(document) - counts["off_since_seconds"]))
            text = f"switched off {ago} ago: {counts['off']}. gpuagent receivers test switches it on"
            lines += [paint(line, "warning") for line in _indented(text, width)]
        elif counts["last"]:
            lines += [paint(line, "dim") for line in _indented(f"last attempt: {counts['last']}", width)]
    for beat in document["heartbeats"]:
        every = format_duration(beat["interval_seconds"])
        lines.append(paint(cut(f"{beat['receiver']}, heartbeat every {every}", width), "bold"))
        facts = [f"{beat['sent']} sent", f"{beat['failed']} failed", f"last: {beat['last'] or 'none yet'}"]
        lines += _indented(", ".join(facts), width)
    if document["alerting"] != "node":
        lines.append(paint(cut(f"alerting: {document['alerting']}: only heartbeats are sent", width), "info"))
    return lines


def _troubles(document: Document, width: int, paint: Paint) -> list[str]:
    """Return why somebody may not be told."""
    lines = [paint(line, "warning") for line in simulated_lines(document, width)]
    if document.get("not_measured"):  # an older agent does not tell
        text = f"{document['not_measured']}: alerts are as they were measured last, and may be over by now"
        lines += _problem("NOTE", text, width, paint)
    if document["store_problem"]:
        lines += _problem("STORE", document["store_problem"], width, paint)
    for failing in document["failing_rules"]:
        text = f"{failing['rule']} of group {failing['group']} cannot be evaluated: {failing['error']}"
        lines += _problem("RULE", text, width, paint)
    for counts in document["receivers"]:
        if counts["off"]:
            text = f"{counts['receiver']} is switched off: {counts['off']}. gpuagent receivers test switches it on"
            lines += _problem("OFF", text, width, paint)
    if document["alerting"] != "node":
        text = f"alerting: {document['alerting']} is configured: this agent itself sends no alerts"
        lines += _problem("NOTE", text, width, paint, "info")
    return [*lines, ""] if lines else []


def _problem(word: str, text: str, width: int, paint: Paint, style: str = "warning") -> list[str]:
    first, *rest = _indented(text, width)
    return [paint(fit(word, _INDENT), style) + first[_INDENT:], *rest]


def _incidents(document: Document, width: int, paint: Paint) -> list[str]:
    """Return what goes on, an incident with its alerts below it; an older agent does not tell of incidents."""
    lines: list[str] = []
    names = {alert["fingerprint"]: alert["name"] for alert in document["alerts"]}
    for incident in document.get("incidents", ()):
        about = {names[one] for one in incident["alerts"] if one in names}
        if incident["ends_at_seconds"] is not None or about == {_WATCHDOG}:
            continue
        age = format_duration(max(0.0, _now(document) - incident["starts_at_seconds"]))
        severity = str(incident["severity"])
        ack = f", acknowledged by {incident['acknowledged_by']}" if incident["acknowledged_by"] else ""
        below = ", ".join(dict.fromkeys(names[one] for one in incident["alerts"] if one in names))
        since = "ending: nothing of it is true now" if incident.get("ending") else f"for {age}"
        silenced = ", silenced" if incident.get("silenced") else ""
        style = "dim" if incident.get("ending") or silenced else severity
        lines.append(paint(cut(f"{incident['key']}  {since}{silenced}{ack}", width), style))
        lines += [*_indented(_what(incident), width), *(paint(one, "dim") for one in _indented(below, width))]
    held = [
        cut(f"{one['receiver']}: {_held_back(one, _now(document))}", width) for one in document.get("held_back", ())
    ]
    title = [paint(cut("Incidents", width), "bold")] if lines else []
    return [*title, *lines, *held, *([""] if lines or held else [])]


def _what(incident: Document) -> str:
    """Return the line that a message has; an older agent tells what it happened to."""
    if incident.get("headline"):
        return str(incident["headline"])
    labels, severity = incident["labels"], str(incident["severity"])
    shown = " ".join(f"{name} {labels[name]}" for name in _SHOWN_LABELS if labels.get(name))
    return f"{_WORDS.get(severity, severity)}, {incident['kind']} {shown}".rstrip()


def _held_back(held: Document, now: float) -> str:
    """Return what the cap holds back from a receiver, and since when."""
    names = list(held.get("alerts", ()))
    about = f" about {', '.join(names[:_MOST_NAMES])}" if names else ""
    more = f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else ""
    since = format_duration(max(0.0, now - held["since_seconds"]))
    messages = _count(held["messages"], "message")
    return f"{messages}{about}{more} held back by max_messages_per_hour, the first {since} ago"


def _alerts(document: Document, width: int, paint: Paint) -> list[str]:
    alerts = sorted(document["alerts"], key=_urgency)
    states = [str(alert["state"]) for alert in alerts]
    ending = f", {states.count('ending')} ending" if "ending" in states else ""
    rules = _count(document["rules"], "rule")
    head = f"{states.count('firing')} firing{ending}, {states.count('pending')} pending, {rules}"
    lines = [paint(cut(head, width), "bold")]
    elsewhere = "" if document["alerting"] == "node" else f"{document['alerting'].capitalize()} tells of it"
    shown = [alert for alert in alerts if alert["state"] != "firing" or not alert["muted_by"]]
    for alert in shown:
        lines += _alert(alert, _now(document), width, paint, elsewhere, has_receivers=bool(document["receivers"]))
    muted = Counter(f"{alert['name']} by {alert['muted_by']}" for alert in alerts if alert not in shown)
    if muted:
        names = ", ".join(name if number == 1 else f"{name} ({number})" for name, number in muted.items())
        text = f"{sum(muted.values())} more fire and are muted: {names}. `gpuagent alerts --json` has them."
        lines += [paint(line, "dim") for line in wrap(text, width)]
    return lines


def _urgency(alert: Document) -> tuple[bool, bool, int]:
    severity, state = alert["severity"], alert["state"]
    rank = _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
    return state != "firing", state == "pending", rank


def _alert(alert: Document, now: float, width: int, paint: Paint, elsewhere: str, *, has_receivers: bool) -> list[str]:
    severity, labels = str(alert["severity"]), alert["labels"]
    state = paint(fit(str(alert["state"]).upper(), _INDENT), severity if alert["state"] == "firing" else "dim")
    parts = (
        since_of(alert, now),
        alert.get("place") or (f"GPU {labels['gpu']}" if labels.get("gpu") else ""),
        f"pid {labels['pid']}" if labels.get("pid") else "",
        "" if alert["state"] == "ending" else _value(alert["value"]),
    )
    # Where no receiver is configured, the first line of the screen says so.
    told = _told(alert, elsewhere, nobody="no receiver" if has_receivers else "")
    lines = [
        state + cut(f"{alert['name']}, {_WORDS.get(severity, severity)}", width - _INDENT),
        *_indented(", ".join(part for part in parts if part), width),
    ]
    if summary_of(alert):
        lines += _indented(summary_of(alert), width)
    if alert["annotations"].get("remedy"):
        lines += _indented(f"remedy: {alert['annotations']['remedy']}", width)
    return [*lines, *(paint(line, "dim") for line in _indented(f"{told}  [{alert['fingerprint']}]".lstrip(), width))]


def _value(value: float | None) -> str:
    """Return all digits of what is large: bytes as 4.08e+10 or a time as 1.79e+09 tell nobody anything."""
    if value is None:
        return ""
    whole = math.isfinite(value) and abs(value) < 1e15 and (abs(value) >= 1e6 or value == round(value))
    return f"value {value:.0f}" if whole else f"value {value:.6g}"


def _told(alert: Document, elsewhere: str, *, nobody: str) -> str:
    """Who hears of it, or why nobody does. `elsewhere` is who tells of alerts where this agent does not."""
    why = []
    if alert["silenced_by"]:
        why.append(f"silenced by {' '.join(alert['silenced_by'])}")
    if alert["muted_by"]:
        why.append(f"muted by {alert['muted_by']}")
    if alert["acknowledged_by"]:
        why.append(f"acknowledged by {alert['acknowledged_by']}, not repeated")
    receivers = f"goes to {', '.join(alert['receivers'])}" if alert["receivers"] else nobody
    return ", ".join(filter(None, [elsewhere or receivers, *why]))


def _receivers(document: Document, width: int, paint: Paint) -> list[str]:
    name_width = width - 28
    head = f"{fit('RECEIVER', name_width)}{_columns('QUEUED', 'DEAD', 'OLDEST')}"
    lines = [paint(head, "dim")]
    for counts in document["receivers"]:
        oldest = "-" if counts["oldest_seconds"] is None else format_duration(counts["oldest_seconds"])
        name = f"{counts['receiver']} (off)" if counts["off"] else counts["receiver"]
        lines.append(fit(name, name_width) + _columns(counts["queued"], counts["dead"], oldest))
    if any(counts["dead"] for counts in document["receivers"]):
        lines.append(paint(cut("gpuagent alerts --dead shows what could not be delivered", width), "dim"))
    return lines


def _columns(queued: object, dead: object, oldest: object) -> str:
    return f"{fit(queued, 7, right=True)} {fit(dead, 7, right=True)} {fit(oldest, 12, right=True)}"


def _span(silence: Document, now: float) -> str:
    """Return how long it goes on, how soon it begins, or how long ago it ended."""
    starts, ends = silence["starts_at_seconds"], silence["ends_at_seconds"]
    if silence["state"] == "active":
        return f"for {format_duration(max(0.0, ends - now))} more"
    if silence["state"] == "pending":
        return f"begins in {format_duration(max(0.0, starts - now))}"
    return f"ended {format_duration(max(0.0, now - ends))} ago"


def _indented(text: object, width: int) -> list[str]:
    return [" " * _INDENT + line for line in wrap(text, width - _INDENT)]


def _now(document: Document) -> float:
    return float(document["time_seconds"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
