"""All receivers' lanes: started, replaced at a reload, stopped, and looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from gpuagent.core.clock import Clock
from gpuagent_alerts.outbox.counters import Figures
from gpuagent_alerts.outbox.lane import Lane, Place
from gpuagent_alerts.outbox.queue import Outbox
from gpuagent_alerts.outbox.sender import Sender
from gpuagent_alerts.outbox.switches import Off, Switches
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

_STOP_SECONDS = 1.0
"""What is on its way when the agent stops gets this long."""


class Delivery:
    """A task for each receiver. All calls but `wake` are for the event loop's thread."""

    def __init__(self, store: Store, outbox: Outbox, clock: Clock, place: Place) -> None:
        self._store = store
        self._outbox = outbox
        self._clock = clock
        self._place = place
        self._switches = Switches(store, clock)
        self._lanes: dict[str, Lane] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        outbox.on_queued = self.wake

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """By the name of the receiver."""
        return self._lanes

    async def use(self, senders: Iterable[Sender]) -> None:
        """Send to these from now on, and to no others. What is queued for the others becomes dead letters.

        A receiver that is as it was goes on, in the middle of an attempt too: to break one off would send its message
        twice.
        """
        wanted = {sender.name: sender for sender in senders}
        lanes = {
            name: lane
            for name, lane in self._lanes.items()
            if name in wanted and lane.sender == wanted[name] and not self._has_ended(name)
        }
        await self._end(name for name in tuple(self._tasks) if name not in lanes)
        for lane in lanes.values():
            if lane.off is not None:  # the file of its address may have another one in it now
                lane.off = await asyncio.to_thread(self._switches.off, lane.sender)
                lane.wake()
        for name, sender in wanted.items():
            if name not in lanes:
                # It may read the file of an address, to see whether that is the one that was switched off.
                lanes[name] = await asyncio.to_thread(
                    Lane, self._outbox, sender, self._clock, self._place, self._switches
                )
        self._lanes = {name: lanes[name] for name in wanted}
        with suppress(StoreFailure):  # the next housekeeping sees to it
            await asyncio.to_thread(self._outbox.retain, tuple(self._lanes))
        for name, lane in self._lanes.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(lane.run(), name=f"delivery to {name}")

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
        """There is something new for these. From any thread."""
        for name in receivers:
            lane = self._lanes.get(name)
            if lane is not None:
                lane.wake()

    def switch_on(self, receiver: str) -> None:
        """Send again to a receiver that wanted nothing: after a test that it passed. Raises StoreFailure."""
        lane = self._lanes.get(receiver)
        if lane is not None:
            self._switches.switch_on(receiver)
            lane.off = None
            lane.wake()

    async def housekeeping(self) -> None:
        """About once a minute: give up what is too old, forget old history, go back to the file."""
        await asyncio.to_thread(self._housekeeping)

    def _housekeeping(self) -> None:
        self._store.heal()
        try:
            for name, lane in list(self._lanes.items()):
                self._outbox.expire(name, lane.sender.pace.max_age_seconds)
            self._outbox.retain(tuple(self._lanes))
            self._outbox.prune()
        except StoreFailure as error:
            log.warning("the outbox could not be tidied: %s", error)

    def figures(self) -> dict[str, Figures]:
        """Counters and what waits, by receiver; of those too that have had nothing yet. Raises StoreFailure."""
        return {name: Figures(name) for name in self._lanes} | self._outbox.figures()

    def off(self) -> dict[str, Off]:
        """Receivers that are switched off, and why."""
        return {name: lane.off for name, lane in self._lanes.items() if lane.off is not None}
