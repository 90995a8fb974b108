"""What came of one attempt to send: a named reason, which decides what is done next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """How an attempt ended."""

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
class Outcome:
    """The reason, and a detail in words that holds neither an address nor a secret."""

    reason: Reason
    detail: str = ""
    retry_after_seconds: float | None = None
    """As the receiver asked."""

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


DELIVERED = Outcome(Reason.DELIVERED)
