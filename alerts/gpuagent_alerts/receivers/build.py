"""Receivers from their configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gpuagent.core.clock import Clock
from gpuagent_alerts.outbox.sender import DAY_SECONDS, Pace
from gpuagent_alerts.receivers.alertmanager import RESEND_SECONDS, RESOLVED_FOR_SECONDS, Alertmanager
from gpuagent_alerts.receivers.apprise import Apprise
from gpuagent_alerts.receivers.config import HeartbeatConfig, ReceiverConfig, UrlConfig
from gpuagent_alerts.receivers.exec import Exec
from gpuagent_alerts.receivers.heartbeat import Heartbeat
from gpuagent_alerts.receivers.http import Http
from gpuagent_alerts.receivers.masker import Masker
from gpuagent_alerts.receivers.pagerduty import EVENTS_URL, Pagerduty
from gpuagent_alerts.receivers.receiver import Kind, Receiver
from gpuagent_alerts.receivers.secret import Secret
from gpuagent_alerts.receivers.secret_forms import argument_secrets
from gpuagent_alerts.receivers.slack import API_URL, Slack, SlackBot
from gpuagent_alerts.receivers.slack_threads import MemoryThreads, Threads
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
_SLACK_BOT = Pace(min_interval_seconds=1.0)
"""Each message has a thread of its own to go to."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes receivers that share one HTTP client."""

    http: Http
    clock: Clock
    pagerduty_url: str = EVENTS_URL
    slack_url: str = API_URL
    threads: Threads = field(default_factory=MemoryThreads)
    """Where the roots of Slack's threads are kept."""
    masker: Masker = field(default_factory=Masker)
    """Hides secrets in what programs write."""

    def receiver(self, config: ReceiverConfig) -> Receiver | None:
        """What sends messages; None of a heartbeat, which takes none. Raises ValueError if no kind is set."""
        address = _address(config)
        kind = self._web(config, address) if address is not None else None
        if kind is None and config.exec is not None:
            kind = Exec(config.exec.command, config.exec.timeout, self.masker)
        pace = _SLACK_BOT if isinstance(kind, SlackBot) else _PACES.get(kind_of(config), Pace())
        return None if kind is None else Receiver(config.name, kind, pace, address)

    def _web(self, config: ReceiverConfig, address: Secret) -> Kind | None:
        if config.webhook is not None:
            return Webhook(self.http, address, _signing_key(config))
        if config.slack is not None:
            if config.slack.token_file is not None:
                return SlackBot(
                    self.http, address, config.name, config.slack.channel or "", self.threads, self.slack_url
                )
            return Slack(self.http, address)
        if config.alertmanager is not None:
            return Alertmanager(self.http, address)
        if config.pagerduty is not None:
            return Pagerduty(self.http, address, self.pagerduty_url)
        return Apprise(address) if config.apprise is not None else None

    def heartbeat(self, config: ReceiverConfig, alive: Callable[[], bool]) -> Heartbeat | None:
        """What calls a URL; None of every other kind."""
        beat: HeartbeatConfig | None = config.heartbeat
        url = _heartbeat_url(config)
        if beat is None or url is None:
            return None
        return Heartbeat(config.name, self.http, url, beat.interval, self.clock, alive)


def _address(config: ReceiverConfig) -> Secret | None:
    """Where its messages go: a URL, or the key that stands for it."""
    if config.pagerduty is not None:
        return Secret("routing key", config.pagerduty.routing_key, config.pagerduty.routing_key_file)
    if config.slack is not None and config.slack.token_file is not None:
        return Secret("token", None, config.slack.token_file)
    urls: tuple[UrlConfig | None, ...] = (config.webhook, config.slack, config.alertmanager, config.apprise)
    return next((Secret("URL", one.url, one.url_file) for one in urls if one is not None), None)


def _heartbeat_url(config: ReceiverConfig) -> Secret | None:
    beat = config.heartbeat
    return None if beat is None else Secret("URL", beat.url, beat.url_file)


def _signing_key(config: ReceiverConfig) -> Secret | None:
    file = None if config.webhook is None else config.webhook.secret_file
    return None if file is None else Secret("key for signatures", None, file)


def secrets_of(configs: Iterable[ReceiverConfig]) -> Iterator[Secret]:
    """Yield every secret of these receivers that stands in a key of its own or in a file."""
    for config in configs:
        for secret in (_address(config), _heartbeat_url(config), _signing_key(config)):
            if secret is not None:
                yield secret


def secret_arguments(configs: Iterable[ReceiverConfig]) -> Iterator[str]:
    """Yield what looks like a secret in the command lines of these receivers."""
    for config in configs:
        if config.exec is not None:
            yield from argument_secrets(config.exec.command)


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
    return Recipient(
        config.name,
        send_resolved=config.send_resolved,
        max_messages_per_hour=config.max_messages_per_hour,
        digests=config.pagerduty is None,
    )


def kind_of(config: ReceiverConfig) -> str:
    """The kind that is set. Raises ValueError if none is."""
    kinds = ("webhook", "slack", "alertmanager", "pagerduty", "exec", "apprise", "heartbeat")
    for kind in kinds:
        if getattr(config, kind) is not None:
            return kind
    raise ValueError(f"the receiver {config.name} has no kind")
