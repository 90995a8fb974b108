"""PagerDuty by its Events API v2 (https://developer.pagerduty.com/docs/send-alert-event).

One incident for each of ours, or for each group of alerts that belong to none: it is triggered while one of them
fires and resolved when none does. The same `dedup_key` again updates it, so a repeat is harmless.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuagent.core.units import format_bytes
from gpuagent_alerts.alert import Alert, Message, shown_annotations
from gpuagent_alerts.notify.outbox.attempt import DAY_SECONDS, DELIVERED, DeliveryOutcome, DeliveryPace, MessageContext
from gpuagent_alerts.notify.receivers.base import Dependencies, HttpRequest, ReceiverConfig, ReceiverKind
from gpuagent_alerts.notify.receivers.settings import KeyType, key
from gpuagent_alerts.notify.receivers.text import LINK_NAMES, format_holder, headline, is_over, rfc3339
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.secret import HiddenText, Secret

if TYPE_CHECKING:
    from gpuagent_alerts.notify.receivers.http import HttpClient

EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
MAX_SUMMARY = 1024
MAX_DEDUP_KEY = 255
MAX_EVENT_BYTES = 500_000  # theirs is 512 KB
_SEVERITIES = {"critical": "critical", "warning": "warning", "info": "info", "none": "info", "error": "error"}
_WORST = ("critical", "error", "warning", "info")


@dataclass(frozen=True, slots=True)
class PagerdutyConfig:
    """PagerDuty by its Events API v2."""

    routing_key: str | HiddenText | None = key(
        KeyType.SECRET_TEXT, "The integration key of the service. Better in a file.", default=None
    )
    routing_key_file: Path | None = key(
        KeyType.SECRET_FILE, "Instead of `routing_key`: a file that holds it and nothing else.", default=None
    )


@dataclass(frozen=True, slots=True)
class Pagerduty:
    """Posts events for a service."""

    http: HttpClient
    routing_key: Secret
    url: str = EVENTS_URL

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Post an event. Raises Misconfigured.

        Of what was over before it could be told there are two: PagerDuty drops the end of what it does not know. Should
        the second one fail, both are sent again: to trigger what is triggered is harmless.
        """
        key = self.routing_key.line()
        actions = ("trigger", "resolve") if message.tells_beginning and is_over(message) else ("",)
        outcome = DELIVERED
        for action in actions:
            body = event(message, context, key, action)
            request = HttpRequest(self.url, body, {"Content-Type": "application/json"}, secrets=(key,))
            outcome = await self.http.send(request)
            if not outcome.ok:
                break
        return outcome


_ROUTING_KEY = re.compile(r"[A-Za-z0-9]{32}", re.ASCII)


class PagerdutyKind(ReceiverKind[PagerdutyConfig]):
    """Services at PagerDuty."""

    name = "pagerduty"
    settings = PagerdutyConfig
    exactly_one = ("routing_key", "routing_key_file")

    def value_problem(self, key: str, text: str) -> str:
        """Return what is wrong with an integration key."""
        if key == "routing_key" and not _ROUTING_KEY.fullmatch(text):
            return "an integration key of PagerDuty has 32 letters and digits"
        return ""

    def address(self, config: PagerdutyConfig) -> Secret:
        """Return the routing key, which stands for the service."""
        return Secret("routing key", config.routing_key, config.routing_key_file)

    def transport(self, config: PagerdutyConfig, receiver: str, shared: Dependencies) -> Pagerduty:  # noqa: ARG002
        """Return what posts events."""
        return Pagerduty(shared.http, self.address(config), shared.api_urls.get(self.name, EVENTS_URL))

    def pace(self, config: PagerdutyConfig) -> DeliveryPace:  # noqa: ARG002
        """Return that it is tried for a week: an incident that stays open for ever is worse than a late message."""
        return DeliveryPace(max_age_seconds=7 * DAY_SECONDS)

    def recipient(self, receiver: ReceiverConfig) -> Recipient:
        """Return that each message is the state of one incident, and none may tell of several."""
        return Recipient(
            receiver.name,
            send_resolved=receiver.send_resolved,
            max_messages_per_hour=receiver.max_messages_per_hour,
            digests=False,
        )


def event(message: Message, context: MessageContext, routing_key: str, action: str = "") -> bytes:
    """Return the event; without details where it would be too large with them. What is over resolves, if not said."""
    document: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": action or ("resolve" if is_over(message) else "trigger"),
        "dedup_key": dedup_key(message),
        "client": "gpuagent",
        "payload": _payload(message, context),
    }
    links = message.incident.briefing.links if message.incident is not None else {}
    if client_url := links.get("page") or context.external_url:
        document["client_url"] = client_url
    if links:
        document["links"] = [{"href": url, "text": LINK_NAMES.get(name, name)} for name, url in links.items()]
    if (plot := links.get("plot", "")).startswith("https://"):  # PagerDuty shows no others
        document["images"] = [{"src": plot, "href": links.get("page", plot), "alt": LINK_NAMES["plot"]}]
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


def _payload(message: Message, context: MessageContext) -> dict[str, Any]:
    firing = [alert for alert in message.alerts if alert.holds] or list(message.alerts)
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
        "largest holders": [f"{format_holder(one)} {format_bytes(one.used_bytes)}" for one in briefing.holders],
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
        "status": alert.state,
        "labels": dict(alert.labels),
        "annotations": shown_annotations(alert),
        "starts_at": rfc3339(alert.begins_at),
    }
