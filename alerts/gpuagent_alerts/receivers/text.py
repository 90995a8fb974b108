"""An alert in words and times, as several kinds of receivers need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gpuagent.units import format_duration
from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.annotations import shown_annotations
from gpuagent_alerts.outbox.sender import Context

_LAST = 253402300799.0  # the end of the year 9999: datetime knows no later time


def rfc3339(unix_seconds: float) -> str:
    """`2026-11-20T20:10:48.123Z`."""
    return _time(unix_seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def when(unix_seconds: float) -> str:
    """`2026-11-20 20:10:48 UTC`."""
    return f"{_time(unix_seconds):%Y-%m-%d %H:%M:%S} UTC"


def _time(unix_seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(unix_seconds, 0.0), _LAST), UTC)


def headline(message: Message, context: Context) -> str:
    """`FIRING: GpuLost on node7`, `RESOLVED: 3 alerts on node7`, `SIMULATED FIRING: GpuLost on node7`."""
    made_up = "SIMULATED " if context.simulated else ""
    names = {alert.name for alert in message.alerts}
    what = next(iter(names)) if len(names) == 1 else "alerts"
    if len(message.alerts) > 1:
        what = f"{len(message.alerts)} {'x ' if len(names) == 1 else ''}{what}"
    return f"{made_up}{message.status.upper()}: {what} on {context.node}"


def duration(alert: Alert) -> str:
    """Since when its condition holds, or from when to when it did: neither `for` nor `keep_firing_for` shows."""
    begins, ends = condition_times(alert)
    if ends is None:
        return f"since {when(begins)}"
    return f"from {when(begins)} to {when(ends)} ({format_duration(max(0.0, ends - begins))})"


def condition_times(alert: Alert) -> tuple[float, float | None]:
    """Return the Unix times between which the condition held; None for the end of an alert that fires."""
    begins = alert.starts_at if alert.true_from is None else min(alert.true_from, alert.starts_at)
    if alert.status is Status.FIRING or alert.ends_at is None:
        return begins, None
    ends = alert.ends_at if alert.true_until is None else min(alert.true_until, alert.ends_at)
    return begins, max(begins, ends)


def says(alert: Alert) -> list[str]:
    """Summary, reasons, what a remedy did, and description, where there are any and its state has them."""
    shown = shown_annotations(alert)
    found = {key: shown.get(key, "") for key in ("summary", "reasons", "remedy", "description")}
    return [f"Remedy: {text}" if key == "remedy" else text for key, text in found.items() if text]


def other_labels(alert: Alert) -> dict[str, str]:
    """What a headline does not already say."""
    return {name: value for name, value in sorted(alert.labels.items()) if name not in {"alertname", "severity"}}


def common(mappings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What all of them have alike."""
    first, *others = mappings or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def plain(message: Message, context: Context) -> str:
    """The message as text without any marks, alert by alert."""
    parts = []
    for alert in message.alerts:
        severity = alert.labels.get("severity", "")
        head = f"{'SIMULATED ' if context.simulated else ''}{alert.status.upper()}: {alert.name}" + (
            f" ({severity})" if severity else ""
        )
        labels = ", ".join(f"{name}={value}" for name, value in other_labels(alert).items())
        parts.append("\n".join([head, *says(alert), labels, duration(alert)]))
    return "\n\n".join(parts) + f"\n\n{context.node}, {message.id}\n"
