"""One attempt at sending to one receiver: what it knows, what came of it, and when the next one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Message

LATE_SECONDS = 120.0
"""A message that is delivered later than this after it was written says when that was."""


class Reason(StrEnum):
    """Reason for which an attempt ended as it did."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    """The receiver will never take this message."""
    REDIRECTED = "redirected"
    """It points elsewhere, and no redirect is followed: it would carry the message and its secrets there."""
    GONE = "gone"
    """The receiver wants nothing any more."""
    SLOW_DOWN = "slow_down"
    """Too many messages: all of this receiver's wait."""
    UNAVAILABLE = "unavailable"
    """It answered that it cannot take the message now."""
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    """The program that should tell, told that it could not."""
    MISCONFIGURED = "misconfigured"
    """A secret that cannot be read, an address that is none, a package that is missing: to be put right here."""
    FAULT = "fault"
    """A mistake of ours."""


_FINAL = frozenset({Reason.DELIVERED, Reason.REFUSED, Reason.REDIRECTED, Reason.GONE})


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The reason, and a detail in words that holds neither an address nor a secret."""

    reason: Reason
    detail: str = ""
    retry_after_seconds: float | None = None
    """Wait that the receiver asked for."""

    @property
    def ok(self) -> bool:
        """Whether the receiver has the message."""
        return self.reason is Reason.DELIVERED

    @property
    def retry(self) -> bool:
        """Whether a later attempt may succeed."""
        return self.reason not in _FINAL

    @property
    def pause(self) -> bool:
        """Whether the whole receiver has to wait, not this message alone."""
        return self.reason is Reason.SLOW_DOWN

    @property
    def switch_off(self) -> bool:
        """Whether nothing more is to be sent until somebody looks at it."""
        return self.reason is Reason.GONE

    def __str__(self) -> str:
        return self.detail or str(self.reason)


DELIVERED = DeliveryOutcome(Reason.DELIVERED)


DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What an attempt knows besides the message."""

    node: str
    """Name of the machine."""
    external_url: str
    """Address at which a person finds more; "" if there is none."""
    now: float
    """Unix time of the attempt."""
    simulated: bool = False
    """The GPUs are made up: every message says so."""


@dataclass(frozen=True, slots=True)
class DeliveryPace:
    """Limits of a receiver: how fast, how many, and for how long."""

    min_interval_seconds: float = 0.0
    """Between two attempts."""
    batch: int = 1
    """Messages of different groups that may go as one."""
    max_age_seconds: float = DAY_SECONDS
    """Age at which a message is given up."""


class Sender(Protocol):
    """One attempt at telling one receiver. It raises nothing: whatever goes wrong is an outcome.

    Two that are equal tell the same receiver in the same way: a reload leaves such a one at its work.
    """

    @property
    def name(self) -> str:
        """The receiver's."""
        ...

    @property
    def pace(self) -> DeliveryPace:
        """Limits of the receiver."""
        ...

    def address_hash(self) -> str:
        """Return a hash that changes with the address; nothing can be read from it."""
        ...

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Try once."""
        ...


BASE_SECONDS = 1.0
CAP_SECONDS = 300.0
"""No back-off is longer: a receiver that is back is told within five minutes."""
MAX_RETRY_AFTER_SECONDS = 3600.0
"""A receiver may ask for at most this much patience."""
SHORTEST_PAUSE_SECONDS = 1.0
"""Shortest pause after 429 without `Retry-After`."""

_STEP_SECONDS = 1.0


def wait_seconds(attempts: int, outcome: DeliveryOutcome, random: Callable[[], float]) -> float:
    """Return how long to wait after so many failed attempts (1 or more).

    As the receiver asked; else exponential back-off with full jitter, so that many senders do not come back at once
    (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """
    if outcome.retry_after_seconds is not None:
        return min(max(outcome.retry_after_seconds, 0.0), MAX_RETRY_AFTER_SECONDS)
    longest = min(CAP_SECONDS, BASE_SECONDS * 2.0 ** min(attempts, 32))
    wait = longest * random()
    return max(wait, SHORTEST_PAUSE_SECONDS) if outcome.pause else wait


class WallSteps:
    """Notices that the wall clock was set, by how far it moved against the clock that never goes back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.now()

    def step(self) -> float:
        """Return the seconds by which it was set since the last call; 0.0 if it was not."""
        offset = self._clock.wall() - self._clock.now()
        delta = offset - self._offset
        if abs(delta) <= _STEP_SECONDS * self._clock.speed:
            return 0.0  # drift adds up until it counts as a step
        self._offset = offset
        return delta
