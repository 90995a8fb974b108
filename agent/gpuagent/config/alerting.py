"""Who is told: receivers and the routes to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from gpuagent.config.values import (
    Duration,
    LabelName,
    MatcherText,
    PublicUrl,
    SecretFilePath,
    SecretTextValue,
    SecretUrl,
    SecretWebUrl,
    Text,
    UrlTemplate,
    WebUrl,
)
from gpuagent.core.problems import Problem
from gpuagent.core.sections import Section, key

_NO_KINDS = frozenset({"name", "send_resolved", "max_messages_per_hour"})
_URL_KEYS = ("url", "url_file")
_URL_FILE = "Instead of `url`: a file that holds it and nothing else, read anew at every use."


class _HasUrl(Section):
    """A receiver that is reached by a URL, given or in a file."""

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, _URL_KEYS)


class MessageLinks(Section):
    """Where messages lead to, beside the agent's own page."""

    grafana: UrlTemplate | None = key(
        default=None,
        description="A board. `{node}`, `{gpu}` (its index), `{uuid}` and `{pid}` are filled in; one that an incident "
        "does not have, or has several of, is empty.",
    )
    runbook: PublicUrl | None = key(
        default=None,
        description="Where your copy of the runbooks is: what stands before `ALERT.md` in the annotation `runbook_url` "
        "of the shipped rules. By default the project's own pages.",
    )


class WebhookReceiver(_HasUrl):
    """JSON by POST, in the form of Alertmanager's webhook (version 4)."""

    url: SecretWebUrl | None = key(default=None, description="Where to post to.")
    url_file: SecretFilePath | None = key(default=None, description=_URL_FILE)
    secret_file: SecretFilePath | None = key(
        default=None,
        description="A file with the key that signs each message (Standard Webhooks, `whsec_...`).",
    )


class SlackReceiver(Section):
    """A Slack channel: by its incoming webhook, or by a bot's token, which keeps each incident in one thread."""

    url: SecretWebUrl | None = key(
        default=None,
        description="The URL of the incoming webhook. Better in a file: it is a password.",
    )
    url_file: SecretFilePath | None = key(default=None, description=_URL_FILE)
    token_file: SecretFilePath | None = key(
        default=None,
        description="Instead of a URL: a file with a bot's token (`xoxb-...`) that has the scope `chat:write`. Needs "
        "`channel`.",
    )
    channel: Text | None = key(
        default=None, description="With `token_file`: the channel's id (`C0123456789`). The bot has to be a member."
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, (*_URL_KEYS, "token_file"))
        if given.get("token_file") is not None and not given.get("channel"):
            yield Problem(("token_file",), "needs `channel` beside it: where the bot posts to")
        if given.get("token_file") is None and given.get("channel"):
            yield Problem(("channel",), "goes with `token_file` alone: an incoming webhook has its own channel")


class AlertmanagerReceiver(_HasUrl):
    """An Alertmanager, which then groups and notifies."""

    url: WebUrl | None = key(default=None, repr=False, description="Its address, without `/api`.")
    url_file: SecretFilePath | None = key(default=None, description=_URL_FILE)


class PagerdutyReceiver(Section):
    """PagerDuty by its Events API v2."""

    routing_key: SecretTextValue | None = key(
        default=None, description="The integration key of the service. Better in a file."
    )
    routing_key_file: SecretFilePath | None = key(
        default=None,
        description="Instead of `routing_key`: a file that holds it and nothing else.",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, ("routing_key", "routing_key_file"))


class ExecReceiver(Section):
    """A program of your own: the message as JSON on its standard input. No shell is involved."""

    command: tuple[Text, ...] = key(min_length=1, description="The program and its arguments, one list item each.")
    timeout: Duration = key(default=10.0, ge=1, le=300, description="It is ended when it takes longer than this.")


class AppriseReceiver(_HasUrl):
    """Anything that Apprise can reach, e-mail included."""

    url: SecretUrl | None = key(default=None, description="The address in Apprise's notation.")
    url_file: SecretFilePath | None = key(default=None, description=_URL_FILE)


class HeartbeatReceiver(_HasUrl):
    """A URL that is called again and again: where the calls stop, the node is dead."""

    url: SecretWebUrl | None = key(default=None, description="The URL to call.")
    url_file: SecretFilePath | None = key(default=None, description=_URL_FILE)
    interval: Duration = key(default=60.0, ge=10, le=86400, description="Time between two calls.")


class Receiver(Section):
    """Somebody or something that is told. Each has a name and exactly one kind."""

    key_noun: ClassVar[str] = "receiver kind"

    name: Text = key(description="What routes and commands call it; no two may be the same.")
    send_resolved: bool = key(default=True, description="Also tell when an alert has ended.")
    max_messages_per_hour: int = key(
        default=20,
        ge=2,
        le=100_000,
        description="More than this is held back and told of in one digest. What is critical is sent in any case; an"
        " Alertmanager is told all.",
    )
    webhook: WebhookReceiver | None = key(default=None, description=WebhookReceiver.__doc__)
    slack: SlackReceiver | None = key(default=None, description=SlackReceiver.__doc__)
    alertmanager: AlertmanagerReceiver | None = key(default=None, description=AlertmanagerReceiver.__doc__)
    pagerduty: PagerdutyReceiver | None = key(default=None, description=PagerdutyReceiver.__doc__)
    exec: ExecReceiver | None = key(default=None, description=ExecReceiver.__doc__)
    apprise: AppriseReceiver | None = key(default=None, description=AppriseReceiver.__doc__)
    heartbeat: HeartbeatReceiver | None = key(default=None, description=HeartbeatReceiver.__doc__)

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """Return the kinds there are."""
        return tuple(name for name in cls.keys if name not in _NO_KINDS)

    @property
    def kind(self) -> str:
        """The one that is set."""
        return next(name for name in self.key_names() if getattr(self, name) is not None)

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, cls.key_names())


class Route(Section):
    """Which alerts go to which receivers."""

    match: tuple[MatcherText, ...] = key(
        default=(), description="All of these must hold of the alert's labels; none: every alert."
    )
    receivers: tuple[Text, ...] = key(min_length=1, description="Names of receivers.")
    group_by: tuple[LabelName, ...] = key(
        default=(),
        description="Alerts that agree in these labels share a message; none: those of one incident do.",
    )
    group_wait: Duration = key(
        default=5.0,
        ge=0,
        le=300,
        description="An incident that begins or worsens waits so long for alerts that come with it; what is critical"
        " waits 5 s at most.",
    )
    repeat_interval: Duration = key(
        default=4 * 3600.0,
        ge=60,
        description="An alert that goes on is told again after this time.",
    )
