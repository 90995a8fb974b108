"""Receivers from their configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuagent.clock import Clock
from gpuagent_alerts.outbox.sender import DAY_SECONDS, Pace
from gpuagent_alerts.receivers.alertmanager import RESEND_SECONDS, RESOLVED_FOR_SECONDS, Alertmanager
from gpuagent_alerts.receivers.apprise import Apprise
from gpuagent_alerts.receivers.config import HeartbeatConfig, ReceiverConfig, UrlConfig
from gpuagent_alerts.receivers.exec import Exec
from gpuagent_alerts.receivers.heartbeat import Heartbeat
from gpuagent_alerts.receivers.http import Http
from gpuagent_alerts.receivers.pagerduty import EVENTS_URL, Pagerduty
from gpuagent_alerts.receivers.receiver import Kind, Receiver
from gpuagent_alerts.receivers.secret import Secret
from gpuagent_alerts.receivers.slack import Slack
from gpuagent_alerts.receivers.webhook import Webhook
from gpuagent_alerts.routing.route import Recipient

_PACES = {
    # One message per second and channel; what waits meanwhile goes together.
    "slack": Pace(min_interval_seconds=1.0, batch=10),
    "alertmanager": Pace(batch=64, max_age_seconds=7 * DAY_SECONDS),
    # An incident that stays open for ever is worse than a late message.
    "pagerduty": Pace(max_age_seconds=7 * DAY_SECONDS),
}
"""Of the other kinds: at once, one by one, for a day."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes receivers that share one HTTP client."""

    http: Http
    clock: Clock
    credentials: Path | None = None
    """systemd's $CREDENTIALS_DIRECTORY: relative `*_file` are below it."""
    pagerduty_url: str = EVENTS_URL

    def receiver(self, config: ReceiverConfig) -> Receiver | None:
        """What sends messages; None of a heartbeat, which takes none. Raises ValueError if no kind is set."""
        kind = self._web(config) or self._other(config)
        return None if kind is None else Receiver(config.name, kind, _PACES.get(kind_of(config), Pace()))

    def _web(self, config: ReceiverConfig) -> Kind | None:
        if config.webhook is not None:
            keys = self._file("key for signatures", config.webhook.secret_file)
            return Webhook(self.http, self._url(config.webhook), keys)
        if config.slack is not None:
            return Slack(self.http, self._url(config.slack))
        if config.alertmanager is not None:
            return Alertmanager(self.http, self._url(config.alertmanager))
        if config.pagerduty is not None:
            given, file = config.pagerduty.routing_key, config.pagerduty.routing_key_file
            return Pagerduty(self.http, Secret("routing key", given, file, self.credentials), self.pagerduty_url)
        return None

    def _other(self, config: ReceiverConfig) -> Kind | None:
        if config.exec is not None:
            return Exec(config.exec.command, config.exec.timeout)
        if config.apprise is not None:
            return Apprise(self._url(config.apprise))
        kind_of(config)
        return None

    def heartbeat(self, config: ReceiverConfig, alive: Callable[[], bool]) -> Heartbeat | None:
        """What calls a URL; None of every other kind."""
        beat: HeartbeatConfig | None = config.heartbeat
        if beat is None:
            return None
        return Heartbeat(config.name, self.http, self._url(beat), beat.interval, self.clock, alive)

    def _url(self, config: UrlConfig) -> Secret:
        return Secret("URL", config.url, config.url_file, self.credentials)

    def _file(self, what: str, file: Path | None) -> Secret | None:
        return None if file is None else Secret(what, None, file, self.credentials)


def recipient(config: ReceiverConfig) -> Recipient | None:
    """What routing has to know of a receiver; None of a heartbeat."""
    if config.heartbeat is not None:
        return None
    if config.alertmanager is not None:
        # It groups and repeats by itself, and has to be kept informed for that.
        return Recipient(
            config.name,
            send_resolved=config.send_resolved,
            one_by_one=True,
            everything=True,
            repeat_seconds=RESEND_SECONDS,
            resolved_for_seconds=RESOLVED_FOR_SECONDS,
        )
    return Recipient(config.name, send_resolved=config.send_resolved)


def kind_of(config: ReceiverConfig) -> str:
    """The kind that is set. Raises ValueError if none is."""
    kinds = ("webhook", "slack", "alertmanager", "pagerduty", "exec", "apprise", "heartbeat")
    for kind in kinds:
        if getattr(config, kind) is not None:
            return kind
    raise ValueError(f"the receiver {config.name} has no kind")
