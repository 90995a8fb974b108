"""An Alertmanager, by `POST /api/v2/alerts`.

It forgets an alert at its `endsAt`, so one that fires has to be told again and again, and one that has ended for a
while: that is for the caller to do. Both times are always given, as with `endsAt` alone the alert would begin in the
future; and all annotations always, as they replace what was told before.

A 400 does not mean that nothing happened: of several alerts in one request it stores the good ones. A message for an
Alertmanager therefore has one alert; where several messages were sent as one, a refusal is tried again one by one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuagent_alerts.alert import Alert, Message, shown_annotations
from gpuagent_alerts.notify.outbox.attempt import DAY_SECONDS, DeliveryOutcome, DeliveryPace, MessageContext
from gpuagent_alerts.notify.receivers.base import Dependencies, HttpRequest, ReceiverConfig, ReceiverKind, url_of
from gpuagent_alerts.notify.receivers.settings import URL_KEYS, KeyType, key, url_file
from gpuagent_alerts.notify.receivers.text import rfc3339
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.secret import HiddenText, Secret

if TYPE_CHECKING:
    from gpuagent_alerts.notify.receivers.http import HttpClient

RESEND_SECONDS = 60.0
RESOLVED_FOR_SECONDS = 300.0
"""Time for which a resolve is repeated: an Alertmanager that was restarting has to hear it too."""
HOLDS_SECONDS = 5 * RESEND_SECONDS
"""Time after which Alertmanager ends an alert of which it hears no more."""


@dataclass(frozen=True, slots=True)
class AlertmanagerConfig:
    """An Alertmanager, which then groups and notifies."""

    url: str | HiddenText | None = key(KeyType.WEB_URL, "Its address, without `/api`.", default=None, shown=False)
    url_file: Path | None = url_file()


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """Posts to an Alertmanager, whose address is without `/api`."""

    http: HttpClient
    url: Secret

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Post the alerts. Raises Misconfigured."""
        url = self.url.line().rstrip("/") + "/api/v2/alerts"
        body = json.dumps([alert_document(alert, context) for alert in message.alerts]).encode()
        return await self.http.send(HttpRequest(url, body, {"Content-Type": "application/json"}))


_API_PATH = re.compile(r"/api(?:/|$)", re.ASCII)


class AlertmanagerKind(ReceiverKind[AlertmanagerConfig]):
    """Alertmanagers."""

    name = "alertmanager"
    settings = AlertmanagerConfig
    exactly_one = URL_KEYS

    def value_problem(self, key: str, text: str) -> str:
        """Return whether the URL is that of the API, and not that of the Alertmanager."""
        if key == "url" and _API_PATH.search(urlsplit(text).path):
            return "the address of an Alertmanager ends before /api: the agent adds that"
        return ""

    def address(self, config: AlertmanagerConfig) -> Secret:
        """Return its URL."""
        return url_of(config)

    def transport(self, config: AlertmanagerConfig, receiver: str, shared: Dependencies) -> Alertmanager:  # noqa: ARG002
        """Return what posts to it."""
        return Alertmanager(shared.http, url_of(config))

    def pace(self, config: AlertmanagerConfig) -> DeliveryPace:  # noqa: ARG002
        """Return that many alerts may go as one, for a week."""
        return DeliveryPace(batch=64, max_age_seconds=7 * DAY_SECONDS)

    def recipient(self, receiver: ReceiverConfig) -> Recipient:
        """Return that it groups and repeats by itself, and has to be kept informed for that."""
        return Recipient(
            receiver.name,
            send_resolved=receiver.send_resolved,
            one_by_one=True,
            everything=True,
            repeat_seconds=RESEND_SECONDS,
            resolved_for_seconds=RESOLVED_FOR_SECONDS,
        )


def alert_document(alert: Alert, context: MessageContext) -> dict[str, Any]:
    """Return one alert, as https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml has it."""
    if alert.ends_at is None:
        ends_at = max(context.now, alert.starts_at) + HOLDS_SECONDS
    else:
        ends_at = min(alert.ends_at, context.now)  # in the future it would be firing
    document = {
        "labels": dict(alert.labels),
        "annotations": shown_annotations(alert),
        "startsAt": rfc3339(min(alert.starts_at, ends_at)),
        "endsAt": rfc3339(ends_at),
    }
    return document | ({"generatorURL": context.external_url} if context.external_url else {})
