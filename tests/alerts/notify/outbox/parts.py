"""An outbox by a clock that stands still, and a receiver that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, DeliveryPace, MessageContext
from gpuagent_alerts.notify.outbox.delivery import DeliveryWorker, DisabledReceivers, MessageOrigin
from gpuagent_alerts.notify.outbox.eviction import OutboxBounds
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.store.database import Store


class SteppingClock(ManualClock):
    """A clock whose wall can be set."""

    def step(self, seconds: float) -> None:
        """Set the wall clock; no time passes."""
        self._wall += seconds


PATIENCE_SECONDS = 20.0


async def until(done: Callable[[], object]) -> None:
    """Wait for what stands in a table or in a fake, and tells nobody."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@dataclass
class Bench:
    """An outbox with its store and clock."""

    clock: SteppingClock = field(default_factory=SteppingClock)
    path: Path | None = None
    bounds: OutboxBounds | None = None
    uniform: Callable[[], float] = lambda: 1.0

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = Store(self.path)
        self.outbox = Outbox(self.store, self.clock, bounds=self.bounds, uniform=self.uniform)

    def restart(self) -> None:
        """The process ends, without a word, and begins anew."""
        self.store.close()
        self.open()

    def states(self) -> dict[str, str]:
        """State of each message by its id."""
        return dict(self.store.execute("SELECT id, state FROM outbox ORDER BY seq"))

    def take(self, receiver: str = "hook", count: int = 100) -> list[str]:
        """Ids of what is due; it is in flight no longer."""
        taken = self.outbox.take_due(receiver, count)
        self.outbox.release(taken)
        return [entry.message.id for entry in taken]

    def attempt(self, outcome: DeliveryOutcome, receiver: str = "hook", count: int = 1) -> list[str]:
        """Take, and settle with an outcome; returns the ids."""
        taken = self.outbox.take_due(receiver, count)
        self.outbox.record_outcome(taken, outcome)
        return [entry.message.id for entry in taken]

    def drain(self, receiver: str = "hook") -> list[Message]:
        """Deliver everything, whatever time it takes."""
        done: list[Message] = []
        while (seconds := self.outbox.seconds_until_due(receiver)) is not None:
            self.clock.advance(seconds)
            taken = self.outbox.take_due(receiver, 1)
            self.outbox.record_outcome(taken, DELIVERED)
            done += [entry.message for entry in taken]
        return done


class ScriptedSender:
    """Answers with the outcomes given, then takes everything."""

    def __init__(
        self, outcomes: Iterable[DeliveryOutcome] = (), *, name: str = "hook", pace: DeliveryPace | None = None
    ) -> None:
        self.name = name
        self.pace = pace or DeliveryPace()
        self.address = "a1"
        self.outcomes = list(outcomes)
        self.sent: list[Message] = []
        self.contexts: list[MessageContext] = []

    def address_hash(self) -> str:
        return self.address

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        self.sent.append(message)
        self.contexts.append(context)
        return self.outcomes.pop(0) if self.outcomes else DELIVERED


def lane(bench: Bench, sender: ScriptedSender) -> DeliveryWorker:
    """A lane that is driven by hand."""
    place, switches = MessageOrigin("node7", "http://node7:9837/"), DisabledReceivers(bench.store, bench.clock)
    return DeliveryWorker(bench.outbox, sender, bench.clock, place, switches)
