"""What a receiver's configuration looks like from here. The agent's models fit; these packages do not know them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gpuagent_alerts.receivers.secret import Hidden


class UrlConfig(Protocol):
    """Reached by a URL, given or in a file."""

    @property
    def url(self) -> str | Hidden | None: ...

    @property
    def url_file(self) -> Path | None: ...


class WebhookConfig(UrlConfig, Protocol):
    """JSON by POST."""

    @property
    def secret_file(self) -> Path | None: ...


class SlackConfig(UrlConfig, Protocol):
    """Slack: by an incoming webhook, or by a bot's token."""

    @property
    def token_file(self) -> Path | None: ...

    @property
    def channel(self) -> str | None: ...


class PagerdutyConfig(Protocol):
    """PagerDuty."""

    @property
    def routing_key(self) -> str | Hidden | None: ...

    @property
    def routing_key_file(self) -> Path | None: ...


class ExecConfig(Protocol):
    """A program."""

    @property
    def command(self) -> tuple[str, ...]: ...

    @property
    def timeout(self) -> float: ...


class HeartbeatConfig(UrlConfig, Protocol):
    """A URL that is called."""

    @property
    def interval(self) -> float: ...


class ReceiverConfig(Protocol):
    """A receiver: exactly one of the kinds is set."""

    @property
    def name(self) -> str: ...

    @property
    def send_resolved(self) -> bool: ...

    @property
    def max_messages_per_hour(self) -> int: ...

    @property
    def webhook(self) -> WebhookConfig | None: ...

    @property
    def slack(self) -> SlackConfig | None: ...

    @property
    def alertmanager(self) -> UrlConfig | None: ...

    @property
    def pagerduty(self) -> PagerdutyConfig | None: ...

    @property
    def exec(self) -> ExecConfig | None: ...

    @property
    def apprise(self) -> UrlConfig | None: ...

    @property
    def heartbeat(self) -> HeartbeatConfig | None: ...
