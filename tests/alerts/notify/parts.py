"""Routing with a store in memory and a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuagent.core.matchers import Matcher, parse_matcher
from gpuagent_alerts.alert import Alert, Message
from gpuagent_alerts.notify.notifier import Notifier, Suppressions
from gpuagent_alerts.notify.outbox.attempt import DELIVERED
from gpuagent_alerts.notify.outbox.eviction import OutboxBounds
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.routes import Recipient, Routes
from gpuagent_alerts.notify.silences import Acks, Silences
from gpuagent_alerts.store.database import Store
from tests.alerts.notify.outbox.parts import SteppingClock


@dataclass(frozen=True)
class Route:
    """A route as the configuration has it."""

    receivers: tuple[str, ...]
    match: tuple[Matcher, ...] = ()
    group_by: tuple[str, ...] = ()
    repeat_interval: float = 4 * 3600.0
    group_wait: float = 0.0


def route(
    *receivers: str, match: Sequence[str] = (), group_by: Sequence[str] = (), repeat: float = 14400.0, wait: float = 0.0
) -> Route:
    """A route with its matchers as text."""
    return Route(receivers, tuple(parse_matcher(text) for text in match), tuple(group_by), repeat, wait)


@dataclass
class Desk:
    """Everything between the alerts of a tick and the outbox."""

    routes: Sequence[Route] = ()
    recipients: Sequence[Recipient] = (Recipient("hook"),)
    path: Path | None = None
    bounds: OutboxBounds | None = None
    clock: SteppingClock = field(default_factory=SteppingClock)
    node: str = "node7"

    def __post_init__(self) -> None:
        self.messages: list[Message] = []
        self.open()

    def open(self) -> None:
        self.store = Store(self.path)
        self.begin()

    def begin(self) -> None:
        """A new process on the same store."""
        self.outbox = Outbox(self.store, self.clock, bounds=self.bounds)
        self.silences = Silences(self.store, self.clock)
        self.acks = Acks(self.store, self.clock)
        self.notifier = Notifier(
            self.store,
            self.outbox,
            self.clock,
            Suppressions(self.silences, self.acks),
            routes=Routes(self.routes, self.recipients),
            node_labels={"instance": self.node},
        )

    def restart(self) -> None:
        self.store.close()
        self.open()

    def tick(self, *alerts: Alert, seconds: float = 5.0) -> list[str]:
        """Time passes, these fire or have just ended; returns what is told, delivered at once."""
        self.clock.advance(seconds)
        self.notifier.notify(alerts)
        return self.deliver()

    def deliver(self) -> list[str]:
        """`receiver: +GpuLost/0 -GpuLost/1` for every message that waits."""
        told = []
        for receiver in self.notifier.routes.recipients:
            while self.outbox.seconds_until_due(receiver) is not None:
                taken = self.outbox.take_due(receiver, 1)
                self.outbox.record_outcome(taken, DELIVERED)
                self.messages += [one.message for one in taken]
                told += [f"{receiver}: {' '.join(_written(alert) for alert in one.message.alerts)}" for one in taken]
        return told

    def silence(self, *matchers: str, seconds: float = 3600.0) -> str:
        parsed = [parse_matcher(text) for text in matchers]
        return self.silences.add(parsed, seconds, comment="", creator="alice").id


def _written(alert: Alert) -> str:
    return f"{'+' if alert.ends_at is None else '-'}{alert.name}/{alert.labels.get('gpu', '')}"
