"""The peers are what they are called: Prometheus' formulas, Mann-Kendall, Theil-Sen."""

from __future__ import annotations

import math
import random
import statistics
from itertools import combinations, pairwise

import pytest
from benchmarks.leak.alarms import Point, minutes
from benchmarks.leak.parts import TOTAL, trace_of
from benchmarks.leak.peers import PEERS, Level, Line, PredictLinear, TheilSen, alarms_of
from benchmarks.leak.workload import GIB


def test_the_line_is_least_squares_at_evaluation_time() -> None:
    """Slope and intercept of `linearRegression`, against the textbook's formula over the same points."""
    rng = random.Random(3)
    points = [(60.0 * k + rng.uniform(-5, 5), 5e9 + 1e6 * k + rng.gauss(0, 1e7)) for k in range(90)]
    line = Line(3600.0)
    for at, value in points:
        line.add(at, value)

    now = points[-1][0]
    inside = [(at, value) for at, value in points if at > now - 3600.0]
    expected = statistics.linear_regression([at - now for at, _ in inside], [value for _, value in inside])
    assert line.slope == pytest.approx(expected.slope, rel=1e-6)
    assert line.intercept == pytest.approx(expected.intercept, rel=1e-9)


def test_predict_linear_knows_when_a_straight_line_ends() -> None:
    """At 1 GiB a minute, 20 GiB are gone in 20 minutes, and four hours are far beyond that."""
    peer = PredictLinear(TOTAL)
    held = [peer.holds(Point(60.0 * k, 0.0, (40 - k) * GIB)) for k in range(21)]

    assert not held[0]
    assert all(held[1:])
    assert peer.exhaustion_seconds() == pytest.approx(1200.0)


def test_ninety_per_cent_must_last_for_five_minutes() -> None:
    """The rule's `for`: four minutes above are no alarm, six are one, and it does not repeat itself."""
    low, high = 70.0 * GIB, 73.0 * GIB
    short = [low] * 3 + [high] * 5 + [low] * 3
    long = [low] * 3 + [high] * 20 + [low] * 3

    assert alarms_of(PEERS[0], trace_of(short), client=False) == []
    assert [alarm.at_seconds for alarm in alarms_of(PEERS[0], trace_of(long), client=False)] == [480.0]
    assert Level(TOTAL).holds(Point(0.0, high, TOTAL - high))


def test_mann_kendall_and_sen_are_those_of_their_definitions() -> None:
    """Kept up to date step by step, they say at each step what all pairs of the window say."""
    rng = random.Random(5)
    peer = TheilSen(TOTAL)
    window: list[tuple[float, float]] = []
    for k in range(300):
        value = round(2 * GIB + k * 0.012 * TOTAL / 60 * rng.choice((0, 1, 1)) + rng.gauss(0, GIB / 4), -7)
        window = [*window, (60.0 * k, value)][-60:]
        told = peer.holds(Point(60.0 * k, value, TOTAL - value))
        assert told == (len(window) == 60 and _has_trend(window))


def _has_trend(window: list[tuple[float, float]]) -> bool:
    values = [value for _, value in window]
    signs = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    ties = [values.count(value) for value in set(values)]
    n = len(values)
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    sen = statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(window, 2))
    return signs > 0 and (signs - 1) / math.sqrt(variance) > 2.33 and sen > 0.01 * TOTAL / 3600


def test_a_process_that_restarts_begins_anew_for_what_looks_at_processes() -> None:
    """A model that loads again after a known restart is a new series, and no slope leads over the gap."""
    used = [4.0 * GIB] * 40 + [40.0 * GIB] * 40
    deriv = PEERS[2]

    assert alarms_of(deriv, trace_of(used), client=False)
    assert alarms_of(deriv, trace_of(used, starts=(0.0, 2390.0)), client=False) == []


def test_a_peer_sees_the_last_reading_of_each_minute() -> None:
    """As a scrape would; a minute without a reading is left out, and a client's figures are taken if there are any."""
    trace = trace_of([float(k * GIB) for k in range(40)], every=10.0)
    trace.samples.used[6:12] = type(trace.samples.used)("d", [math.nan] * 6)

    points = list(minutes(trace, client=False))

    assert [point.bytes / GIB for point in points] == [5, 17, 23, 29, 35, 39]
    assert all(b.time_seconds > a.time_seconds for a, b in pairwise(points))
    assert next(minutes(trace, client=True)).bytes == 2.5 * GIB
