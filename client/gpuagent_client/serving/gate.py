"""The gate before the GPU section: so many requests inside, so many waiting, the others are told to come back.

One gate serves threads and an event loop at a time: what differs is how a waiting request is woken. Its lock is held
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
from typing import Any, Callable

from gpuagent_client import lifecycle
from gpuagent_client.serving.process import renewed_after_fork
from gpuagent_client.settings import Told

CRITICAL_RETRY_SECONDS = 2
"""The agent looks once a second: after two it has had the time to see what became better."""
MAX_RETRY_SECONDS = 60
_WEIGHT = 0.1
"""Of the newest request in the mean of how long they take."""


class Full(Exception):
    """The gate lets nobody else in. The text says why."""

    def __init__(self, why: str, retry_after_seconds: int) -> None:
        super().__init__(why)
        self.retry_after_seconds = retry_after_seconds


class StillBusy(Exception):
    """The requests inside did not end in time."""


class Place:
    """One request's place, in the queue or inside."""

    __slots__ = ("_alone", "_epoch", "gate", "inside", "left", "started", "wake")

    def __init__(self, gate: Gate, epoch: int, wake: Callable[[], object]) -> None:
        self.gate = gate
        self.wake = wake
        self.inside = False
        self.left = False
        self.started = 0.0
        self._epoch = epoch
        self._alone = 0


_current: ContextVar[Place | None] = ContextVar("gpuagent_place", default=None)
"""The place of the request that is being served here; threads that a framework starts for it inherit the context."""


class Gate:
    """Lets `inside` requests in at a time, and up to `waiting` more wait for at most `wait_seconds`.

    `with gate:` and `async with gate:` raise `Full`; so does the middleware, as 503. A request that is inside already
    passes. `inside=None` counts, and turns nobody away. While the agent says that the GPU is at a critical level,
    nobody is let in, unless `heed_agent` is False.
    """

    def __init__(
        self,
        inside: int | None = 1,
        waiting: int = 16,
        wait_seconds: float = 10.0,
        *,
        heed_agent: bool = True,
        told: Told = lifecycle.told,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (inside is not None and inside < 1) or waiting < 0 or wait_seconds < 0:
            raise ValueError("inside must be at least 1, waiting and wait_seconds at least 0")
        self.inside_limit = inside
        self.waiting_limit = waiting
        self.wait_seconds = wait_seconds
        self._heed_agent = heed_agent
        self._told = told
        self._clock = clock
        self._mean_seconds = 0.0
        self.served = 0
        """Requests that have been inside and have left."""
        self.refused = 0
        self._begin_empty()
        renewed_after_fork(self, Gate._begin_empty)
        _gates.add(self)
        told.busy = functools.partial(_any_busy, told)
        told.requests_served = functools.partial(_all_served, told)

    def _begin_empty(self) -> None:
        """Begin empty, also in a forked child: the parent's requests are not here, and its lock may be held."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[Place] = deque()
        self._inside = 0
        self._parked = 0
        self._entered = 0
        self._claims = 0
        self._claimed = False
        self._epoch = getattr(self, "_epoch", 0) + 1

    # ---- in and out ----

    def knock(self, wake: Callable[[], object]) -> Place:
        """Go in where there is room, else wait: `wake` is called once the place is inside, from any thread.

        Raises:
            Full: the queue is full, or the GPU is.
        """
        level = self._told.level
        with self._lock:
            if level is not None and level.level == "critical" and self._heed_agent:
                self.refused += 1
                raise Full("the GPU's memory is nearly used up", CRITICAL_RETRY_SECONDS)
            place = Place(self, self._epoch, wake)
            if not self._queue and self._has_room():
                self._admit(place)
            elif len(self._queue) < self.waiting_limit or self.inside_limit is None:
                self._queue.append(place)
            else:
                self.refused += 1
                raise Full("as many requests wait as may wait", self._retry_after_seconds())
            return place

    def leave(self, place: Place) -> bool:
        """Leave the section, or the queue; the second time nothing happens. True: it was the only request inside."""
        with self._lock:
            if place.left or place._epoch != self._epoch:  # noqa: SLF001 - its own
                return False
            place.left = True
            if not place.inside:
                self._queue.remove(place)
                return False
            self._inside -= 1
            self.served += 1
            alone = place._alone == self._entered  # noqa: SLF001
            self._mean_seconds += (self._clock() - place.started - self._mean_seconds) * (
                _WEIGHT if self.served > 1 else 1.0
            )
            woken = self._let_in()
            if self._claims:
                self._changed.notify_all()
        for each in woken:
            each.wake()
        return alone

    def enter(self) -> Place:
        """Enter as `knock` does, and wait for it in this thread.

        Raises:
            Full: the queue is full, or the GPU is, or the wait was too long.
        """
        place = self.knock(_nothing)
        if not place.inside:
            woken = threading.Event()
            place.wake = woken.set
            if not place.inside:
                woken.wait(self.wait_seconds)
            self.expect_inside(place)
        return place

    def expect_inside(self, place: Place) -> None:
        """Check, after the wait, that the place is inside.

        Raises:
            Full: it was not let in; it is not in the queue any more.
        """
        with self._lock:
            if place.inside:
                return
            self.refused += 1
            retry_after_seconds = self._retry_after_seconds()
        self.leave(place)
        raise Full(f"no room within {self.wait_seconds:g} s", retry_after_seconds)

    def _has_room(self) -> bool:
        if self._claims or self._claimed:
            return False
        return self.inside_limit is None or self._inside < self.inside_limit

    def _admit(self, place: Place) -> None:
        self._inside += 1
        self._entered += 1
        place.started = self._clock()
        place._alone = self._entered if self._inside == 1 else -1  # noqa: SLF001
        place.inside = True

    def _let_in(self) -> list[Place]:
        woken = []
        while self._queue and self._has_room():
            place = self._queue.popleft()
            self._admit(place)
            woken.append(place)
        return woken

    def _retry_after_seconds(self) -> int:
        """Return when the queue of now will have been served, as long as requests take now."""
        rounds = (len(self._queue) + 1) / (self.inside_limit or 1)
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(rounds * self._mean_seconds)))

    # ---- alone ----

    @contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        """Wait until nobody else is inside, and let nobody in for the length of the block.

        A request inside that asks for this does not wait for itself; of two that ask, one comes after the other.

        Raises:
            StillBusy: the others did not leave in time.
        """
        own = self.holds_current()
        with self._lock:
            self._claims += 1
            self._parked += own
            self._changed.notify_all()
            free = self._changed.wait_for(lambda: not self._claimed and self._inside <= self._parked, seconds)
            self._claims -= 1
            self._parked -= own
            self._claimed = free or self._claimed
            woken = self._let_in()
            others = self._inside - own
        for each in woken:
            each.wake()
        if not free:
            raise StillBusy(f"{others} other requests were in the GPU section for all of {seconds:g} s")
        try:
            yield
        finally:
            with self._lock:
                self._claimed = False
                woken = self._let_in()
                self._changed.notify_all()
            for each in woken:
                each.wake()

    def holds_current(self) -> bool:
        """Return whether the request that is being served in this context is inside."""
        place = _current.get()
        return place is not None and place.gate is self and place.inside and not place.left

    @property
    def busy(self) -> bool:
        """Whether a request is inside that does not itself wait to be alone."""
        return self._inside > self._parked

    # ---- for the app's own use ----

    def __enter__(self) -> None:
        if self.holds_current():
            _nested.set((*_nested.get(), None))
            return
        place = self.enter()
        _nested.set((*_nested.get(), place))
        _current.set(place)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        *outer, place = _nested.get()
        _nested.set(tuple(outer))
        if place is not None:
            _current.set(None)
            self.leave(place)

    async def __aenter__(self) -> None:
        if self.holds_current():
            _nested.set((*_nested.get(), None))
            return
        place = self.knock(_nothing)
        if not place.inside:
            await in_loop().wait_inside(place)
        _nested.set((*_nested.get(), place))
        _current.set(place)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


_nested: ContextVar[tuple[Place | None, ...]] = ContextVar("gpuagent_places", default=())
"""What the open `with gate:` blocks of this context took; None where the request was inside already."""
_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def in_loop() -> Any:  # noqa: ANN401 - a module
    """Return how to wait in an event loop: asyncio is not loaded into an app that has none."""
    from gpuagent_client.serving import awaiting  # noqa: PLC0415

    return awaiting


def became_current(place: Place) -> None:
    """Note what is served in this context from now on."""
    _current.set(place)


def _nothing() -> None:
    pass


def _any_busy(told: Told) -> bool:
    return any(gate.busy for gate in _gates_of(told))


def _all_served(told: Told) -> int:
    return sum(gate.served for gate in _gates_of(told))


def _gates_of(told: Told) -> list[Gate]:
    return [gate for gate in list(_gates) if gate._told is told]  # noqa: SLF001 - its own
