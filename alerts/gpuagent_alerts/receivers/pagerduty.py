"""PagerDuty by its Events API v2 (https://developer.pagerduty.com/docs/send-alert-event).

One incident for each of ours, or for each group of alerts that belong to none: it is triggered while one of them
fires and resolved when none does. The same `dedup_key` again updates it, so a repeat is harmless.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from gpuagent.core.units import format_bytes
from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.annotations import shown_annotations
from gpuagent_alerts.outbox.outcome import Outcome
from gpuagent_alerts.outbox.sender import Context
from gpuagent_alerts.receivers.http import Http, Request
from gpuagent_alerts.receivers.secret import Secret
from gpuagent_alerts.receivers.text import LINK_NAMES, headline, is_over, rfc3339, who

EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
MAX_SUMMARY = 1024
MAX_DEDUP_KEY = 255
MAX_EVENT_BYTES = 500_000  # theirs is 512 KB
_SEVERITIES = {"critical": "critical", "warning": "warning", "info": "info", "none": "info", "error": "error"}
_WORST = ("critical", "error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Pagerduty:
    """Posts events for a service."""

    http: Http
    routing_key: Secret
    url: str = EVENTS_URL

    async def send(self, message: Message, context: Context) -> Outcome:
        """Raises Misconfigured."""
        key = self.routing_key.line()
        body = event(message, context, key)
        return await self.http.send(Request(self.url, body, {"Content-Type": "application/json"}, secrets=(key,)))


def event(message: Message, context: Context, routing_key: str) -> bytes:
    """The event; without details where it would be too large with them."""
    document: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if is_over(message) else "trigger",
        "dedup_key": dedup_key(message),
        "client": "gpuagent",
        "payload": _payload(message, context),
    }
    links = message.incident.briefing.links if message.incident is not None else {}
    if client_url := links.get("page") or context.external_url:
        document["client_url"] = client_url
    if links:
        document["links"] = [{"href": url, "text": LINK_NAMES.get(name, name)} for name, url in links.items()]
    body = json.dumps(document).encode()
    if len(body) > MAX_EVENT_BYTES:
        document["payload"]["custom_details"] = {"alerts": f"{len(message.alerts)}, too large to be listed"}
        body = json.dumps(document).encode()
    return body


def dedup_key(message: Message) -> str:
    """Return what names the incident at PagerDuty: its key, or that of the group, which names the node; at most 255."""
    if message.incident is not None and len(message.incident.key) <= MAX_DEDUP_KEY:
        return message.incident.key
    return "gpuagent-" + hashlib.sha256(message.group.encode("utf-8", "replace")).hexdigest()


def _payload(message: Message, context: Context) -> dict[str, Any]:
    firing = [alert for alert in message.alerts if alert.status is Status.FIRING] or list(message.alerts)
    first = firing[0]
    summary = headline(message, context)
    return {
        "summary": summary if len(summary) <= MAX_SUMMARY else summary[: MAX_SUMMARY - 1] + "…",
        "source": context.node,
        "severity": _SEVERITIES.get(message.incident.severity, "error")
        if message.incident is not None
        else min((_severity(alert) for alert in firing), key=_WORST.index),
        "timestamp": rfc3339(first.starts_at if message.incident is None else message.incident.starts_at),
        "component": first.labels.get("gpu", ""),
        "class": first.name,
        "custom_details": _custom_details(message),
    }


def _custom_details(message: Message) -> dict[str, Any]:
    details: dict[str, Any] = {"id": message.id, "alerts": [_details(alert) for alert in message.alerts]}
    if message.incident is None:
        return details
    briefing = message.incident.briefing
    said = {
        "numbers": briefing.numbers,
        "largest holders": [f"{who(one)} {format_bytes(one.used_bytes)}" for one in briefing.holders],
        "line of code": briefing.culprit,
        "remedies": list(briefing.remedies),
        "next command": briefing.next_command,
        "silence command": briefing.silence_command,
        "ended because": briefing.end_reason,
    }
    return {name: value for name, value in said.items() if value} | details


def _severity(alert: Alert) -> str:
    return _SEVERITIES.get(alert.labels.get("severity", ""), "error")


def _details(alert: Alert) -> dict[str, Any]:
    return {
        "status": str(alert.status),
        "labels": dict(alert.labels),
        "annotations": shown_annotations(alert),
        "starts_at": rfc3339(alert.starts_at),
    }
