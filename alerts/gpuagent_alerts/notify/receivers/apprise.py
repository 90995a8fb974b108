"""Whatever Apprise can reach (https://github.com/caronc/apprise), e-mail included; an optional package.

It runs in a process of its own, which has neither the proxies of the environment nor a way to hold up the agent: a mail
server that hangs is ended with it. The address goes through its standard input, where no other process can see it.
"""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, MessageContext, Reason
from gpuagent_alerts.notify.receivers.addresses import is_forbidden
from gpuagent_alerts.notify.receivers.base import Dependencies, PictureOf, ReceiverKind, no_picture, url_of
from gpuagent_alerts.notify.receivers.settings import URL_KEYS, KeyType, key, url_file
from gpuagent_alerts.notify.receivers.text import headline, is_over, plain_text
from gpuagent_alerts.programs.run import run_program
from gpuagent_alerts.secret import HiddenText, Secret

_TIMEOUT_SECONDS = 30.0
"""A mail server may take its time; loading Apprise alone takes a second."""
PROGRAM = "gpuagent_alerts.notify.receivers.apprise"
"""This module, run as a program, with its request as JSON on its standard input."""
_NOT_DELIVERED = 3
_NOT_INSTALLED = 4
BAD_ADDRESS = 5


@dataclass(frozen=True, slots=True)
class AppriseConfig:
    """Anything that Apprise can reach, e-mail included."""

    url: str | HiddenText | None = key(KeyType.SECRET_URL, "The address in Apprise's notation.", default=None)
    url_file: Path | None = url_file()


@dataclass(frozen=True, slots=True)
class Apprise:
    """Tells one address in Apprise's notation."""

    url: Secret
    timeout_seconds: float = _TIMEOUT_SECONDS
    picture_of: PictureOf = no_picture

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Run Apprise once. Raises Misconfigured."""
        request = {
            "url": self.url.line(),
            "title": headline(message, context),
            "body": plain_text(message, context),
            "type": _type_of(message),
            "format": "text" if message.report is None else message.report.format,
        }
        picture = b"" if message.incident is None else await self.picture_of(message.incident)
        if picture:
            request["picture"] = base64.b64encode(picture).decode("ascii")
        command = (sys.executable, "-I", "-m", PROGRAM)
        finished = await run_program(command, json.dumps(request).encode(), self.timeout_seconds)
        if finished.status == 0:
            return DELIVERED
        if finished.status is None:
            return DeliveryOutcome(Reason.TIMED_OUT, "it did not answer in time")
        if finished.status == _NOT_INSTALLED:
            return DeliveryOutcome(
                Reason.MISCONFIGURED, "the package apprise is not installed: pip install gpuagent[apprise]"
            )
        if finished.status == BAD_ADDRESS:
            return DeliveryOutcome(Reason.MISCONFIGURED, "Apprise does not know this kind of address")
        return DeliveryOutcome(Reason.FAILED, "Apprise could not deliver it")  # what it says may hold the address


def _type_of(message: Message) -> str:
    if message.report is not None:
        return "info"
    return "success" if is_over(message) else "failure"


class AppriseKind(ReceiverKind[AppriseConfig]):
    """Addresses in Apprise's notation."""

    name = "apprise"
    settings = AppriseConfig
    exactly_one = URL_KEYS

    def address(self, config: AppriseConfig) -> Secret:
        """Return the address."""
        return url_of(config)

    def transport(self, config: AppriseConfig, receiver: str, shared: Dependencies) -> Apprise:  # noqa: ARG002
        """Return what runs Apprise."""
        return Apprise(url_of(config), picture_of=shared.picture_of)


def notify(request: Mapping[str, str]) -> int:
    """Tell one address through Apprise, or with `check` only look at it; return the exit status."""
    try:
        import apprise  # noqa: PLC0415 (optional)
    except ImportError:
        return _NOT_INSTALLED
    sys.addaudithook(refuse_forbidden)
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    # A redirect would be followed as a GET, and the message lost.
    sender = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
    if not sender.add(_without_redirects(request["url"])):
        return BAD_ADDRESS
    if request.get("check"):
        return 0
    told = sender.notify(
        title=request["title"], body=request["body"], notify_type=request["type"], body_format=request["format"],
        attach=_attached(request.get("picture", "")),
    )  # fmt: skip
    return 0 if told else _NOT_DELIVERED


def _attached(picture: str) -> object:
    """Return what Apprise attaches where a service takes it; None without a picture."""
    if not picture:
        return None
    from apprise.attachment.memory import AttachMemory  # noqa: PLC0415 (optional)

    attachment: object = AttachMemory(  # type: ignore[no-untyped-call]
        base64.b64decode(picture), name="memory.png", mimetype="image/png"
    )
    return attachment


def refuse_forbidden(event: str, arguments: tuple[object, ...]) -> None:
    """Audit connections: whatever Apprise makes of a name, none leads to a link-local address."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if isinstance(address, tuple) and isinstance(address[0], str) and _is_known_to_be_forbidden(address[0]):
        raise PermissionError("a link-local address")


def _is_known_to_be_forbidden(address: str) -> bool:
    try:
        return is_forbidden(address)
    except ValueError:
        return False


def _without_redirects(url: str) -> str:
    """Refuse redirects, also where the address itself asks for them: of two settings the last one counts."""
    return f"{url}{'&' if '?' in url else '?'}redirect=no"


if __name__ == "__main__":
    sys.exit(notify(json.load(sys.stdin)))
