"""A receiver of any kind, as the outbox sees it: an attempt that raises nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.outcome import Outcome, Reason
from gpuagent_alerts.outbox.sender import Context, Pace
from gpuagent_alerts.receivers.secret import Misconfigured

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
