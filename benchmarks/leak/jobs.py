"""What processes do on a GPU: the actors of which the families are made. Sizes in bytes, times in seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from benchmarks.leak.allocator import Block
from benchmarks.leak.workload import Actor, Workload

DAY_SECONDS = 86_400.0
Factor: TypeAlias = Callable[[], float]
Waits: TypeAlias = Callable[[int, int], float]
"""Seconds until a cache's next entry, by how many it holds and how many it may hold."""


def one() -> float:
    """A size or a traffic that does not change."""
    return 1.0


def training(
    w: Workload,
    *,
    weights: float,
    activations: float,
    step: float,
    size: Factor = one,
    validate_every: int = 0,
    validation_size: float = 1.0,
) -> Actor:
    """Weights, optimizer states at the first step, then steps; after every so many a validation of 20."""
    yield from w.load(weights / 3, w.uniform(5, 60))
    shares = [w.uniform(0.3, 1.0) for _ in range(w.rng.randint(3, 7))]
    shares = [share / sum(shares) for share in shares]
    yield from _step(w, shares, activations * size(), step)
    yield from w.load(weights * 2 / 3, step, pieces=48)
    count = 0
    while True:
        count += 1
        yield from _step(w, shares, activations * size(), step)
        if validate_every and count % validate_every == 0:
            for _ in range(20):
                yield from _step(w, shares[:2], activations * validation_size * size(), step / 2)


def _step(w: Workload, shares: list[float], activations: float, step: float) -> Actor:
    """Forward takes, backward gives back, last in first out."""
    tensors = []
    for share in shares:
        tensors.append(w.allocate(activations * share))
        yield step * 0.5 / len(shares)
    for tensor in reversed(tensors):
        w.release([tensor])
    yield step * 0.5


def serving(
    w: Workload, *, in_flight: float, request: Factor, step: float, traffic: Factor = one, longest: float = 4.0
) -> Actor:
    """Requests at random times, `in_flight` at once where the traffic is 1; a server turns the rest away."""
    running = [0]
    most = max(2, int(2 * in_flight))
    while True:
        yield w.rng.expovariate(1.0) * step / max(traffic(), 0.01)
        if running[0] < most:
            service = step * in_flight * min(w.rng.lognormvariate(-0.25, 0.7), longest)
            w.start(_request(w, request(), service, running))


def _request(w: Workload, size: float, service: float, running: list[int]) -> Actor:
    running[0] += 1
    tensors = [w.allocate(size * 0.6), w.allocate(size * 0.4)]
    yield service
    w.release(tensors)
    running[0] -= 1


def filling_cache(w: Workload, *, cap: float, waits: Waits, entries: int) -> Actor:
    """Entries are kept until the cache is full; from then on each new one puts the oldest out."""
    kept: deque[Block] = deque()
    held = 0
    entry = cap / entries
    while True:
        block = w.allocate(entry * w.uniform(0.5, 1.5))
        kept.append(block)
        held += block.size
        while held > cap:
            oldest = kept.popleft()
            held -= oldest.size
            w.release([oldest])
        yield waits(min(len(kept), entries - 1), entries)


def linear_waits(fill: float) -> Waits:
    """Full after `fill` seconds, at an even pace."""
    return lambda _kept, entries: fill / entries


def saturating_waits(tau: float) -> Waits:
    """Ever more of what is asked for is in the cache: 1 - exp(-t / tau)."""
    return lambda kept, entries: tau * math.log((entries - kept + 1) / (entries - kept)) + tau / entries / 4


def garbage(w: Workload, *, size: float, step: float, steps: int) -> Actor:
    """Reference cycles: held until the collector comes, every so many steps."""
    held: list[Block] = []
    while True:
        for _ in range(steps):
            held.append(w.allocate(size * w.uniform(0.6, 1.4)))
            yield step
        w.release(held)
        held = []


def leak(w: Workload, *, rate: Callable[[float, float], float], step: float, after: float) -> Actor:
    """Memory that is never given back.

    `rate` tells bytes a second, by the seconds since the leak began and the bytes that nothing was in then.
    """
    yield after
    begin, free = w.now, w.free_bytes() + w.allocator.reserved_bytes - w.allocator.allocated_bytes
    w.leak_seconds = begin
    owed = 0.0
    while True:
        wait = step * w.uniform(0.5, 1.5)
        yield wait
        owed += rate(w.now - begin, free) * wait
        if owed >= 512:
            w.allocate(owed)
            owed = 0.0


def stair_leak(w: Workload, *, size: float, every: float, after: float) -> Actor:
    """The same in large pieces, far apart."""
    yield after
    w.leak_seconds = w.now
    while True:
        yield every * w.uniform(0.8, 1.2)
        w.allocate(size * w.uniform(0.8, 1.2))


def outside_leak(w: Workload, *, rate: float, piece: float, after: float) -> Actor:
    """A library's own cudaMalloc: torch knows nothing of it."""
    yield after
    w.leak_seconds = w.now
    while True:
        yield piece / rate * w.uniform(0.7, 1.3)
        w.take_outside(int(piece))


def neighbor(w: Workload, *, most: float, every: float) -> Actor:
    """Another process on the same GPU, which comes, grows and goes."""
    while True:
        level = w.uniform(0.2, 1.0) * most
        for part in range(20):
            w.neighbor_bytes = int(level * (part + 1) / 20)
            yield every * 0.02
        yield every * w.uniform(0.3, 1.0)
        w.neighbor_bytes = 0
        yield every * w.uniform(0.1, 0.5)


def day_curve(w: Workload, night: float) -> Factor:
    """Traffic over the day, between `night` and 1, no hour of two days quite the same."""
    phase = w.uniform(0, DAY_SECONDS)
    sharpness = w.uniform(0.8, 2.0)
    wobble = [w.rng.lognormvariate(0, 0.06) for _ in range(24 * 12)]

    def traffic() -> float:
        hour, rest = divmod(w.now / 3600, 1.0)
        near = wobble[int(hour) % len(wobble)] * (1 - rest) + wobble[int(hour + 1) % len(wobble)] * rest
        height = math.pow(0.5 - 0.5 * math.cos(2 * math.pi * (w.now + phase) / DAY_SECONDS), sharpness)
        return min(1.0, (night + (1 - night) * height) * near)

    return traffic


def bursts(w: Workload) -> Factor:
    """Traffic that is on and off."""
    period = w.log_uniform(60, 1800)
    levels: list[float] = w.rng.choices((0.02, 0.3, 1.0), k=512)

    def traffic() -> float:
        return levels[int(w.now / period) % len(levels)]

    return traffic


def ramp(w: Workload, *, low: float, begin: float, length: float) -> Factor:
    """Traffic that rises from `low` to 1 and stays."""
    return lambda: low + (1 - low) * min(1.0, max(0.0, (w.now - begin) / length))
