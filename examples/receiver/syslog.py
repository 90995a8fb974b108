"""Plain syslog: one line for each message, over UDP (RFC 3164). Nobody confirms it: what is lost is lost."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, MessageContext, Reason
from gpuagent_alerts.notify.receivers.base import Dependencies, ReceiverKind
from gpuagent_alerts.notify.receivers.settings import KeyType, key
from gpuagent_alerts.notify.receivers.text import headline, severity_of

_DAEMON = 3 << 3  # the facility
_SEVERITIES = {"critical": 2, "warning": 4}
_NOTICE = 5


@dataclass(frozen=True, slots=True)
class SyslogConfig:
    """A syslog daemon, by UDP: one line for each message."""

    host: str = key(KeyType.TEXT, "The host that listens.")
    port: int = key(KeyType.NUMBER, "Its UDP port.", default=514, least=1, most=65535)


@dataclass(frozen=True, slots=True)
class Syslog:
    """Sends lines."""

    host: str
    port: int

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Send one line. Only an address that cannot be found or reached is a failure."""
        severity = _SEVERITIES.get(severity_of(message), _NOTICE)
        line = f"<{_DAEMON | severity}>gpuagent: {headline(message, context)}"
        try:
            await asyncio.to_thread(self._send, line.encode())
        except OSError as error:
            return DeliveryOutcome(Reason.FAILED, str(error))
        return DELIVERED

    def _send(self, line: bytes) -> None:
        family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.sendto(line, address)


class SyslogKind(ReceiverKind[SyslogConfig]):
    """Syslog daemons."""

    name = "syslog"
    settings = SyslogConfig

    def address(self, config: SyslogConfig) -> None:
        """Return None: it has no secret."""

    def transport(self, config: SyslogConfig, receiver: str, shared: Dependencies) -> Syslog:  # noqa: ARG002
        """Return what sends lines."""
        return Syslog(config.host, config.port)
