"""The kinds of receivers there are, and receivers from their configuration.

A kind is one module, with its keys of the configuration in it, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gpuagent_alerts.notify.receivers.alertmanager import AlertmanagerKind
from gpuagent_alerts.notify.receivers.apprise import AppriseKind
from gpuagent_alerts.notify.receivers.base import Dependencies, Receiver, ReceiverConfig, ReceiverKind
from gpuagent_alerts.notify.receivers.exec import ExecKind
from gpuagent_alerts.notify.receivers.heartbeat import Heartbeat, HeartbeatKind
from gpuagent_alerts.notify.receivers.pagerduty import PagerdutyKind
from gpuagent_alerts.notify.receivers.slack import SlackKind
from gpuagent_alerts.notify.receivers.webhook import WebhookKind
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.secret import Secret

KINDS: Mapping[str, ReceiverKind[Any]] = {
    kind.name: kind
    for kind in (
        WebhookKind(),
        SlackKind(),
        AlertmanagerKind(),
        PagerdutyKind(),
        ExecKind(),
        AppriseKind(),
        HeartbeatKind(),
    )
}


def kind_of(receiver: ReceiverConfig) -> str:
    """Return the kind that is set. Raises ValueError if none is."""
    for kind in KINDS:
        if getattr(receiver, kind) is not None:
            return kind
    raise ValueError(f"the receiver {receiver.name} has no kind")


def build_receiver(receiver: ReceiverConfig, shared: Dependencies) -> Receiver | None:
    """Return what sends messages; None for a heartbeat, which takes none. Raises ValueError if no kind is set."""
    kind, config = _kind(receiver)
    transport = kind.transport(config, receiver.name, shared)
    if transport is None:
        return None
    return Receiver(receiver.name, transport, kind.pace(config), kind.address(config))


def build_heartbeat(receiver: ReceiverConfig, shared: Dependencies, alive: Callable[[], bool]) -> Heartbeat | None:
    """Return what calls a URL; None for every other kind. Raises ValueError if no kind is set."""
    kind, config = _kind(receiver)
    return kind.heartbeat(config, receiver.name, shared, alive) if isinstance(kind, HeartbeatKind) else None


def recipient_of(receiver: ReceiverConfig) -> Recipient | None:
    """Return what routing has to know of a receiver; None for a heartbeat. Raises ValueError if no kind is set."""
    return _kind(receiver)[0].recipient(receiver)


def secrets_of(receivers: Iterable[ReceiverConfig]) -> Iterator[Secret]:
    """Yield every secret of these receivers that stands in a key of its own or in a file."""
    for receiver in receivers:
        kind, config = _kind(receiver)
        yield from kind.secrets(config)


def secret_arguments_of(receivers: Iterable[ReceiverConfig]) -> Iterator[str]:
    """Yield what looks like a secret in the command lines of these receivers."""
    for receiver in receivers:
        kind, config = _kind(receiver)
        yield from kind.secret_arguments(config)


def _kind(receiver: ReceiverConfig) -> tuple[ReceiverKind[Any], Any]:
    """Return a receiver's kind, and the section of the configuration for it."""
    name = kind_of(receiver)
    return KINDS[name], getattr(receiver, name)
