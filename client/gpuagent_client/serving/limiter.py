"""Limit how many requests use the GPU at a time: some are served, some wait, the others are told when to come back.

One limiter serves threads and an event loop at a time: what differs is how a waiting request is woken. Its lock is held
for a few assignments and never across anything that waits.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Callable

from gpuagent_client import lifecycle
from gpuagent_client.lifecycle import reset_after_fork
from gpuagent_client.settings import ClientState

if TYPE_CHECKING:
    import asyncio

CRITICAL_RETRY_SECONDS = 2
"""The agent looks once a second: after two it has had the time to see what became better."""
MAX_RETRY_SECONDS = 60
_WEIGHT = 0.1
"""Weight of the newest request in the mean of how long they take."""


class QueueFull(Exception):
    """The limiter admits no further request. The text says why."""

    def __init__(self, why: str, retry_after_seconds: int) -> None:
        super().__init__(why)
        self.retry_after_seconds = retry_after_seconds


class StillBusy(Exception):
    """The requests in progress did not end in time."""


class Slot:
    """Slot of one request, in the queue or admitted."""

    __slots__ = ("_alone", "_epoch", "gate", "inside", "released", "started", "wake")

    def __init__(self, gate: ConcurrencyLimiter, epoch: int, wake: Callable[[], object]) -> None:
        self.gate = gate
        self.wake = wake
        self.inside = False
        self.released = False
        self.started = 0.0
        self._epoch = epoch
        self._alone = 0


_current: ContextVar[Slot | None] = ContextVar("gpuagent_slot", default=None)
"""Slot of the request that is served in this context; threads that a framework starts for it inherit the context."""


class ConcurrencyLimiter:
    """Admit `inside` requests at a time, and let up to `waiting` more wait for at most `wait_seconds`.

    `with gate:` and `async with gate:` raise `QueueFull`; so does the middleware, as 503. A request that is inside
    already passes. `inside=None` only counts requests. While the agent says that the GPU is at a critical level, none
    is admitted, unless `heed_agent` is False.
    """

    def __init__(
        self,
        inside: int | None = 1,
        waiting: int = 16,
        wait_seconds: float = 10.0,
        *,
        heed_agent: bool = True,
        state: ClientState = lifecycle.state,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (inside is not None and inside < 1) or waiting < 0 or wait_seconds < 0:
            raise ValueError("inside must be at least 1, waiting and wait_seconds at least 0")
        self.inside_limit = inside
        self.waiting_limit = waiting
        self.wait_seconds = wait_seconds
        self._heed_agent = heed_agent
        self._state = state
        self._clock = clock
        self._mean_seconds = 0.0
        self.served = 0
        """Requests that have been inside and have left."""
        self.refused = 0
        self._reset()
        reset_after_fork(self, ConcurrencyLimiter._reset)
        _limiters.add(self)
        state.busy = functools.partial(_any_busy, state)
        state.requests_served = functools.partial(_all_served, state)

    def _reset(self) -> None:
        """Begin empty, also in a forked child: the parent's requests are not here, and its lock may be held."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[Slot] = deque()
        self._inside = 0
        self._waiting_inside = 0
        self._entered = 0
        self._exclusive_waiting = 0
        self._exclusive = False
        self._epoch = getattr(self, "_epoch", 0) + 1

    # ---- acquire and release ----

    def try_acquire(self, wake: Callable[[], object]) -> Slot:
        """Admit the request where there is room, else queue it: `wake` is called once it is admitted, from any thread.

        Raises:
            QueueFull: the queue is full, or the GPU is.
        """
        level = self._state.level
        with self._lock:
            if level is not None and level.level == "critical" and self._heed_agent:
                self.refused += 1
                raise QueueFull("the GPU's memory is nearly used up", CRITICAL_RETRY_SECONDS)
            slot = Slot(self, self._epoch, wake)
            if not self._queue and self._has_room():
                self._admit(slot)
            elif len(self._queue) < self.waiting_limit or self.inside_limit is None:
                self._queue.append(slot)
            else:
                self.refused += 1
                raise QueueFull("as many requests wait as may wait", self._retry_after_seconds())
            return slot

    def release(self, slot: Slot) -> bool:
        """Release a slot, or leave the queue; only once. Return True if it was the only request inside."""
        with self._lock:
            if slot.released or slot._epoch != self._epoch:  # noqa: SLF001 - its own
                return False
            slot.released = True
            if not slot.inside:
                self._queue.remove(slot)
                return False
            self._inside -= 1
            self.served += 1
            alone = slot._alone == self._entered  # noqa: SLF001
            self._mean_seconds += (self._clock() - slot.started - self._mean_seconds) * (
                _WEIGHT if self.served > 1 else 1.0
            )
            woken = self._admit_waiting()
            if self._exclusive_waiting:
                self._changed.notify_all()
        for each in woken:
            each.wake()
        return alone

    def acquire(self) -> Slot:
        """Acquire a slot as `try_acquire` does, and wait for it in this thread.

        Raises:
            QueueFull: the queue is full, or the GPU is, or the wait was too long.
        """
        slot = self.try_acquire(_nothing)
        if not slot.inside:
            woken = threading.Event()
            slot.wake = woken.set
            if not slot.inside:
                woken.wait(self.wait_seconds)
            self.check_acquired(slot)
        return slot

    def check_acquired(self, slot: Slot) -> None:
        """Check, after the wait, that the slot was acquired.

        Raises:
            QueueFull: it was not let in; it is not in the queue any more.
        """
        with self._lock:
            if slot.inside:
                return
            self.refused += 1
            retry_after_seconds = self._retry_after_seconds()
        self.release(slot)
        raise QueueFull(f"no room within {self.wait_seconds:g} s", retry_after_seconds)

    def _has_room(self) -> bool:
        if self._exclusive_waiting or self._exclusive:
            return False
        return self.inside_limit is None or self._inside < self.inside_limit

    def _admit(self, slot: Slot) -> None:
        self._inside += 1
        self._entered += 1
        slot.started = self._clock()
        slot._alone = self._entered if self._inside == 1 else -1  # noqa: SLF001
        slot.inside = True

    def _admit_waiting(self) -> list[Slot]:
        woken = []
        while self._queue and self._has_room():
            slot = self._queue.popleft()
            self._admit(slot)
            woken.append(slot)
        return woken

    def _retry_after_seconds(self) -> int:
        """Return when the queue of now will have been served, as long as requests take now."""
        rounds = (len(self._queue) + 1) / (self.inside_limit or 1)
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(rounds * self._mean_seconds)))

    # ---- exclusive use ----

    @contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Wait until nobody else is inside, and let nobody in for the length of the block.

        A request inside that asks for this does not wait for itself; of two that ask, one comes after the other.

        Raises:
            StillBusy: the others did not leave in time.
        """
        own = self.holds_current_slot()
        with self._lock:
            self._exclusive_waiting += 1
            self._waiting_inside += own
            self._changed.notify_all()
            free = self._changed.wait_for(lambda: not self._exclusive and self._inside <= self._waiting_inside, seconds)
            self._exclusive_waiting -= 1
            self._waiting_inside -= own
            self._exclusive = free or self._exclusive
            woken = self._admit_waiting()
            others = self._inside - own
        for each in woken:
            each.wake()
        if not free:
            raise StillBusy(f"{others} other requests were in the GPU section for all of {seconds:g} s")
        try:
            yield
        finally:
            with self._lock:
                self._exclusive = False
                woken = self._admit_waiting()
                self._changed.notify_all()
            for each in woken:
                each.wake()

    def holds_current_slot(self) -> bool:
        """Return whether the request that is being served in this context is inside."""
        slot = _current.get()
        return slot is not None and slot.gate is self and slot.inside and not slot.released

    @property
    def busy(self) -> bool:
        """Whether a request is inside that does not itself wait to be alone."""
        return self._inside > self._waiting_inside

    # ---- for the app's own use ----

    def __enter__(self) -> None:
        if self.holds_current_slot():
            _nested.set((*_nested.get(), None))
            return
        slot = self.acquire()
        _nested.set((*_nested.get(), slot))
        _current.set(slot)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        *outer, slot = _nested.get()
        _nested.set(tuple(outer))
        if slot is not None:
            _current.set(None)
            self.release(slot)

    async def __aenter__(self) -> None:
        if self.holds_current_slot():
            _nested.set((*_nested.get(), None))
            return
        slot = self.try_acquire(_nothing)
        if not slot.inside:
            await wait_inside(slot)
        _nested.set((*_nested.get(), slot))
        _current.set(slot)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


_nested: ContextVar[tuple[Slot | None, ...]] = ContextVar("gpuagent_slots", default=())
"""Slots of the open `with gate:` blocks of this context; None where the request had one already."""
_limiters: weakref.WeakSet[ConcurrencyLimiter] = weakref.WeakSet()


def wake_from_loop(slot: Slot) -> asyncio.Future[None]:
    """Return a future that is done once the slot is acquired, whichever thread releases one.

    Raises:
        QueueFull: this loop is not asyncio's, and nobody could wake the request.
    """
    import asyncio  # noqa: PLC0415 - an app without an event loop does not load it

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        slot.gate.release(slot)
        raise QueueFull("every place is taken", 1) from None
    woken: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop is over, and the request with it
            slot.gate.release(slot)

    slot.wake = wake
    if slot.inside:  # let in before there was anybody to wake
        finish()
    return woken


async def wait_inside(slot: Slot) -> None:
    """Wait in an event loop until the slot is acquired.

    Raises:
        QueueFull: it was not, in time.
    """
    import asyncio  # noqa: PLC0415

    woken = wake_from_loop(slot)
    try:
        await asyncio.wait([woken], timeout=slot.gate.wait_seconds)
        slot.gate.check_acquired(slot)
    except BaseException:  # the caller was cancelled: whoever is next gets the place
        slot.gate.release(slot)
        raise


def set_current_slot(slot: Slot) -> None:
    """Set the slot of the request that is served in this context from now on."""
    _current.set(slot)


def _nothing() -> None:
    pass


def _any_busy(state: ClientState) -> bool:
    return any(gate.busy for gate in _limiters_of(state))


def _all_served(state: ClientState) -> int:
    return sum(gate.served for gate in _limiters_of(state))


def _limiters_of(state: ClientState) -> list[ConcurrencyLimiter]:
    return [gate for gate in list(_limiters) if gate._state is state]  # noqa: SLF001 - its own
