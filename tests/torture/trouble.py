"""What a trouble is: something that goes wrong for a while, and what it may cost meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.torture.stage import Stage


class Cost(StrEnum):
    """What may be missing while a trouble is on. Whatever it is, it is back afterwards."""

    GPUS = "gpus"
    """The driver itself is away: no GPU can be read, and alerts stand still."""
    TCP = "tcp"
    """Some requests over TCP are refused or answered late: the clients there are too many."""
    SCRAPES = "scrapes"
    """Some scrapes fail over every door: the process itself is held up, or may open nothing."""
    LATE = "late"
    """An alert that begins meanwhile is told when it is over."""
    APPS = "apps"
    """Apps lose their connection, and come back."""
    OTHER = "other"
    """The other receiver is not to be had; it is told later, or never where it refuses for good."""


class Sign(NamedTuple):
    """A series that tells: the beginning of its line, and whether its value (0 where there is none) shows it."""

    start: str
    shown: Callable[[float, float], bool]
    """Of the value before the trouble, and of the value now."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """`on` lets it happen until its end."""

    name: str
    on: Callable[[Stage], AbstractContextManager[object]]
    costs: frozenset[Cost] = frozenset()
    refused_for_good: bool = False
    """What the other receiver is sent meanwhile is lost to it, and shown as a dead letter."""
    least_seconds: float = 0.6
    """How long it is on at least."""
    broken_off: int = 0
    """How many scrapes may break off, be it over any door: those under way then. Later ones may be told 503."""
    sign: Sign | None = None
    """By what the agent shows that it has noticed; waited for while it is on."""


def both(one: Trouble, other: Trouble) -> Trouble:
    """Two at a time."""

    @contextmanager
    def on(stage: Stage) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(one.on(stage))
            stack.enter_context(other.on(stage))
            yield

    return Trouble(
        f"{one.name} + {other.name}",
        on,
        one.costs | other.costs,
        one.refused_for_good or other.refused_for_good,
        max(one.least_seconds, other.least_seconds),
        one.broken_off + other.broken_off,  # and no sign: the one may well hide that of the other
    )


def shows(start: str, value: float) -> Sign:
    """The sign that a series, the first that begins so, has this value."""
    return Sign(start, lambda _, now: now == value)


def rises(start: str) -> Sign:
    """The sign that a counter is higher than it was."""
    return Sign(start, lambda before, now: now > before)
