"""A message in the outbox."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuagent_alerts.alert import Message


class Occasion(StrEnum):
    """Why a message is sent. The order is the order in which they are given up when there is no room."""

    REPEAT = "repeat"
    """Nothing new: a newer message of its group replaces it."""
    FIRING = "firing"
    """Some alert began to fire, none ended."""
    RESOLVED = "resolved"
    """Some alert ended."""


class State(StrEnum):
    """Where a message is on its way."""

    QUEUED = "queued"
    HELD = "held"
    """Its receiver has had enough for an hour: a digest tells of it."""
    SENT = "sent"
    DEAD = "dead"
    """It could not be delivered; it is kept and can be replayed."""
    DROPPED = "dropped"
    """There was no room for it, or a newer message of its group made it pointless."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is put into the outbox."""

    message: Message
    occasion: Occasion
    news: tuple[str, ...] = ()
    """Fingerprints of the alerts that no earlier message told of."""
    held: bool = False
    """It is held back, and is not sent by itself."""


@dataclass(frozen=True, slots=True)
class Queued:
    """What lies there."""

    seq: int
    message: Message
    occasion: Occasion
    state: State
    created: float
    """Unix time."""
    attempts: int
    next_at: float
    """Unix time before which it is not tried again."""
    last_error: str
    news: tuple[str, ...] = ()
    """As in `Entry`."""
    size_bytes: int = 0
    """Of its body."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A message that had to be dropped."""

    receiver: str
    group: str
    untold: tuple[str, ...] = ()
    """Fingerprints of the alerts of which the receiver has not heard, and will not by what is queued."""
