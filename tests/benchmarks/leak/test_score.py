"""The rules of the count."""

from __future__ import annotations

import math

import pytest
from benchmarks.leak.alarms import Alarm
from benchmarks.leak.score import Facts, Outcome, collapses, poisson, quantile, score, wilson
from benchmarks.leak.trace import Kind

DAY = 86_400.0
BENIGN = Facts("benign/made up", Kind.BENIGN, 0.0, 2 * DAY, None, None)
LEAK = Facts("leak/made up", Kind.LEAK, 0.0, DAY, 0.5 * DAY, DAY)
HARD = BENIGN._replace(kind=Kind.HARD)


def alarms(*times: float) -> list[Alarm]:
    """Without a forecast."""
    return [Alarm(time, None) for time in times]


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)]
)
def test_wilson_is_that_of_the_books(hits: int, count: int, low: float, high: float) -> None:
    """Newcombe (1998), table I, method 3: 81 of 263 gives 0.2553 to 0.3662; none of ten is not nothing."""
    assert wilson(hits, count)[1:] == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("events", "low", "high"), [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (10, 4.7954, 18.3904), (100, 81.364, 121.627)]
)
def test_poisson_is_exact(events: int, low: float, high: float) -> None:
    """Garwood's table (chi-squared quantiles over two), per two days here."""
    assert poisson(events, 2.0)[1:] == pytest.approx((low / 2, high / 2), rel=1e-3)


def test_no_time_says_nothing() -> None:
    """Without leak-free time the rate can be anything."""
    assert poisson(0, 0.0)[1:] == (0.0, math.inf)
    assert wilson(0, 0)[1:] == (0.0, 1.0)


def test_every_alarm_on_what_does_not_leak_is_false_but_once_in_half_an_hour() -> None:
    """Flapping counts once, as an operator counts it."""
    assert Outcome(BENIGN, alarms(100, 200, 5000)).false_alarms == 2
    assert Outcome(BENIGN, alarms(100, 1700, 3300)).false_alarms == 1
    assert Outcome(BENIGN, []).false_alarms == 0


def test_an_alarm_before_the_leak_does_not_find_it() -> None:
    """It is false, and the leak is missed unless another comes within its life."""
    early = Outcome(LEAK, alarms(0.4 * DAY))
    both = Outcome(LEAK, alarms(0.4 * DAY, 0.6 * DAY, 0.7 * DAY))

    assert (early.hit, early.false_alarms) == (None, 1)
    assert (both.hit, both.false_alarms) == (Alarm(0.6 * DAY, None), 1)


def test_the_row_of_a_method() -> None:
    """One of two leaks found halfway, one false alarm in three leak-free days, the hard trace nowhere."""
    found = Outcome(LEAK, [Alarm(0.75 * DAY, 0.5 * DAY)])
    row = score("x", "app", [found, Outcome(LEAK, []), Outcome(BENIGN, alarms(5)), Outcome(HARD, alarms(5))], 1e-6)

    assert (row.lives, row.hits, row.recall.value) == (2, 1, 0.5)
    assert (row.days, row.false, row.traces, row.traces_alarmed) == (3.0, 1, 1, 1)
    assert row.false_per_day.value == pytest.approx(1 / 3)
    assert row.delay_minutes == (360.0, 360.0)
    assert (row.life_share, row.lead) == (0.5, 0.5)
    assert row.forecast == (2.0, 2.0, 2.0, 1.0)


def test_a_quantile_is_a_value_that_was_measured() -> None:
    """The smallest that the share does not exceed."""
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.25, 0.5, 0.95, 1.0)] == [1.0, 2.0, 4.0, 4.0]


def test_collapses_are_counted_apart() -> None:
    """Told before the end or not, and how often the word falls where nothing collapses."""
    sudden = LEAK._replace(kind=Kind.COLLAPSE, leak_seconds=100.0, exhausted_seconds=160.0, end_seconds=160.0)
    found = collapses([Outcome(sudden, alarms(150)), Outcome(sudden, []), Outcome(BENIGN, alarms(5))])

    assert (found.told, found.traces, found.seconds_before) == (1, 2, 10.0)
    assert found.words_per_day.value == 0.5
