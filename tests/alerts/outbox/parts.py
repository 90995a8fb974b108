"""An outbox by a clock that stands still, and a receiver that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.lane import Lane, Place
from gpuagent_alerts.outbox.outcome import DELIVERED, Outcome
from gpuagent_alerts.outbox.queue import Outbox
from gpuagent_alerts.outbox.room import Bounds
from gpuagent_alerts.outbox.sender import Context, Pace
from gpuagent_alerts.outbox.switches import Switches
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
    bounds: Bounds | None = None
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
        taken = self.outbox.take(receiver, count)
        self.outbox.release(taken)
        return [entry.message.id for entry in taken]

    def attempt(self, outcome: Outcome, receiver: str = "hook", count: int = 1) -> list[str]:
        """Take, and settle with an outcome; returns the ids."""
        taken = self.outbox.take(receiver, count)
        self.outbox.settle(taken, outcome)
        return [entry.message.id for entry in taken]

    def drain(self, receiver: str = "hook") -> list[Message]:
        """Deliver everything, whatever time it takes."""
        done: list[Message] = []
        while (seconds := self.outbox.seconds_until_due(receiver)) is not None:
            self.clock.advance(seconds)
            taken = self.outbox.take(receiver, 1)
            self.outbox.settle(taken, DELIVERED)
            done += [entry.message for entry in taken]
        return done


class ScriptedSender:
    """Answers with the outcomes given, then takes everything."""

    def __init__(self, outcomes: Iterable[Outcome] = (), *, name: str = "hook", pace: Pace | None = None) -> None:
        self.name = name
        self.pace = pace or Pace()
        self.address = "a1"
        self.outcomes = list(outcomes)
        self.sent: list[Message] = []
        self.contexts: list[Context] = []

    def address_hash(self) -> str:
        return self.address

    async def send(self, message: Message, context: Context) -> Outcome:
        self.sent.append(message)
        self.contexts.append(context)
        return self.outcomes.pop(0) if self.outcomes else DELIVERED


def lane(bench: Bench, sender: ScriptedSender) -> Lane:
    """A lane that is driven by hand."""
    place, switches = Place("node7", "http://node7:9837/"), Switches(bench.store, bench.clock)
    return Lane(bench.outbox, sender, bench.clock, place, switches)
