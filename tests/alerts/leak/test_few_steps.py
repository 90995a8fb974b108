"""A slow leak below a large cache: the driver's figure shows a few steps a day."""

from __future__ import annotations

from dataclasses import replace

from gpuagent.core.growth import Verdict
from gpuagent_alerts.leak.settings import SETTINGS, Evenness
from tests.alerts.leak.curves import HOUR, Curve, detector, first, show
from tests.alerts.leak.test_vectors import told


def stairs(*hours: float) -> Curve:
    """700 MiB more at each of these hours."""
    return lambda seconds: 20_000 + 700 * sum(seconds >= hour * HOUR for hour in hours)


FIVE = stairs(6, 11, 15, 20, 24)


NINE = stairs(2, 5, 8, 11, 14, 17, 20, 23, 26)


def test_nine_steps_a_day_are_a_leak() -> None:
    """LEAK-02: a process whose memory goes up every three hours, and never down, is told in its second day."""
    alarm = first(show(detector(), NINE, 40 * HOUR, every=15), Verdict.LEAKING)

    assert alarm is not None
    assert 20 * HOUR < alarm < 30 * HOUR


def test_five_steps_a_day_are_no_trend() -> None:
    """LEAK-01: a service that lives for weeks and takes a few more adapters a day is left alone."""
    assert first(show(detector(), FIVE, 36 * HOUR, every=15), Verdict.LEAKING) is None
    few = replace(SETTINGS["balanced"], even=Evenness(eighths=4, largest_eighth=0.4, increments=4.0))
    assert list(told(FIVE, few))


def test_three_steps_are_none() -> None:
    """LEAK-01: what goes up three times a day and stays is left alone: models are loaded, caches filled."""
    assert first(show(detector(), stairs(6, 14, 24), 48 * HOUR, every=15), Verdict.LEAKING) is None
