"""Simulated services over a load: weights, requests in passing, bounded caches, leaks, restarts. Sizes in bytes.

A service takes a step for each reading of the agent. What torch has reserved follows the highest that was allocated,
until the service gives its cache back; the driver sees the context and what is reserved.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.leak.load.arrivals import DAY_SECONDS, Load

GIB: Final = 2.0**30
MIB: Final = 2.0**20
SEGMENT_BYTES: Final = 20 * MIB
LARGEST: Final = 3.0
"""The largest request, relative to the mean."""
_RESTART_SECONDS: Final = 90.0
_CLOCK_SECONDS: Final = 1_000_000.0
"""Time at which a service begins, on the agent's clock."""


@dataclass(frozen=True)
class Cache:
    """What is kept until it is full; then as much is put out as comes in."""

    cap: float
    fill_requests: float
    """Requests after which it is full, or three of its time constants have gone by."""
    entry: float = 0.0
    """Size of an entry; 0: as small as nothing."""
    saturates: bool = True
    """New things become rare; else every request brings its part until the end."""
    rush: float = 0.0
    """Share of `cap` that comes within the first twentieth of the requests."""

    def held(self, requests: float) -> float:
        """Return what it holds after so many requests."""
        part = requests / self.fill_requests
        share = 1 - math.exp(-3 * part) if self.saturates else part
        if self.rush:
            share = self.rush * min(1.0, 20 * part) + (1 - self.rush) * share
        held = self.cap * min(1.0, share)
        return held - held % self.entry if self.entry else held


@dataclass(frozen=True)
class Swaps:
    """Models of which one at a time is held, each for a while, with nothing between."""

    sizes: tuple[float, ...]
    dwell_seconds: float
    dip_seconds: float


@dataclass(frozen=True)
class Plan:
    """What a service is."""

    load: Load
    total: float
    weights: float
    rps: float
    """Requests a second, on average."""
    request: float
    """Bytes that a request takes while it runs."""
    request_seconds: float
    most: int
    """Requests at once; more wait."""
    days: float
    caches: tuple[Cache, ...] = ()
    leak_request: float = 0.0
    """Bytes of each request that are never given back."""
    leak_second: float = 0.0
    leak_after: float = 0.0
    """Seconds from a life's start to the leak's begin."""
    nightly: float = 0.0
    """Seconds between two restarts; 0: none is planned."""
    ends: tuple[float, ...] = ()
    """Times of restarts that are planned once."""
    crash_days: float = 0.0
    """Mean time between crashes that have nothing to do with memory; 0: none."""
    swaps: Swaps | None = None
    trims: bool = False
    """It gives the allocator's cache back after every request, as some image services do."""
    interval: float = 15.0
    offset: float = 0.0
    """Where in the load it begins."""


@dataclass
class Life:
    """A process, as the agent reads it."""

    begin: float
    times: array[float] = field(default_factory=lambda: array("d"))
    used: array[float] = field(default_factory=lambda: array("d"))
    free: array[float] = field(default_factory=lambda: array("d"))
    allocated: array[float] = field(default_factory=lambda: array("d"))
    reserved: array[float] = field(default_factory=lambda: array("d"))
    leak_seconds: float | None = None
    """When the leak began; None: nothing leaks."""
    exhausted: bool = False
    """It ended out of memory."""
    end: float = 0.0

    def columns(self) -> tuple[array[float], ...]:
        """In the order in which a detector takes them."""
        return self.times, self.used, self.free, self.allocated, self.reserved


def lives_of(plan: Plan, rng: random.Random) -> list[Life]:
    """Return the lives of one service, one after another."""
    at, end = _CLOCK_SECONDS, _CLOCK_SECONDS + plan.days * DAY_SECONDS
    found: list[Life] = []
    while at < end:
        stop = end
        if plan.nightly:
            stop = min(stop, _CLOCK_SECONDS + (math.floor((at - _CLOCK_SECONDS) / plan.nightly) + 1) * plan.nightly)
        stop = min([stop, *(_CLOCK_SECONDS + one for one in plan.ends if _CLOCK_SECONDS + one > at)])
        if plan.crash_days:
            stop = min(stop, at + rng.expovariate(1.0) * plan.crash_days * DAY_SECONDS)
        life = _live(plan, rng, at, stop)
        if len(life.times) > 4:
            found.append(life)
        at = life.end + _RESTART_SECONDS
    return found


def _live(plan: Plan, rng: random.Random, begin: float, stop: float) -> Life:
    life = Life(begin)
    leaks = bool(plan.leak_request or plan.leak_second)
    context, driver = rng.uniform(300, 500) * MIB, 600 * MIB
    loading, room = rng.uniform(20, 110), plan.total - driver - context
    requests, leaked, reserved, at = 0.0, 0.0, 0.0, begin
    sizes, interval = plan.load.sizes, plan.interval
    swapped = _Swapping(plan.swaps, rng) if plan.swaps else None
    while at < stop:
        step = interval * rng.uniform(0.97, 1.03)
        at += step
        age = at - begin
        if age < loading:
            allocated, peak = plan.weights * age / loading, 0.0
        else:
            rate = plan.rps * plan.load.rate(at - _CLOCK_SECONDS + plan.offset)
            came = poisson(rng, rate * step)
            requests += came
            allocated = plan.weights + plan.request * _running(plan, rng, rate, sizes)
            peak = plan.weights + plan.request * _running(plan, rng, rate, sizes)
            if swapped is not None:
                model = swapped.held(at)
                allocated += model
                peak += model
            kept = sum(cache.held(requests) for cache in plan.caches)
            if leaks and age >= plan.leak_after:
                if life.leak_seconds is None:
                    life.leak_seconds = at
                leaked += came * plan.leak_request + step * plan.leak_second
            allocated += kept + leaked
            peak += kept + leaked
        need = max(allocated, peak)
        if need > room:
            life.exhausted = True
            break
        reserved = _segments(allocated if plan.trims else max(reserved, need))
        reserved = min(max(reserved, allocated), room)
        life.times.append(at)
        life.used.append(context + reserved)
        life.free.append(room - reserved)
        life.allocated.append(allocated)
        life.reserved.append(reserved)
    life.end = at
    return life


def _running(plan: Plan, rng: random.Random, rate: float, sizes: Sequence[float]) -> float:
    """Return the size of all requests that run at a moment, of which no more than a few are drawn."""
    count = min(plan.most, poisson(rng, rate * plan.request_seconds))
    if not count:
        return 0.0
    drawn = min(count, 4)
    together = sum(min(sizes[int(rng.random() * len(sizes))], LARGEST) for _ in range(drawn))
    return count * together / drawn


def _segments(count: float) -> float:
    return math.ceil(count / SEGMENT_BYTES) * SEGMENT_BYTES


class _Swapping:
    """Which model is held now."""

    def __init__(self, swaps: Swaps, rng: random.Random) -> None:
        self._swaps, self._rng = swaps, rng
        self._until, self._held, self._dips = 0.0, 0.0, False

    def held(self, at: float) -> float:
        """Return the size of what is held at this time; times go on."""
        while at >= self._until:
            if self._until == 0.0:
                self._until = at
            self._dips = not self._dips
            mean = self._swaps.dip_seconds if self._dips else self._swaps.dwell_seconds
            self._until += mean * self._rng.expovariate(1.0) + 1.0
            self._held = 0.0 if self._dips else self._rng.choice(self._swaps.sizes)
        return self._held


def poisson(rng: random.Random, mean: float) -> int:
    """Return a count; above 30 by its normal approximation."""
    if mean > 30:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, count, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        count += 1
        product *= rng.random()
    return count


def room_of(plan: Plan) -> float:
    """Return what a leak has to itself."""
    passing = plan.request * plan.most * LARGEST
    return plan.total - 1.2 * GIB - plan.weights - passing - sum(cache.cap for cache in plan.caches)
