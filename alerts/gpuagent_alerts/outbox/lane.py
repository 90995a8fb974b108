"""One receiver's messages on their way: what is due is sent, one attempt at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.entry import Queued
from gpuagent_alerts.outbox.outcome import Outcome
from gpuagent_alerts.outbox.queue import Outbox
from gpuagent_alerts.outbox.sender import Context, Sender
from gpuagent_alerts.outbox.switches import Switches
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_SLEEP_SECONDS = 60.0
"""However far the next attempt is: the machine may have slept meanwhile, which a timer does not notice."""
_AFTER_FAULT_SECONDS = 5.0
_MAX_ALERTS = 100
"""In one message that is put together from several."""


@dataclass(slots=True)
class Place:
    """Where the agent is, for those who are told."""

    node: str
    external_url: str = ""
    """The agent's page; a reload may change it. "" where no other machine reaches it."""
    simulated: bool = False

    def context(self, now: float) -> Context:
        """What an attempt knows besides the message, at this Unix time."""
        return Context(self.node, self.external_url, now, self.simulated)


class Lane:
    """Sends to one receiver until cancelled; a wake-up call tells that there is something new."""

    def __init__(self, outbox: Outbox, sender: Sender, clock: Clock, place: Place, switches: Switches) -> None:
        self.off = switches.off(sender)
        """Why nothing is sent any more: the receiver wants nothing (410)."""
        self.last: Outcome | None = None
        """Of the last attempt."""
        self.failing_since: float | None = None
        """Clock of the first of the attempts that have failed in a row; None after one that did not."""
        self._outbox = outbox
        self._sender = sender
        self._clock = clock
        self._place = place
        self._switches = switches
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free_at = clock.now()
        self._one_by_one = 0

    @property
    def sender(self) -> Sender:
        """Whom it sends to."""
        return self._sender

    def wake(self) -> None:
        """There is something new. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Send until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            try:
                seconds = await self.step()
            except Exception as error:  # noqa: BLE001 (a message must not wait for ever because of one fault)
                # Never the text or the trace: an address may be in them.
                log.error("sending to %s failed: %s", self._sender.name, type(error).__name__)  # noqa: TRY400
                seconds = _AFTER_FAULT_SECONDS
            if seconds != 0:
                await self._sleep(seconds)

    async def step(self) -> float | None:
        """Make one attempt, if it is time; returns the seconds until the next one, None if nothing waits."""
        if self.off is not None:
            return None
        held = self._free_at - self._clock.now()
        if held > 0:
            return held
        taken = await _threaded(
            self._outbox.take, self._sender.name, 1 if self._one_by_one else self._sender.pace.batch
        )
        if not taken:
            self._one_by_one = 0
            return await _threaded(self._outbox.seconds_until_due, self._sender.name)
        try:
            await self._attempt(_fitting(taken))
        finally:
            self._outbox.release(taken)
        return 0.0

    async def _attempt(self, taken: Sequence[Queued]) -> None:
        context = self._place.context(self._clock.wall())
        try:
            outcome = await self._sender.send(_together([entry.message for entry in taken]), context)
        finally:
            self._free_at = self._clock.now() + self._sender.pace.min_interval_seconds
        self._tell(outcome)
        self._one_by_one = max(0, self._one_by_one - 1)
        if len(taken) > 1 and not (outcome.ok or outcome.retry or outcome.switch_off):
            self._one_by_one = len(taken)  # which of them it refuses is yet to be found
            return
        pause = await _to_its_end(asyncio.ensure_future(_threaded(self._settle, taken, outcome)))
        self._free_at = max(self._free_at, self._clock.now() + pause)

    def _settle(self, taken: Sequence[Queued], outcome: Outcome) -> float:
        try:
            return self._note(taken, outcome)
        except StoreFailure:
            return self._note(taken, outcome)  # in memory, if the file is of no use any more

    def _note(self, taken: Sequence[Queued], outcome: Outcome) -> float:
        pause = self._outbox.settle(taken, outcome)
        if outcome.switch_off:
            self.off = self._switches.switch_off(self._sender, outcome)
        return pause

    def _tell(self, outcome: Outcome) -> None:
        """Log the first failure, and that it works again."""
        if outcome.ok:
            self.failing_since = None
        elif self.failing_since is None:
            self.failing_since = self._clock.now()
        if self.last is None or self.last.reason is not outcome.reason:
            if not outcome.ok:
                log.warning("cannot deliver to %s: %s", self._sender.name, outcome)
            elif self.last is not None:
                log.info("delivering to %s works again", self._sender.name)
        self.last = outcome

    async def _sleep(self, seconds: float | None) -> None:
        longest = (
            _LONGEST_SLEEP_SECONDS if seconds is None else min(seconds / self._clock.speed, _LONGEST_SLEEP_SECONDS)
        )
        try:
            async with asyncio.timeout(longest):
                await self._woken.wait()
        except TimeoutError:
            pass


def _fitting(taken: Sequence[Queued]) -> Sequence[Queued]:
    """As many as make one message of a sensible size. An incident is told by itself: its message has its own words."""
    if taken[0].message.incident is not None:
        return taken[:1]
    taken = [one for one in taken if one.message.incident is None]
    count = 0
    for place, entry in enumerate(taken):
        count += len(entry.message.alerts)
        if place and count > _MAX_ALERTS:
            return taken[:place]
    return taken


def _together(messages: Sequence[Message]) -> Message:
    """One message of several, with all of their ids."""
    first = messages[0]
    if len(messages) == 1:
        return first
    alerts = tuple(alert for message in messages for alert in message.alerts)
    return replace(first, id=" ".join(message.id for message in messages), alerts=alerts, group_labels={})


async def _to_its_end(noting: asyncio.Future[T]) -> T:
    """An answer that has come must be noted, even if the agent is stopping: else it is sent again.

    Who stops waits for this, for as long as it likes, before it closes the store.
    """
    try:
        return await asyncio.shield(noting)
    except asyncio.CancelledError:
        await asyncio.wait([noting])
        if not noting.cancelled():
            noting.exception()  # a store that fails now costs a repeat; asyncio would log it as forgotten
        raise


async def _threaded(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a thread: a disk that is slow to sync must not hold up the tick."""
    return await asyncio.to_thread(call, *args, **kwargs)
