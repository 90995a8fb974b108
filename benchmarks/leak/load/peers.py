"""What people use, over the same lives: one figure a minute of what the driver tells, each process by itself.

Beside the rules of the other benchmark there are two tests for days. The trend test is Mann-Kendall's with the variance
of Hamed and Rao (1998) for what is correlated with itself, as `pymannkendall.hamed_rao_modification_test` has it. The
change points are those of the package `ruptures`, which is asked only where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any, Final

from benchmarks.leak.alarms import Point
from benchmarks.leak.load.families import Run
from benchmarks.leak.load.judge import Said, Told
from benchmarks.leak.load.services import Life
from benchmarks.leak.peers import PEERS, Condition, Hold, Peer
from gpuagent.core.growth import Evidence, Range

_WEEK_SECONDS: Final = 7 * 86_400.0
"""A trend that fills the memory within a week is a leak."""
_MINUTE: Final = 60.0


class Means:
    """Means of the readings of so many seconds, the last so many of them."""

    def __init__(self, step_seconds: float, count: int) -> None:
        self._step = step_seconds
        self._place = -1.0
        self._sum, self._count = 0.0, 0
        self.values: deque[float] = deque(maxlen=count)

    def add(self, point: Point) -> bool:
        """Take a reading; return whether a mean has become complete with it."""
        place = point.time_seconds // self._step
        is_new = place != self._place and self._count > 0
        if is_new:
            self.values.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
        self._place = place
        self._sum += point.bytes
        self._count += 1
        return is_new


class HamedRao:
    """A trend over the last day (p < 0.01), by means of 15 min, whose Sen's slope fills the memory within a week."""

    step_seconds, count = 900.0, 96
    z = 2.33

    def __init__(self, _total_bytes: int) -> None:
        self._means = Means(self.step_seconds, self.count)
        self._holds = False
        self._slope = self._free = 0.0

    def holds(self, point: Point) -> bool:
        """With this point the newest."""
        self._free = point.free_bytes
        if self._means.add(point) and len(self._means.values) == self.count:
            values = list(self._means.values)
            self._slope = sens_slope(values) / self.step_seconds
            fills = self._slope > 0 and self._free < self._slope * _WEEK_SECONDS
            self._holds = fills and hamed_rao_z(values, self._slope * self.step_seconds) > self.z
        return self._holds

    def exhaustion_seconds(self) -> float | None:
        """Until the memory is gone."""
        return self._free / self._slope if self._slope > 0 else None


def sens_slope(values: Sequence[float]) -> float:
    """Return the median of the slopes of all pairs, for each step."""
    return statistics.median((y - x) / (j - i) for (i, x), (j, y) in combinations(enumerate(values), 2))


def hamed_rao_z(values: Sequence[float], slope: float) -> float:
    """Return Mann-Kendall's z with the variance for what is correlated with itself; 0 where there is none."""
    count = len(values)
    trend = sum((y > x) - (y < x) for x, y in combinations(values, 2))
    ranks = ranks_of([value - slope * place for place, value in enumerate(values)])
    mean = statistics.fmean(ranks)
    apart = [rank - mean for rank in ranks]
    whole = math.fsum(one * one for one in apart)
    correction, bound = 0.0, 1.96 / math.sqrt(count)
    for lag in range(1, count - 1):
        correlation = math.fsum(x * y for x, y in zip(apart, apart[lag:], strict=False)) / whole if whole else 0.0
        if abs(correlation) > bound:
            correction += (count - lag) * (count - lag - 1) * (count - lag - 2) * correlation
    factor = 1 + 2 * correction / (count * (count - 1) * (count - 2))
    variance = count * (count - 1) * (2 * count + 5) / 18 * factor
    return (trend - (trend > 0) + (trend < 0)) / math.sqrt(variance) if variance > 0 else 0.0


def ranks_of(values: Sequence[float]) -> list[float]:
    """Return the ranks from 1 on; what is equal has the mean of its ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in range(first, last + 1):
            ranks[order[place]] = (first + last) / 2 + 1
        first = last + 1
    return ranks


class ChangePoints:
    """Lines between change points of the last three days, by means of 30 min, every 6 h: the last one fills the memory.

    Binary segmentation with continuous lines; a change must explain three times what a point of noise does for each of
    ln(n) points (BIC).
    """

    step_seconds, count, least, every = 1800.0, 144, 24, 12

    def __init__(self, _total_bytes: int) -> None:
        self._ruptures: Any = importlib.import_module("ruptures")
        self._numpy: Any = importlib.import_module("numpy")
        self._means = Means(self.step_seconds, self.count)
        self._seen = 0
        self._holds = False
        self._slope = self._free = 0.0

    def holds(self, point: Point) -> bool:
        """With this point the newest."""
        self._free = point.free_bytes
        if self._means.add(point):
            self._seen += 1
            if self._seen >= self.least and self._seen % self.every == 0:
                self._holds = self._look()
        return self._holds

    def exhaustion_seconds(self) -> float | None:
        """Until the memory is gone."""
        return self._free / self._slope if self._slope > 0 else None

    def _look(self) -> bool:
        values = [value / 2**30 for value in self._means.values]
        steps = [abs(y - x) for x, y in pairwise(values)]
        noise = max(1.48 * statistics.median(steps) / math.sqrt(2), 1e-3)
        signal = self._numpy.array(values).reshape(-1, 1)
        search = self._ruptures.Binseg(model="clinear", min_size=self.every, jump=4).fit(signal)
        ends = search.predict(pen=3 * math.log(len(values)) * noise * noise)
        last = values[ends[-2] if len(ends) > 1 else 0 :]
        line = statistics.linear_regression(range(len(last)), last)
        self._slope = line.slope * 2**30 / self.step_seconds
        rises = line.slope * len(last) > 3 * noise
        return rises and self._free < self._slope * _WEEK_SECONDS


def peers() -> list[Peer]:
    """Return all that can be asked here."""
    name = "Mann-Kendall with Hamed-Rao, a day, full in a week"
    found = [*PEERS, Peer(name, "Hamed-Rao", HamedRao, 900.0, device=False)]
    if importlib.util.find_spec("ruptures") is not None:
        found.append(Peer("ruptures: the last line fills it in a week", "ruptures", ChangePoints, 0.0, device=False))
    return found


def judge_by(peer: Peer, run: Run) -> list[Said]:
    """Return what a peer says of each life; each begins anew."""
    return [_judge_life(peer, peer.make(int(run.total)), life) for life in run.lives]


def _judge_life(peer: Peer, condition: Condition, life: Life) -> Said:
    found = Said(life.leak_seconds, life.begin, life.end, life.exhausted)
    hold = Hold(condition, peer.hold_seconds)
    for point in _minutes(life):
        if hold.begins_to_fire(point):
            left = condition.exhaustion_seconds()
            forecast = None if left is None else Range(left, left / 2, 2 * left)
            found.told.append(Told(point.time_seconds, forecast, (Evidence.BALANCED,), (point.time_seconds,)))
    return found


def _minutes(life: Life) -> Iterator[Point]:
    """Yield the last reading of each minute."""
    last = None
    for time, used, free in zip(life.times, life.used, life.free, strict=True):
        if last is not None and time // _MINUTE != last.time_seconds // _MINUTE:
            yield last
        last = Point(time, used, free)
    if last is not None:
        yield last
