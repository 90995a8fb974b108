"""A process on a GPU as actors over an allocator, and the agent that samples it.

An actor is a generator that yields the seconds until its next act. Time is simulated: a day takes as long as its acts.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.leak.allocator import MIB, Block, CachingAllocator, OutOfMemory
from benchmarks.leak.trace import Samples

Actor: TypeAlias = Iterator[float]

GIB = 1024 * MIB
_CARDS_GIB = (16, 24, 40, 48, 80, 141)
_GAP_PROBABILITY = 0.1
"""Traces with minutes in which the agent saw nothing: it was restarted, or the GPU was blind."""


class ProcessEnds(Exception):
    """An actor's word that the process is over."""


@dataclass(frozen=True)
class Sampling:
    """How the agent looks."""

    interval_seconds: float
    jitter_ratio: float
    missing_ratio: float
    gap: tuple[float, float] | None
    """From and to when there was nothing."""


class Workload:
    """A GPU, one process on it, and what it does.

    `rng` is the one source of chance. Actors read `now`, take memory through `allocate` and friends, and may be started
    by other actors.
    """

    def __init__(self, rng: random.Random, duration_seconds: float) -> None:
        self.rng = rng
        self.duration_seconds = duration_seconds
        self.total_bytes = rng.choice(_CARDS_GIB) * GIB
        self.now = 0.0
        self.driver_bytes = rng.randint(300, 900) * MIB
        """What the driver keeps for itself."""
        self.context_bytes = rng.randint(250, 600) * MIB
        self.outside_bytes = 0
        """Of this process, beside torch: libraries' own buffers."""
        self.neighbor_bytes = 0
        self.allocator = CachingAllocator(self.free_bytes)
        self.client = True
        self.restarts: list[float] = []
        self.starts_known = True
        self.leak_seconds: float | None = None
        self._queue: list[tuple[float, int, Actor]] = []
        self._started = 0

    def free_bytes(self) -> int:
        """What the device has left."""
        taken = self.driver_bytes + self.context_bytes + self.outside_bytes + self.neighbor_bytes
        return self.total_bytes - taken - self.allocator.reserved_bytes

    def used_bytes(self) -> int:
        """The process's memory as NVML has it."""
        return self.context_bytes + self.outside_bytes + self.allocator.reserved_bytes

    def start(self, actor: Actor, after_seconds: float = 0.0) -> None:
        """Let an actor begin."""
        self._started += 1
        heapq.heappush(self._queue, (self.now + after_seconds, self._started, actor))

    def allocate(self, size: float) -> Block:
        """A tensor. Raises OutOfMemory."""
        return self.allocator.allocate(int(size))

    def take_outside(self, size: int) -> None:
        """A library's own buffer. Raises OutOfMemory."""
        if self.free_bytes() < size:
            self.allocator.empty_cache()
            if self.free_bytes() < size:
                raise OutOfMemory
        self.outside_bytes += size

    def release(self, blocks: list[Block]) -> None:
        """Tensors that are no longer used."""
        for block in blocks:
            self.allocator.release(block)

    def load(self, size: float, seconds: float, pieces: int = 24) -> Actor:
        """Weights, tensor by tensor; they stay."""
        for _ in range(pieces):
            self.allocate(size / pieces)
            yield seconds / pieces

    def step_seconds(self, natural: float, acts: float = 12_000) -> float:
        """A step's time, so long that there are at most so many in the whole trace: else a day would take minutes."""
        return max(natural, self.duration_seconds / acts)

    def uniform(self, low: float, high: float) -> float:
        """Shorthand."""
        return self.rng.uniform(low, high)

    def log_uniform(self, low: float, high: float) -> float:
        """Every order of magnitude as likely as the next."""
        return math.exp(self.rng.uniform(math.log(low), math.log(high)))

    def restart(self) -> None:
        """The process ends and another takes its place: nothing is held."""
        self.allocator = CachingAllocator(self.free_bytes)
        self.outside_bytes = 0
        self._queue.clear()
        self.restarts.append(self.now)

    def run(self, sampling: Sampling) -> tuple[Samples, float | None]:
        """Samples until the end, and when the memory ran out."""
        samples = Samples()
        due = sampling.interval_seconds * self.rng.random()
        missing = (math.nan,) * 4
        while due < self.duration_seconds:
            try:
                self._act_until(due)
            except OutOfMemory:
                return samples, self.now
            except ProcessEnds:
                return samples, None
            jitter = self.rng.gauss(0.0, sampling.jitter_ratio) * sampling.interval_seconds
            at = max(samples.times[-1] + 0.05 if samples.times else 0.0, due + jitter)
            due += sampling.interval_seconds
            if sampling.gap and sampling.gap[0] <= at < sampling.gap[1]:
                continue
            if self.rng.random() < sampling.missing_ratio:
                samples.append(at, *missing)
            else:
                allocator = self.allocator
                samples.append(
                    at, self.used_bytes(), self.free_bytes(), allocator.allocated_bytes, allocator.reserved_bytes
                )
        return samples, None

    def _act_until(self, due: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= due:
            self.now, number, actor = heapq.heappop(queue)
            wait = next(actor, None)
            if wait is not None:
                heapq.heappush(self._queue, (self.now + wait, number, actor))
        self.now = due


Prepare: TypeAlias = Callable[[Workload], None]
"""A family: draws its parameters from the workload's `rng` and starts its actors."""


def draw_sampling(rng: random.Random, duration_seconds: float) -> Sampling:
    """Every 1, 5 or 10 s (in 10, 60 and 30 % of the traces), with jitter and readings that are missing.

    Traces of more than half a day are not sampled at 1 s: that is for the time of whoever waits for the table.
    """
    interval = rng.choices((1.0, 5.0, 10.0), (0.1, 0.6, 0.3))[0]
    if duration_seconds > 43_200:
        interval = max(interval, 5.0)
    gap = None
    if rng.random() < _GAP_PROBABILITY:
        begin = rng.uniform(0.1, 0.9) * duration_seconds
        gap = (begin, begin + rng.uniform(120.0, 1800.0))
    return Sampling(interval, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.02), gap)
