"""JSON by POST in the form of Alertmanager's webhook, version 4, with the incident beside it; signed with a key.

Its form is `docs/webhook.schema.json`.

The signature is that of Standard Webhooks 1.0.0
(https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md). `webhook-id` stays the
same over all attempts: who has seen it can leave the message out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuagent_alerts.alert import Alert, Incident, Message, Status, condition_times, shown_annotations
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, MessageContext
from gpuagent_alerts.notify.receivers.base import Dependencies, HttpRequest, ReceiverKind, url_of
from gpuagent_alerts.notify.receivers.settings import URL_KEYS, KeyType, key, url_file
from gpuagent_alerts.notify.receivers.text import common_items, headline, rfc3339
from gpuagent_alerts.secret import HiddenText, Misconfigured, Secret

if TYPE_CHECKING:
    from gpuagent_alerts.notify.receivers.http import HttpClient

SCHEMA = 1
"""Version of what the agent adds to Alertmanager's document. It changes when a reader would have to."""
_NEVER = "0001-01-01T00:00:00Z"
"""Go's zero time: what Alertmanager writes while an alert fires."""


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """JSON by POST, in the form of Alertmanager's webhook (version 4)."""

    url: str | HiddenText | None = key(KeyType.SECRET_WEB_URL, "Where to post to.", default=None)
    url_file: Path | None = url_file()
    secret_file: Path | None = key(
        KeyType.SECRET_FILE, "A file with the key that signs each message (Standard Webhooks, `whsec_...`).",
        default=None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Webhook:
    """Posts to a URL; with keys, signs with each of them."""

    http: HttpClient
    url: Secret
    keys: Secret | None = None
    """One or, while one replaces another, several with white space between."""

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Post the document. Raises Misconfigured."""
        body = json.dumps(version_4(message, context)).encode()
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message.id,
            "webhook-timestamp": str(int(context.now)),
        }
        keys = self.keys.read().split() if self.keys else []
        if keys:
            headers["webhook-signature"] = " ".join(sign(key, message.id, int(context.now), body) for key in keys)
        return await self.http.send(HttpRequest(self.url.line(), body, headers, secrets=tuple(keys)))


class WebhookKind(ReceiverKind[WebhookConfig]):
    """Receivers that are posted to."""

    name = "webhook"
    settings = WebhookConfig
    exactly_one = URL_KEYS

    def value_problem(self, key: str, text: str) -> str:
        """Return what is wrong with a key that signs."""
        if key == "secret":
            try:
                sign(text, "", 0, b"")
            except Misconfigured as error:
                return str(error)
        return ""

    def address(self, config: WebhookConfig) -> Secret:
        """Return the URL."""
        return url_of(config)

    def transport(self, config: WebhookConfig, receiver: str, shared: Dependencies) -> Webhook:  # noqa: ARG002
        """Return what posts, and signs if there is a key."""
        return Webhook(shared.http, url_of(config), _signing_key(config))

    def secrets(self, config: WebhookConfig) -> Iterator[Secret]:
        """Yield the URL and the key for signatures."""
        yield url_of(config)
        if (key := _signing_key(config)) is not None:
            yield key


def _signing_key(config: WebhookConfig) -> Secret | None:
    return None if config.secret_file is None else Secret("key for signatures", None, config.secret_file)


def sign(key: str, message_id: str, unix_seconds: int, body: bytes) -> str:
    """Return `v1,<base64 of HMAC-SHA256>`. Raises Misconfigured for a key that is none."""
    try:
        raw = base64.b64decode(key.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise Misconfigured("the key for signatures must be whsec_ and base64") from None
    if not 24 <= len(raw) <= 64:
        raise Misconfigured("the key for signatures must have 24 to 64 bytes, in base64")
    signed = f"{message_id}.{unix_seconds}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(raw, signed, hashlib.sha256).digest()).decode()


def version_4(message: Message, context: MessageContext) -> dict[str, Any]:
    """Return the document: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config."""
    alerts = message.alerts
    return {
        "version": "4",
        "schema": SCHEMA,
        "simulated": context.simulated,
        "headline": headline(message, context),
        "incident": None if message.incident is None else incident_document(message.incident),
        "digest": [
            {
                "headline": one.headline,
                "messages": one.messages,
                "status": str(Status.RESOLVED if one.is_over else Status.FIRING),
            }
            for one in message.digest
        ],
        **({} if message.report is None else {"report": message.report._asdict()}),
        "groupKey": message.group,
        "truncatedAlerts": 0,
        "status": str(message.status),
        "receiver": message.receiver,
        "groupLabels": dict(message.group_labels),
        "commonLabels": common_items([alert.labels for alert in alerts]),
        "commonAnnotations": common_items([shown_annotations(alert) for alert in alerts]),
        "externalURL": context.external_url,
        "alerts": [_alert(alert, context) for alert in alerts],
    }


def incident_document(incident: Incident) -> dict[str, Any]:
    """Return an incident with what is said of it, ready for JSON."""
    said = incident.briefing
    return {
        "key": incident.key,
        "kind": str(incident.kind),
        "severity": incident.severity,
        "status": str(Status.RESOLVED if incident.is_over else Status.FIRING),
        "news": str(incident.news),
        "labels": dict(incident.labels),
        "startsAt": rfc3339(incident.starts_at),
        "endsAt": None if incident.ends_at is None else rfc3339(incident.ends_at),
        "headline": said.headline,
        "numbers": said.numbers,
        "holders": [
            {"pid": one.pid, "process": one.process, "user": one.user, "used_bytes": one.used_bytes}
            for one in said.holders
        ],
        "culprit": said.culprit,
        "remedies": list(said.remedies),
        "next_command": said.next_command,
        "silence_command": said.silence_command,
        "links": dict(said.links),
        "end_reason": said.end_reason,
    }


def _alert(alert: Alert, context: MessageContext) -> dict[str, Any]:
    begins, ends = condition_times(alert)  # as those of the incident: neither `for` nor `keep_firing_for` is a part
    return {
        "status": str(alert.status),
        "labels": dict(alert.labels),
        "annotations": shown_annotations(alert),
        "startsAt": rfc3339(begins),
        "endsAt": _NEVER if alert.ends_at is None else rfc3339(alert.ends_at if ends is None else ends),
        "notTrueSince": None if alert.true_until is None else rfc3339(alert.true_until),
        "keptUntil": None if alert.kept_until is None else rfc3339(alert.kept_until),
        "generatorURL": context.external_url,
        "fingerprint": alert.fingerprint,
    }
