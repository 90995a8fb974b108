"""Alerts and messages for tests."""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.notify.outbox.attempt import MessageContext
from gpuagent_alerts.notify.outbox.entry import Occasion, OutboxEntry, message_id

NOW = 1_700_000_000.0
CONTEXT = MessageContext("node7", "http://node7:9837/", NOW)
SHOWN = {
    "summary": "The GPU is gone.",
    "description": "Drain the node, then reset the GPU.",
    "runbook_url": "https://example.org/GpuLost",
}
"""Annotations of an alert that fires, as receivers have them."""
SHOWN_ENDED = {
    "summary": "The GPU was gone: the GPU answers again after a reboot",
    "runbook_url": "https://example.org/GpuLost",
}
"""Annotations of one that has ended."""


def alert(name: str = "GpuLost", *, ended: bool = False, starts_at: float = NOW - 600, **labels: str) -> Alert:
    """An alert of a GPU; one that has ended did so ten seconds ago."""
    return Alert(
        labels={"alertname": name, "severity": "critical", "gpu": "0", **labels},
        annotations={
            "summary": "The GPU is gone.",
            "pending_summary": "The GPU is going.",
            "resolved_summary": "The GPU was gone",
            "description": "Drain the node, then reset the GPU.",
            "runbook_url": "https://example.org/GpuLost",
        },
        status=Status.RESOLVED if ended else Status.FIRING,
        starts_at=starts_at,
        ends_at=NOW - 10 if ended else None,
        value=1.0,
        end_reason="the GPU answers again after a reboot" if ended else "",
    )


def message(
    *alerts: Alert, receiver: str = "hook", group: str = "g", name: str = "", labels: Mapping[str, str] | None = None
) -> Message:
    """A message; with one alert that fires, if none is given."""
    return Message(name or message_id(NOW), receiver, group, alerts or (alert(),), labels or {})


def entry(
    *alerts: Alert, receiver: str = "hook", group: str = "g", occasion: Occasion | None = None, name: str = ""
) -> OutboxEntry:
    """A message for the outbox; what it says first decides the occasion."""
    made = message(*alerts, receiver=receiver, group=group, name=name)
    if occasion is None:
        ended = any(one.status is Status.RESOLVED for one in made.alerts)
        occasion = Occasion.RESOLVED if ended else Occasion.FIRING
    news = [] if occasion is Occasion.REPEAT else [a.fingerprint for a in made.alerts if a.status is Status.FIRING]
    return OutboxEntry(made, occasion, tuple(news))
