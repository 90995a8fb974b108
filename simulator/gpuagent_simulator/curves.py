"""Describe the quantities of a scenario as curves: pure functions of its time.

How much memory a process holds, how busy a GPU is, how many errors: each is a frozen value that is called with the
seconds since it began (a process's start, or the beginning of the scenario) and answers with an amount: bytes, percent,
a count. The same seconds always give the same amount.
"""

from __future__ import annotations

import bisect
import math
import threading
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

from gpuagent.core.clock import Clock
from gpuagent.core.sections import Section, ShortForm
from gpuagent_simulator.values import Amount, PositiveSeconds, Seconds, Whole


class ScenarioClock:
    """Clock of the scenario: seconds since its beginning, by the injected clock."""

    def __init__(self, clock: Clock, start: float | None = None) -> None:
        self.clock = clock
        self.start = clock.now() if start is None else start
        """Time of the clock at second 0 of the scenario."""
        self._lock = threading.Lock()
        self._batch = (-math.inf, 0)

    def now(self) -> float:
        """Return the seconds since the beginning of the scenario."""
        return self.clock.now() - self.start

    def wall_microseconds(self) -> int:
        """Return Unix time, as the driver stamps its values."""
        return int(self.clock.wall() * 1e6)

    def batch_stamp(self) -> int:
        """Return Unix microseconds at which the current full second of the scenario began.

        One per second, for every caller.
        """
        now = self.now()
        second = math.floor(now)
        with self._lock:
            if self._batch[0] != second:
                self._batch = (second, int((self.clock.wall() - (now - second)) * 1e6))
            return self._batch[1]


_MASK = 2**64 - 1


class Shape(Section, ABC):
    """Curve of any shape; `shape` says which."""

    variant_key: ClassVar[str] = "shape"

    @abstractmethod
    def __call__(self, seconds: float) -> float:
        """Return the amount so many seconds after the beginning."""


def _plain_amount_is_constant(value: object) -> object:
    return {"shape": "constant", "value": value} if isinstance(value, int | float | str) else value


Curve = Annotated[Shape, ShortForm("an amount such as 6GiB, or a mapping with shape", _plain_amount_is_constant)]
"""Any of the shapes; in a scenario file a plain amount is a constant."""


class Constant(Shape, kw_only=False):
    """Curve that is always `value`."""

    value: Amount
    shape: Literal["constant"] = "constant"

    def __call__(self, seconds: float) -> float:  # noqa: ARG002 - time changes nothing
        return self.value


class Ramp(Shape):
    """`start`, and from `after` on `rate` more each second, never above `cap`. This is a leak."""

    rate: Amount
    start: Amount = 0.0
    cap: Amount = math.inf
    after: Seconds = 0.0
    shape: Literal["ramp"] = "ramp"

    def __call__(self, seconds: float) -> float:
        return min(self.start + self.rate * max(0.0, seconds - self.after), self.cap)


class Steps(Shape):
    """The amount of the last of `points` (seconds, amount) that has been reached.

    0 before the first.
    """

    points: tuple[tuple[Seconds, Amount], ...]
    shape: Literal["steps"] = "steps"

    def __post_init__(self) -> None:
        times = [at for at, _ in self.points]
        if not times or times != sorted(times):
            raise ValueError("points must be a list of [time, amount], earliest first")

    def __call__(self, seconds: float) -> float:
        reached = bisect.bisect_right(self.points, seconds, key=lambda point: point[0])
        return self.points[reached - 1][1] if reached else 0.0


class Staircase(Shape):
    """`start`, and `size` more after each `every`, never above `cap`.

    What grows once an epoch or a request.
    """

    size: Amount
    every: PositiveSeconds
    start: Amount = 0.0
    cap: Amount = math.inf
    shape: Literal["staircase"] = "staircase"

    def __call__(self, seconds: float) -> float:
        return min(self.start + self.size * math.floor(max(0.0, seconds) / self.every), self.cap)


class SawTooth(Shape):
    """Curve that climbs from `low` to `high` in `period`, falls back at once and climbs again.

    A cache that is emptied.
    """

    low: Amount
    high: Amount
    period: PositiveSeconds
    shape: Literal["saw_tooth"] = "saw_tooth"

    def __call__(self, seconds: float) -> float:
        return self.low + (self.high - self.low) * (max(0.0, seconds) % self.period) / self.period


class WarmUp(Shape):
    """Rise from `start` towards `level`, ever more slowly.

    63 % of the way after `time_constant`, 95 % after three.
    """

    level: Amount
    time_constant: PositiveSeconds
    start: Amount = 0.0
    shape: Literal["warm_up"] = "warm_up"

    def __call__(self, seconds: float) -> float:
        rest = math.exp(-max(0.0, seconds) / self.time_constant)
        return self.level - (self.level - self.start) * rest


class Plateau(Shape):
    """Evenly from `start` to `level` in `over`, then flat."""

    level: Amount
    over: PositiveSeconds
    start: Amount = 0.0
    shape: Literal["plateau"] = "plateau"

    def __call__(self, seconds: float) -> float:
        done = min(max(0.0, seconds) / self.over, 1.0)
        return self.level if done == 1.0 else self.start + (self.level - self.start) * done


class Noise(Shape):
    """Between -`amplitude` and +`amplitude`, another amount in each `period`.

    `seed` and time alone decide which.
    """

    amplitude: Amount
    period: PositiveSeconds = 1.0
    seed: Whole = 0
    shape: Literal["noise"] = "noise"

    def __call__(self, seconds: float) -> float:
        return self.amplitude * (2 * _uniform(self.seed, math.floor(seconds / self.period)) - 1)


class Sum(Shape):
    """All of `of`, added."""

    of: tuple[Curve, ...]
    shape: Literal["sum"] = "sum"

    def __call__(self, seconds: float) -> float:
        return math.fsum(function(seconds) for function in self.of)


SHAPES: tuple[str, ...] = tuple(Shape.variants())


def _uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) that looks random: the finaliser of SplitMix64 (https://prng.di.unimi.it/splitmix64.c)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / 2**53
