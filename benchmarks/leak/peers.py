"""What people use today, as peers in the same table. Each sees one point a minute, as Prometheus would.

A peer is a condition that must hold for a while, as an alerting rule has it. Thresholds are those of shipped rules and
common advice, or where there is none, those at which the method does best on average of the families.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from benchmarks.leak.alarms import Alarm, Point, minutes
from benchmarks.leak.trace import Trace


class Condition(Protocol):
    """True while the rule's expression is."""

    def holds(self, point: Point) -> bool:
        """With this point the newest."""
        ...

    def exhaustion_seconds(self) -> float | None:
        """Until the memory is gone, as far as the method can tell."""
        ...


class Level:
    """Used above a share of the GPU."""

    def __init__(self, total_bytes: int, share: float = 0.9) -> None:
        self._least_free = (1 - share) * total_bytes

    def holds(self, point: Point) -> bool:
        return point.free_bytes <= self._least_free

    def exhaustion_seconds(self) -> float | None:
        return None


class Line:
    """Least squares over a range, as Prometheus' `deriv` and `predict_linear` have it: intercept at evaluation time.

    https://github.com/prometheus/prometheus/blob/main/promql/functions.go, `linearRegression`.
    """

    def __init__(self, range_seconds: float) -> None:
        self._range = range_seconds
        self._points: deque[tuple[float, float]] = deque()
        self.slope: float | None = None
        self.intercept = 0.0

    def add(self, time: float, value: float) -> None:
        """One more point; those out of the range are forgotten. `slope` is None with fewer than two."""
        points = self._points
        points.append((time, value))
        while points[0][0] <= time - self._range:
            points.popleft()
        count = len(points)
        self.slope = None
        if count < 2:
            return
        first = points[0][1]  # against cancellation, as Prometheus has a compensated sum
        sum_x = sum_y = sum_xy = sum_x2 = 0.0
        for at, size in points:
            x, y = at - time, size - first
            sum_x += x
            sum_y += y
            sum_xy += x * y
            sum_x2 += x * x
        self.slope = (sum_xy - sum_x * sum_y / count) / (sum_x2 - sum_x * sum_x / count)
        self.intercept = (sum_y - self.slope * sum_x) / count + first


class PredictLinear:
    """predict_linear(free[1h], 4 * 3600) < 0."""

    def __init__(self, _total_bytes: int, horizon_seconds: float = 4 * 3600.0) -> None:
        self._line = Line(3600.0)
        self._horizon = horizon_seconds

    def holds(self, point: Point) -> bool:
        line = self._line
        line.add(point.time_seconds, point.free_bytes)
        return line.slope is not None and line.intercept + line.slope * self._horizon < 0

    def exhaustion_seconds(self) -> float | None:
        line = self._line
        return None if not line.slope or line.slope >= 0 else max(0.0, line.intercept) / -line.slope


class Derivative:
    """deriv(used[30m]) * 3600 > 5 % of the GPU."""

    def __init__(self, total_bytes: int, share_per_hour: float = 0.05) -> None:
        self._line = Line(1800.0)
        self._least = share_per_hour * total_bytes / 3600
        self._free = 0.0

    def holds(self, point: Point) -> bool:
        self._line.add(point.time_seconds, point.bytes)
        self._free = point.free_bytes
        return self._line.slope is not None and self._line.slope > self._least

    def exhaustion_seconds(self) -> float | None:
        slope = self._line.slope
        return self._free / slope if slope and slope > 0 else None


class TheilSen:
    """Mann-Kendall finds a trend in the last hour (z > 2.33: p < 0.01) and Sen's slope is above 1 % of the GPU an hour.

    Both are kept up to date by comparing only the point that comes and the one that goes with the others. The median of
    the slopes is above a bound if most pairs rise once that bound is taken off, so no median is needed.
    """

    points = 60
    z = 2.33

    def __init__(self, total_bytes: int, share_per_hour: float = 0.01) -> None:
        self._bound = share_per_hour * total_bytes / 3600
        self._window: deque[tuple[float, float, float]] = deque()
        self._trend = 0
        self._rising = 0
        self._free = 0.0

    def holds(self, point: Point) -> bool:
        self._free = point.free_bytes
        window = self._window
        if len(window) == self.points:
            _, value, level = window.popleft()
            self._trend -= sum((other > value) - (other < value) for _, other, _ in window)
            self._rising -= sum((other > level) - (other < level) for _, _, other in window)
        value = point.bytes
        level = value - self._bound * point.time_seconds
        self._trend += sum((value > other) - (value < other) for _, other, _ in window)
        self._rising += sum((level > other) - (level < other) for _, _, other in window)
        window.append((point.time_seconds, value, level))
        return len(window) == self.points and self._rising > 0 and self._score() > self.z

    def exhaustion_seconds(self) -> float | None:
        slopes = [(y2 - y1) / (x2 - x1) for (x1, y1, _), (x2, y2, _) in combinations(self._window, 2)]
        slope = statistics.median(slopes)
        return self._free / slope if slope > 0 else None

    def _score(self) -> float:
        """Mann-Kendall's z, corrected for ties."""
        if self._trend <= 0:
            return 0.0
        count = len(self._window)
        ties = Counter(value for _, value, _ in self._window)
        variance = count * (count - 1) * (2 * count + 5)
        variance -= sum(same * (same - 1) * (2 * same + 5) for same in ties.values() if same > 1)
        return (self._trend - 1) / math.sqrt(variance / 18) if variance > 0 else 0.0


@dataclass(frozen=True)
class Peer:
    """A rule: a condition and how long it must hold."""

    name: str
    short: str
    make: Callable[[int], Condition]
    hold_seconds: float
    device: bool
    """It looks at the GPU, not at the process: a restart does not begin it anew, and a client tells it nothing."""


PEERS = (
    Peer("90 % for 5 min", "90 %", Level, 300.0, device=True),
    Peer("predict_linear(free[1h], 4h) < 0 for 10 min", "predict_linear", PredictLinear, 600.0, device=True),
    Peer("deriv([30m]) > 5 % of the GPU/h for 5 min", "deriv", Derivative, 300.0, device=False),
    Peer("Mann-Kendall p < .01 and Theil-Sen > 1 %/h, 60 min", "Theil-Sen", TheilSen, 300.0, device=False),
)


class Hold:
    """Whether the condition of a rule has held for its time, from point to point."""

    def __init__(self, condition: Condition, seconds: float) -> None:
        self._condition = condition
        self._seconds = seconds
        self._since: float | None = None
        self._firing = False

    def begins_to_fire(self, point: Point) -> bool:
        """Return whether the rule fires from this point on, and did not before it."""
        if not self._condition.holds(point):
            self._since, self._firing = None, False
            return False
        self._since = point.time_seconds if self._since is None else self._since
        begins = not self._firing and point.time_seconds - self._since >= self._seconds
        self._firing = self._firing or begins
        return begins


def alarms_of(peer: Peer, trace: Trace, *, client: bool) -> list[Alarm]:
    """When the rule began to fire."""
    found = []
    condition = peer.make(trace.total_bytes)
    hold = Hold(condition, peer.hold_seconds)
    starts = iter(() if peer.device else trace.starts[1:])
    restart = next(starts, math.inf)
    for point in minutes(trace, client=client):
        while point.time_seconds >= restart:
            condition = peer.make(trace.total_bytes)
            hold = Hold(condition, peer.hold_seconds)
            restart = next(starts, math.inf)
        if hold.begins_to_fire(point):
            found.append(Alarm(point.time_seconds, condition.exhaustion_seconds()))
    return found
