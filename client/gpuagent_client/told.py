"""What the app has told its client, and the agent the app. It outlives a connection, a stop and a fork."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from gpuagent_client.messages import Declared, Level
from gpuagent_client.settings import Settings

MAX_EVENTS = 16


class Event(NamedTuple):
    """Something that happened in the app."""

    name: str
    fields: Mapping[str, Any]


class Told:
    """Plain attributes, each replaced as a whole: no thread sees half of one, and no lock can be held at a fork."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.declared = Declared()
        self.limit_ratio: float | None = None
        """What `limit_memory` asked for; set on each GPU as soon as the app uses it."""
        self.on_reset: list[Callable[[], object]] = []
        self.busy: Callable[[], bool] = _never
        """Whether a request is being served; the serving part puts its own here."""
        self.requests_served: Callable[[], int | None] = _unknown
        """How many requests were served so far; likewise."""
        self.drain: Callable[[str], bool] | None = None
        """Ends this process after the requests that it has begun, for the reason given, and says whether it will; the
        serving part puts its own here where a successor is sure to come. None: the app has not asked for it."""
        self.released_at = float("-inf")
        """When the allocator's cache was last given back, on the clock of `time.monotonic`, by whomever."""
        self.level: Level | None = None
        """None before the agent's first word, and again once the connection is lost."""
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        """What is to be sent; the oldest go first where nobody takes them."""


def _never() -> bool:
    return False


def _unknown() -> int | None:
    return None
