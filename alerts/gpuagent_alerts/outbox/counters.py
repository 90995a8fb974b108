"""What became of the messages to each receiver since the start."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Of one receiver; they only grow."""

    sent: int = 0
    failed: int = 0
    """Attempts, not messages."""
    dead: int = 0
    dropped: int = 0
    merged: int = 0
    """Repeats that a newer message of their group replaced before they were sent."""
    held: int = 0
    """Held back, as the receiver had had enough for an hour."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one receiver, at a moment."""

    receiver: str
    queued: int = 0
    dead: int = 0
    """Kept now; the counter says how many there ever were."""
    oldest_undelivered_seconds: float | None = None
    """Age of the oldest message that is queued; None if there is none."""
    counters: Counters = field(default_factory=Counters)
