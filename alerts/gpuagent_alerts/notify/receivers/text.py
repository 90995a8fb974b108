"""An alert in words and times, as several kinds of receivers need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.alert import Alert, Briefing, Holder, Message, Status, condition_times, shown_annotations
from gpuagent_alerts.notify.outbox.attempt import LATE_SECONDS, MessageContext
from gpuagent_alerts.notify.urgency import severity_rank

SEVERITIES = ("critical", "error", "warning", "info", "none")
"""The worst first."""
_MOST_NAMES = 4
_LAST = 253402300799.0  # the end of the year 9999: datetime knows no later time


def rfc3339(unix_seconds: float) -> str:
    """Return `2026-11-20T20:10:48.123Z`."""
    return _time(unix_seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_timestamp(unix_seconds: float) -> str:
    """Return `2026-11-20 20:10:48 UTC`."""
    return f"{_time(unix_seconds):%Y-%m-%d %H:%M:%S} UTC"


def _time(unix_seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(unix_seconds, 0.0), _LAST), UTC)


def headline(message: Message, context: MessageContext) -> str:
    """Return the message in one line, as a push notification shows it.

    `CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking 84.4 GiB/h, full in 8 min` of an incident,
    `WARNING node7: GPU 0: 95 % of memory in use` of an alert that belongs to none.
    """
    if message.report is not None:
        return message.report.title
    made_up = "SIMULATED " if context.simulated else ""
    late = late_words(message, context)
    if message.incident is not None and message.incident.briefing.headline:
        return f"{made_up}{message.incident.briefing.headline}{late}"
    return f"{made_up}{_state(message)} {context.node}: {_gist(message)}{late}"


def late_words(message: Message, context: MessageContext) -> str:
    """Return when a message was written that comes late, and of an end without its beginning when that was; "" else."""
    incident, written_at = message.incident, message.written_at
    began = ""
    if message.tells_beginning and incident is not None and incident.ends_at is not None:
        began = f"from {format_timestamp(incident.starts_at)} to {format_timestamp(incident.ends_at)}, told late"
    elif written_at is not None and context.now - written_at > LATE_SECONDS:
        ago = format_duration(context.now - written_at)
        began = f"written {format_timestamp(written_at)}, {ago} ago"
    return f" ({began})" if began else ""


def is_over(message: Message) -> bool:
    """Return whether what the message tells of has ended: its incident, or all of its alerts."""
    return message.status is Status.RESOLVED if message.incident is None else message.incident.is_over


def severity_of(message: Message) -> str:
    """Return the worst severity of what is true, or of what was if nothing is; "" where no alert has one."""
    if message.incident is not None:
        return message.incident.severity
    firing = [alert for alert in message.alerts if alert.holds] or message.alerts
    return max((alert.labels.get("severity", "") for alert in firing), key=severity_rank, default="")


def _state(message: Message) -> str:
    if is_over(message):
        return "RESOLVED"
    if message.incident is None and not any(alert.holds for alert in message.alerts):
        return "ENDING"
    return (severity_of(message) or "firing").upper()


def _gist(message: Message) -> str:
    if message.digest:
        return _digest_gist(message)
    if len(message.alerts) == 1:
        (alert,) = message.alerts
        return next(iter(alert_texts(alert)), alert.name)
    names = list(dict.fromkeys(alert.name for alert in message.alerts))
    shown = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    return f"{len(message.alerts)} alerts: {shown}"


def _digest_gist(message: Message) -> str:
    messages, over = sum(one.messages for one in message.digest), sum(one.is_over for one in message.digest)
    number = len(message.digest)
    states = [f"{number - over} {'goes' if number - over == 1 else 'go'} on"] if number > over else []
    states += [f"{over} {'has' if over == 1 else 'have'} ended"] if over else []
    about = "1 incident" if number == 1 else f"{number} incidents"
    held = "1 message was" if messages == 1 else f"{messages} messages were"
    return f"{held} held back by max_messages_per_hour, about {about}: {', '.join(states)}"


def digest_lines(message: Message) -> list[str]:
    """Return what was held back, a line for each incident: what is the case, how often it was to be told, its state."""
    return [
        f"{one.headline} ({'1 message' if one.messages == 1 else f'{one.messages} messages'}, "
        f"{'ended' if one.is_over else 'goes on'})"
        for one in message.digest
    ]


SHOWS_ALL = "gpuagent alerts"
"""Command that shows all that a digest stands for."""


def distinct_alerts(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts without those that say the same as another: a leak has one for each standard it has met."""
    return list({(one.name, one.status, *alert_texts(one)[:1]): one for one in reversed(alerts)}.values())[::-1]


def alert_period(alert: Alert) -> str:
    """Return since when, or from when to when, its condition held: neither `for` nor `keep_firing_for` shows."""
    begins, ends = condition_times(alert)
    if ends is None:
        return f"since {format_timestamp(begins)}"
    return f"from {format_timestamp(begins)} to {format_timestamp(ends)} ({format_duration(max(0.0, ends - begins))})"


def alert_texts(alert: Alert) -> list[str]:
    """Return summary, reasons, what a remedy did, and description, where there are any and its state has them."""
    shown = shown_annotations(alert)
    found = {key: shown.get(key, "") for key in ("summary", "reasons", "remedy", "description")}
    return [f"Remedy: {text}" if key == "remedy" else text for key, text in found.items() if text]


def other_labels(alert: Alert) -> dict[str, str]:
    """Return what a headline does not already say."""
    return {name: value for name, value in sorted(alert.labels.items()) if name not in {"alertname", "severity"}}


def common_items(mappings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return what all of them have alike."""
    first, *others = mappings or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def format_holder(holder: Holder) -> str:
    """Return `whisper-api (svc-ml, pid 81204)`."""
    return f"{holder.process} ({', '.join(part for part in (holder.user, f'pid {holder.pid}') if part)})"


def briefing_lines(briefing: Briefing) -> list[str]:
    """Return a briefing line by line, without its headline."""
    lines = [briefing.numbers]
    lines += [f"Holds memory: {format_holder(one)} {format_bytes(one.used_bytes)}" for one in briefing.holders]
    lines += [f"Line: {briefing.culprit}" if briefing.culprit else ""]
    lines += [f"Remedy: {text}" for text in briefing.remedies]
    lines += [f"Next: {briefing.next_command}" if briefing.next_command else ""]
    lines += [f"Silence: {briefing.silence_command}" if briefing.silence_command else ""]
    lines += [f"{LINK_NAMES.get(name, name)}: {url}" for name, url in briefing.links.items()]
    return [line for line in lines if line]


LINK_NAMES = {"page": "Page", "plot": "Memory over time", "grafana": "Grafana", "runbook": "Runbook"}


def plain_text(message: Message, context: MessageContext) -> str:
    """Return the message as text without any marks: what there is to say of its incident, then alert by alert."""
    if message.report is not None:
        return message.report.text
    made_up = "SIMULATED " if context.simulated else ""
    incident = message.incident
    parts = []
    if incident is not None and incident.briefing.headline:
        parts.append("\n".join([headline(message, context), *briefing_lines(incident.briefing)]))
    if message.digest:
        parts.append("\n".join([headline(message, context), *digest_lines(message), f"All of it: {SHOWS_ALL}"]))
    for alert in distinct_alerts(message.alerts):
        severity = alert.labels.get("severity", "")
        head = f"{made_up}{alert.state.upper()}: {alert.name}" + (f" ({severity})" if severity else "")
        labels = ", ".join(f"{name}={value}" for name, value in other_labels(alert).items())
        parts.append("\n".join([head, *alert_texts(alert), labels, alert_period(alert)]))
    return "\n\n".join(parts) + f"\n\n{context.node}, {message.id}\n"
