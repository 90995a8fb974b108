"""What receivers of every kind have in common: what makes one, an attempt that raises nothing, and the test message."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from gpuagent_alerts.alert import Alert, Briefing, CauseKind, Incident, Message, News, Status
from gpuagent_alerts.masker import Masker
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, DeliveryPace, MessageContext, Reason, Sender
from gpuagent_alerts.notify.outbox.entry import message_id
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.secret import HiddenText, Misconfigured, Secret

if TYPE_CHECKING:  # Apprise's own process needs neither the HTTP client nor the store
    from gpuagent.core.clock import Clock
    from gpuagent_alerts.notify.receivers.http import HttpClient
    from gpuagent_alerts.store.database import Store

log = logging.getLogger(__name__)

TEST_ALERTNAME = "GpuagentTest"

ConfigT = TypeVar("ConfigT")


class ReceiverConfig(Protocol):
    """A receiver's section of the configuration; of the keys that are named like kinds exactly one is set."""

    @property
    def name(self) -> str: ...

    @property
    def send_resolved(self) -> bool: ...

    @property
    def max_messages_per_hour(self) -> int: ...


class UrlConfig(Protocol):
    """Configuration of what is reached by a URL, given or in a file."""

    @property
    def url(self) -> str | HiddenText | None: ...

    @property
    def url_file(self) -> Path | None: ...


class Transport(Protocol):
    """One way to send a message."""

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Try once. Raises Misconfigured."""
        ...


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. Neither the URL nor the headers are ever shown."""

    url: str = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "POST"
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets of this request besides the URL and those that the masker knows."""


PictureOf = Callable[[Incident], Awaitable[bytes]]
"""Draws an incident for a message, as PNG; nothing where there is no picture of it."""


async def no_picture(incident: Incident) -> bytes:  # noqa: ARG001
    """Return that there is no picture."""
    return b""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What all receivers share."""

    http: HttpClient
    clock: Clock
    masker: Masker = field(default_factory=Masker)
    """Hides secrets in what programs write."""
    store: Store | None = None
    """Store of what receivers must not forget; None: they forget with the process."""
    api_urls: Mapping[str, str] = field(default_factory=dict)
    """Addresses that replace those of services' APIs, by kind."""
    picture_of: PictureOf = no_picture


class ReceiverKind(ABC, Generic[ConfigT]):
    """One kind of receiver: how its part of the configuration becomes something that sends."""

    name: ClassVar[str]
    """Key of the configuration."""
    settings: ClassVar[type]
    """Its part of the configuration: a frozen dataclass of `settings.key`, whose docstring is in the reference."""
    exactly_one: ClassVar[tuple[str, ...]] = ()
    """Keys of which exactly one has to be given."""

    def faults(self, given: Mapping[str, object]) -> Iterable[tuple[str, str]]:  # noqa: ARG002
        """Return what is wrong between the keys that were given: a key, and the fault in words."""
        return ()

    def value_problem(self, key: str, text: str) -> str:  # noqa: ARG002
        """Return why a text cannot be the value of a key, without the text; "" where nothing is known against it.

        The content of a file `KEY_file` is asked about as the value of `KEY`. Web URLs are looked at for every kind.
        """
        return ""

    @abstractmethod
    def address(self, config: ConfigT) -> Secret | None:
        """Return where its messages go: a URL, or the key that stands for it; None where it has neither."""

    @abstractmethod
    def transport(self, config: ConfigT, receiver: str, shared: Dependencies) -> Transport | None:
        """Return what sends the messages of a receiver of this name; None for a kind that takes no messages."""

    def pace(self, config: ConfigT) -> DeliveryPace:  # noqa: ARG002
        """Return what it can bear: by default messages at once, one by one, for a day."""
        return DeliveryPace()

    def recipient(self, receiver: ReceiverConfig) -> Recipient | None:
        """Return what routing has to know of a receiver; None for a kind that takes no messages."""
        return Recipient(
            receiver.name,
            send_resolved=receiver.send_resolved,
            max_messages_per_hour=receiver.max_messages_per_hour,
        )

    def secrets(self, config: ConfigT) -> Iterable[Secret]:
        """Return every secret that stands in a key of its own or in a file."""
        address = self.address(config)
        return () if address is None else (address,)

    def secret_arguments(self, config: ConfigT) -> Iterable[str]:  # noqa: ARG002
        """Return what looks like a secret in a command line."""
        return ()


def url_of(config: UrlConfig) -> Secret:
    """Return the URL of a section that has one."""
    return Secret("URL", config.url, config.url_file)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of any kind, as the outbox sees it: an attempt that raises nothing."""

    name: str
    transport: Transport = field(repr=False)
    pace: DeliveryPace = field(default_factory=DeliveryPace)
    address: Secret | None = None
    """Its URL or key; None of what has none."""

    def address_hash(self) -> str:
        """Return a hash of the address as it is now; "" where its file cannot be read."""
        try:
            address = self.address.read() if self.address is not None else ""
        except Misconfigured:
            return ""
        return hashlib.sha256(f"{self.name}\0{address}".encode("utf-8", "replace")).hexdigest()

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Try once. Whatever goes wrong is an outcome, whose text holds no secret."""
        try:
            return await self.transport.send(message, context)
        except Misconfigured as error:
            return DeliveryOutcome(Reason.MISCONFIGURED, str(error))
        except Exception as error:  # noqa: BLE001 (one receiver must not cost the others)
            # The text and the trace may hold an address.
            log.error("the receiver %s has a fault: %s", self.name, type(error).__name__)  # noqa: TRY400
            return DeliveryOutcome(Reason.FAULT, f"a fault in the agent: {type(error).__name__}")


async def send_test_message(receiver: Sender, context: MessageContext) -> DeliveryOutcome:
    """Send an alert, and at once its end, so that nothing stays open; the first failure counts."""
    labels = {"alertname": TEST_ALERTNAME, "severity": "info", "instance": context.node}
    annotations = {
        "summary": "A test of this receiver by gpuagent.",
        "description": "Somebody asked for it. Nothing is wrong, and nothing is to be done.",
        "resolved_summary": "The test of this receiver",
    }
    fires = Alert(labels, annotations, Status.FIRING, context.now, None, 1.0)
    group = f'{{instance="{context.node}"}}:{TEST_ALERTNAME}'
    name = message_id(context.now)
    begun = Briefing(f"INFO {context.node}: a test of this receiver by gpuagent: nothing is wrong")
    incident = Incident(f"test-{name}", CauseKind.RECEIVER, labels, "info", context.now, briefing=begun)
    outcome = await receiver.send(Message(name, receiver.name, group, (fires,), labels, incident), context)
    if not outcome.ok:
        return outcome
    ended = replace(fires, status=Status.RESOLVED, ends_at=context.now, end_reason="nothing was wrong")
    over = Briefing(
        f"RESOLVED {context.node}: the test of this receiver is over: nothing was wrong", end_reason=ended.end_reason
    )
    incident = replace(incident, ends_at=context.now, news=News.ENDED, briefing=over)
    name = message_id(context.now)
    return await receiver.send(Message(name, receiver.name, group, (ended,), labels, incident), context)
