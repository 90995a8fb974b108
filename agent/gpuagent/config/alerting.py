"""Who is told: receivers and the routes to them.

The keys of each kind of receiver are declared beside what sends; the models are made from them.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

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
from gpuagent_alerts.notify.receivers.base import ReceiverKind
from gpuagent_alerts.notify.receivers.registry import KINDS
from gpuagent_alerts.notify.receivers.settings import KeyOfSettings, KeyType, keys_of

_NO_KINDS = frozenset({"name", "send_resolved", "max_messages_per_hour"})


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


_TYPES: Mapping[KeyType, Any] = {
    KeyType.TEXT: Text,
    KeyType.TEXTS: tuple[Text, ...],
    KeyType.NUMBER: int,
    KeyType.FLAG: bool,
    KeyType.DURATION: Duration,
    KeyType.WEB_URL: WebUrl,
    KeyType.SECRET_WEB_URL: SecretWebUrl,
    KeyType.SECRET_URL: SecretUrl,
    KeyType.SECRET_TEXT: SecretTextValue,
    KeyType.SECRET_FILE: SecretFilePath,
}


def _section_of(kind: ReceiverKind[Any]) -> type[Section]:
    """Return the model of a kind's settings, which are declared beside what sends (`gpuagent_alerts`)."""

    class Settings(Section):
        @classmethod
        def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
            if kind.exactly_one:
                yield from cls.exactly_one(given, kind.exactly_one)
            for name, text in kind.faults(given):
                yield Problem((name,), text)

    keys = {name: _declared(each) for name, each in keys_of(kind.settings)}
    return _made(f"{kind.name.capitalize()}Receiver", Settings, kind.settings.__doc__, keys)


def _declared(of_settings: KeyOfSettings) -> tuple[Any, Any]:
    """Return a key's annotation, and the key."""
    annotation, default = _TYPES[of_settings.type], of_settings.default
    declared = key(
        default=default,
        description=of_settings.description,
        ge=of_settings.least,
        le=of_settings.most,
        min_length=1 if of_settings.type is KeyType.TEXTS else 0,
        repr=of_settings.shown,
    )
    return (annotation | None if default is None else annotation), declared


def _made(name: str, base: type[Section], text: str | None, keys: Mapping[str, tuple[Any, Any]]) -> type[Section]:
    """Return a section with these keys, beside those of its base."""
    body = {
        "__doc__": text,
        "__module__": __name__,
        "__annotations__": {each: annotation for each, (annotation, _) in keys.items()},
        **{each: declared for each, (_, declared) in keys.items()},
    }
    return types.new_class(name, (base,), exec_body=lambda namespace: namespace.update(body))


_MAIL = ": mail is sent by apprise"
_OTHER_NAMES = {
    "email": _MAIL, "email_configs": _MAIL, "mail": _MAIL, "smtp": _MAIL,
    **dict.fromkeys(("teams", "msteams", "discord", "telegram"), ": this messenger is reached by apprise"),
}  # fmt: skip


class _Receiver(Section):
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

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """Return the kinds there are."""
        return tuple(name for name in cls.keys if name not in _NO_KINDS)

    @classmethod
    def hint(cls, name: str, given: Mapping[str, object]) -> str:
        """See `Section.hint`; what other programs call a kind of receiver is known by another name here."""
        return _OTHER_NAMES.get(name) or super().hint(name, given)

    @property
    def kind(self) -> str:
        """The one that is set."""
        return next(name for name in self.key_names() if getattr(self, name) is not None)

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        yield from cls.exactly_one(given, cls.key_names())


if TYPE_CHECKING:

    class Receiver(_Receiver):
        """A receiver with a key for each kind."""

        def __getattr__(self, kind: str) -> Any: ...  # noqa: ANN401  its settings, or None

else:
    _SECTIONS = {name: _section_of(kind) for name, kind in KINDS.items()}
    Receiver = _made(
        "Receiver",
        _Receiver,
        _Receiver.__doc__,
        {name: (made | None, key(default=None, description=made.__doc__)) for name, made in _SECTIONS.items()},
    )


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
