"""A slow leak below a large cache: the driver's figure shows a few steps a day."""

from __future__ import annotations

from dataclasses import replace

from gpuagent.core.growth import Verdict
from gpuagent_alerts.leak.settings import EVEN, SETTINGS
from tests.alerts.leak.curves import HOUR, Curve, detector, first, show
from tests.alerts.leak.test_vectors import told


def stairs(*hours: float) -> Curve:
    """700 MiB more at each of these hours."""
    return lambda seconds: 20_000 + 700 * sum(seconds >= hour * HOUR for hour in hours)


FIVE = stairs(6, 11, 15, 20, 24)


def test_a_few_steps_a_day_are_a_leak() -> None:
    """LEAK-02: a process whose memory goes up five times a day, and never down, is told in its second day."""
    alarm = first(show(detector(), FIVE, 36 * HOUR, every=15), Verdict.LEAKING)

    assert alarm is not None
    assert 24 * HOUR < alarm < 30 * HOUR


def test_kills_ask_for_more() -> None:
    """The strict criterion, for which remedies ask, does not take five steps for a trend."""
    assert first(show(detector("strict"), FIVE, 36 * HOUR, every=15), Verdict.LEAKING) is None
    assert list(told(FIVE, replace(SETTINGS["balanced"], even_long=EVEN))) == []


def test_three_steps_are_none() -> None:
    """LEAK-01: what goes up three times a day and stays is left alone: models are loaded, caches filled."""
    assert first(show(detector(), stairs(6, 14, 24), 48 * HOUR, every=15), Verdict.LEAKING) is None


def test_steps_that_come_ever_more_slowly_are_a_caches() -> None:
    """LEAK-01: the same five steps, the last of them hours later each time, are left alone."""
    slowing = stairs(6, 8, 11, 15.5, 23.5)

    assert first(show(detector(), slowing, 30 * HOUR, every=15), Verdict.LEAKING) is None
    assert list(told(slowing, replace(SETTINGS["balanced"], bend_long_few=-1.0)))
