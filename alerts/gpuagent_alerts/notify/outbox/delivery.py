"""Delivery: a worker for each receiver sends what is due, one attempt at a time.

Workers are started, replaced at a reload, and stopped. A receiver that answers 410 wants nothing any more: it is
disabled, also over a restart, until somebody has seen to it. That is a test which the receiver takes, or another
address for it. The address itself is not kept, only its hash.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from gpuagent.core.clock import Clock
from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, MessageContext, Reason, Sender
from gpuagent_alerts.notify.outbox.entry import QueuedMessage
from gpuagent_alerts.notify.outbox.queue import DeliveryFigures, Outbox
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.tables import document, member, parsed, text, unix_time, word

log = logging.getLogger(__name__)

_KEY = "receivers_off"


@dataclass(frozen=True, slots=True)
class DisabledReceiver:
    """Why a receiver is sent nothing, and since when."""

    outcome: DeliveryOutcome
    since: float
    """Unix time."""
    address_hash: str


class DisabledReceivers:
    """Which receivers are off: kept in the store, and in memory for the asking. Its calls raise StoreFailure."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._off = store.meta_at_start(_KEY, _load) or {}

    def off(self, sender: Sender) -> DisabledReceiver | None:
        """Return why nothing is sent to it; None if it is on, or has another address than the one switched off."""
        found = self._off.get(sender.name)
        return found if found is not None and found.address_hash == sender.address_hash() else None

    def switch_off(self, sender: Sender, outcome: DeliveryOutcome) -> DisabledReceiver:
        """Send nothing to it until it is switched on."""
        off = DisabledReceiver(outcome, self._clock.wall(), sender.address_hash())
        self._keep({**self._off, sender.name: off})
        return off

    def switch_on(self, name: str) -> None:
        """Send to it again."""
        if name in self._off:
            self._keep({other: off for other, off in self._off.items() if other != name})

    def _keep(self, off: dict[str, DisabledReceiver]) -> None:
        self._off = off
        self._store.set_meta(_KEY, json.dumps({name: _dump(one) for name, one in off.items()}))


def _dump(off: DisabledReceiver) -> dict[str, Any]:
    return {"detail": off.outcome.detail, "since": off.since, "address_hash": off.address_hash}


def _load(dump: str) -> dict[str, DisabledReceiver]:
    return {word(name): _off(document(one)) for name, one in document(parsed(dump)).items()}


def _off(found: Mapping[str, Any]) -> DisabledReceiver:
    outcome = DeliveryOutcome(Reason.GONE, text(member(found, "detail")))
    return DisabledReceiver(outcome, unix_time(member(found, "since")), text(member(found, "address_hash")))


P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_SLEEP_SECONDS = 60.0
"""However far the next attempt is: the machine may have slept meanwhile, which a timer does not notice."""
_AFTER_FAULT_SECONDS = 5.0
_MAX_ALERTS = 100
"""Most alerts in one message that is put together from several."""


@dataclass(slots=True)
class MessageOrigin:
    """Node and address that messages name as their origin."""

    node: str
    external_url: str = ""
    """The agent's page; a reload may change it. "" where no other machine reaches it."""
    simulated: bool = False

    def context(self, now: float) -> MessageContext:
        """Return what an attempt knows besides the message, at this Unix time."""
        return MessageContext(self.node, self.external_url, now, self.simulated)


class DeliveryWorker:
    """Sends to one receiver until cancelled; a wake-up call tells that there is something new."""

    def __init__(
        self, outbox: Outbox, sender: Sender, clock: Clock, origin: MessageOrigin, disabled: DisabledReceivers
    ) -> None:
        self.off = disabled.off(sender)
        """Why nothing is sent any more: the receiver wants nothing (410)."""
        self.last: DeliveryOutcome | None = None
        """Outcome of the last attempt."""
        self.failing_since: float | None = None
        """Clock of the first of the attempts that have failed in a row; None after one that did not."""
        self._outbox = outbox
        self._sender = sender
        self._clock = clock
        self._origin = origin
        self._disabled = disabled
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free_at = clock.now()
        self._one_by_one = 0

    @property
    def sender(self) -> Sender:
        """Sender of its receiver."""
        return self._sender

    def wake(self) -> None:
        """Wake up: there is something new. From any thread."""
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
            self._outbox.take_due, self._sender.name, 1 if self._one_by_one else self._sender.pace.batch
        )
        if not taken:
            self._one_by_one = 0
            return await _threaded(self._outbox.seconds_until_due, self._sender.name)
        try:
            await self._attempt(_fitting(taken))
        finally:
            self._outbox.release(taken)
        return 0.0

    async def _attempt(self, taken: Sequence[QueuedMessage]) -> None:
        context = self._origin.context(self._clock.wall())
        try:
            outcome = await self._sender.send(_together([entry.message for entry in taken]), context)
        finally:
            self._free_at = self._clock.now() + self._sender.pace.min_interval_seconds
        self._log_change(outcome)
        self._one_by_one = max(0, self._one_by_one - 1)
        if len(taken) > 1 and not (outcome.ok or outcome.retry or outcome.switch_off):
            self._one_by_one = len(taken)  # which of them it refuses is yet to be found
            return
        pause = await _to_its_end(asyncio.ensure_future(_threaded(self._settle, taken, outcome)))
        self._free_at = max(self._free_at, self._clock.now() + pause)

    def _settle(self, taken: Sequence[QueuedMessage], outcome: DeliveryOutcome) -> float:
        try:
            return self._note(taken, outcome)
        except StoreFailure:
            return self._note(taken, outcome)  # in memory, if the file is of no use any more

    def _note(self, taken: Sequence[QueuedMessage], outcome: DeliveryOutcome) -> float:
        pause = self._outbox.record_outcome(taken, outcome)
        if outcome.switch_off:
            self.off = self._disabled.switch_off(self._sender, outcome)
        return pause

    def _log_change(self, outcome: DeliveryOutcome) -> None:
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


def _fitting(taken: Sequence[QueuedMessage]) -> Sequence[QueuedMessage]:
    """Return as many as make one message of a sensible size; incidents and digests go alone, in words of their own."""
    if _goes_alone(taken[0].message):
        return taken[:1]
    taken = [one for one in taken if not _goes_alone(one.message)]
    count = 0
    for origin, entry in enumerate(taken):
        count += len(entry.message.alerts)
        if origin and count > _MAX_ALERTS:
            return taken[:origin]
    return taken


def _goes_alone(message: Message) -> bool:
    return message.incident is not None or message.report is not None or bool(message.digest)


def _together(messages: Sequence[Message]) -> Message:
    """Return one message of several, with all of their ids."""
    first = messages[0]
    if len(messages) == 1:
        return first
    alerts = tuple(alert for message in messages for alert in message.alerts)
    return replace(first, id=" ".join(message.id for message in messages), alerts=alerts, group_labels={})


async def _to_its_end(noting: asyncio.Future[T]) -> T:
    """Wait for an answer even if the agent is stopping: one that is not noted is sent again.

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
    """Run in a thread: a disk that is slow to sync must not hold up the tick."""
    return await asyncio.to_thread(call, *args, **kwargs)


_STOP_SECONDS = 1.0
"""Time that an attempt under way gets when the agent stops."""


class Delivery:
    """A task for each receiver. All calls but `wake` are for the event loop's thread."""

    def __init__(self, store: Store, outbox: Outbox, clock: Clock, origin: MessageOrigin) -> None:
        self._store = store
        self._outbox = outbox
        self._clock = clock
        self._origin = origin
        self._disabled = DisabledReceivers(store, clock)
        self._workers: dict[str, DeliveryWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        outbox.on_queued = self.wake

    @property
    def workers(self) -> Mapping[str, DeliveryWorker]:
        """Workers by the name of the receiver."""
        return self._workers

    async def use(self, senders: Iterable[Sender]) -> None:
        """Send to these from now on, and to no others. What is queued for the others becomes dead letters.

        A receiver that is as it was goes on, in the middle of an attempt too: to break one off would send its message
        twice.
        """
        wanted = {sender.name: sender for sender in senders}
        workers = {
            name: worker
            for name, worker in self._workers.items()
            if name in wanted and worker.sender == wanted[name] and not self._has_ended(name)
        }
        await self._end(name for name in tuple(self._tasks) if name not in workers)
        for worker in workers.values():
            if worker.off is not None:  # the file of its address may have another one in it now
                worker.off = await asyncio.to_thread(self._disabled.off, worker.sender)
                worker.wake()
        for name, sender in wanted.items():
            if name not in workers:
                # It may read the file of an address, to see whether that is the one that was switched off.
                workers[name] = await asyncio.to_thread(
                    DeliveryWorker, self._outbox, sender, self._clock, self._origin, self._disabled
                )
        self._workers = {name: workers[name] for name in wanted}
        with suppress(StoreFailure):  # the next housekeeping sees to it
            await asyncio.to_thread(self._outbox.retain, tuple(self._workers))
        for name, worker in self._workers.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(worker.run(), name=f"delivery to {name}")

    async def stop(self) -> None:
        """End all tasks. A message on its way may be sent again by the next start, under the same id."""
        await self._end(tuple(self._tasks))

    async def _end(self, names: Iterable[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)

    def _has_ended(self, name: str) -> bool:
        task = self._tasks.get(name)
        return task is None or task.done()

    def wake(self, receivers: Collection[str]) -> None:
        """Wake up: there is something new. From any thread."""
        for name in receivers:
            worker = self._workers.get(name)
            if worker is not None:
                worker.wake()

    def switch_on(self, receiver: str) -> None:
        """Send again to a receiver that wanted nothing: after a test that it passed. Raises StoreFailure."""
        worker = self._workers.get(receiver)
        if worker is not None:
            self._disabled.switch_on(receiver)
            worker.off = None
            worker.wake()

    async def housekeeping(self) -> None:
        """Tidy about once a minute: give up what is too old, forget old history, go back to the file."""
        await asyncio.to_thread(self._housekeeping)

    def _housekeeping(self) -> None:
        self._store.heal()
        try:
            for name, worker in list(self._workers.items()):
                self._outbox.expire(name, worker.sender.pace.max_age_seconds)
            self._outbox.retain(tuple(self._workers))
            self._outbox.prune()
        except StoreFailure as error:
            log.warning("the outbox could not be tidied: %s", error)

    def figures(self) -> dict[str, DeliveryFigures]:
        """Return counters and what waits, by receiver; of those too that have had nothing yet. Raises StoreFailure."""
        return {name: DeliveryFigures(name) for name in self._workers} | self._outbox.figures()

    def off(self) -> dict[str, DisabledReceiver]:
        """Return the receivers that are switched off, and why."""
        return {name: worker.off for name, worker in self._workers.items() if worker.off is not None}
