"""What the outbox needs of a receiver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.outcome import Outcome

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Context:
    """What an attempt knows besides the message."""

    node: str
    """Name of the machine."""
    external_url: str
    """Where a person finds more; "" if nowhere."""
    now: float
    """Unix time of the attempt."""
    simulated: bool = False
    """The GPUs are made up: every message says so."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast, how many and for how long."""

    min_interval_seconds: float = 0.0
    """Between two attempts."""
    batch: int = 1
    """Messages of different groups that may go as one."""
    max_age_seconds: float = DAY_SECONDS
    """After this a message is given up."""


class Sender(Protocol):
    """One attempt at telling one receiver. It raises nothing: whatever goes wrong is an outcome.

    Two that are equal tell the same receiver in the same way: a reload leaves such a one at its work.
    """

    @property
    def name(self) -> str:
        """The receiver's."""
        ...

    @property
    def pace(self) -> Pace:
        """What the receiver can bear."""
        ...

    def address_hash(self) -> str:
        """Changes with the address; nothing can be read from it."""
        ...

    async def send(self, message: Message, context: Context) -> Outcome:
        """Try once."""
        ...
