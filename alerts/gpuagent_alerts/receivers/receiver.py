"""A receiver of any kind, as the outbox sees it: an attempt that raises nothing."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Protocol

from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.outcome import Outcome, Reason
from gpuagent_alerts.outbox.sender import Context, Pace
from gpuagent_alerts.receivers.secret import Misconfigured, Secret

log = logging.getLogger(__name__)


class Kind(Protocol):
    """One kind of receiver."""

    async def send(self, message: Message, context: Context) -> Outcome:
        """Try once. May raise Misconfigured."""
        ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """A name, what it can bear, and how it is told."""

    name: str
    kind: Kind = field(repr=False)
    pace: Pace = field(default_factory=Pace)
    address: Secret | None = None
    """Its URL or key; None of what has none."""

    def address_hash(self) -> str:
        """As the file of the address is now; "" where that cannot be read."""
        try:
            address = self.address.read() if self.address is not None else ""
        except Misconfigured:
            return ""
        return hashlib.sha256(f"{self.name}\0{address}".encode("utf-8", "replace")).hexdigest()

    async def send(self, message: Message, context: Context) -> Outcome:
        """Try once. Whatever goes wrong is an outcome, whose text holds no secret."""
        try:
            return await self.kind.send(message, context)
        except Misconfigured as error:
            return Outcome(Reason.MISCONFIGURED, str(error))
        except Exception as error:  # noqa: BLE001 (one receiver must not cost the others)
            # The text and the trace may hold an address.
            log.error("the receiver %s has a fault: %s", self.name, type(error).__name__)  # noqa: TRY400
            return Outcome(Reason.FAULT, f"a fault in the agent: {type(error).__name__}")
