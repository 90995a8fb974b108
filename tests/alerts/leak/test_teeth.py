"""Memory that is taken and given back again and again: what counts is what stays, and what was never held before."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gpuagent.core.growth import Growth, GrowthState, Range, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.device import GrowingPart, sum_up_device
from tests.alerts.leak.curves import GIB, MIB, TOTAL_BYTES, detector

MINUTE = 60.0
PERIOD = 28 * MINUTE
BESIDE = 8.0
"""GiB of another process."""
PACE = 9.0
"""MiB a second by which the lows of the leak rise: 31.6 GiB/h."""

Said = list[tuple[float, float, Growth]]
"""Time, free bytes and what is said at each reading."""


def traffic(seconds: float) -> float:
    """GiB of a server that follows its load from 24 to 58 GiB every 28 min."""
    return 24 + 34 * (seconds % PERIOD) / PERIOD


def leak_under_teeth(seconds: float) -> float:
    """GiB of what takes and gives back 10 GiB every 6 min, and keeps some of it from minute 8 on."""
    return 12 + 10 * (seconds % 360) / 360 + PACE / 1024 * max(0.0, seconds - 8 * MINUTE)


def told(
    curve: Callable[[float], float],
    until: float,
    beside: Callable[[float], float] = lambda _: BESIDE,
    watched: MemoryLeakDetector | None = None,
) -> Said:
    """What is said until then, or until the GPU is full."""
    watched, said = watched or detector(), []
    for seconds in range(0, math.ceil(until), 5):
        free = TOTAL_BYTES - (curve(seconds) + beside(seconds)) * GIB
        if free <= 0:
            break
        said.append((float(seconds), free, watched.update(float(seconds), curve(seconds) * GIB, free)))
    return said


def test_ground_that_was_held_before_is_no_news() -> None:
    """From the second time on a saw-tooth over the same ground has a pace and no forecast, and is no suspicion."""
    later = [growth for seconds, _, growth in told(traffic, 5 * PERIOD) if seconds > PERIOD + 2 * MINUTE]
    assert {growth.verdict for growth in later} <= {Verdict.LEVELLED_OFF, Verdict.STEADY, Verdict.GROWING}
    assert all(growth.forecast_seconds is None and not growth.suspected for growth in later)
    rising = [growth for growth in later if growth.verdict is Verdict.GROWING and growth.held_before]
    assert {growth.slope is not None and growth.slope.value > 0 for growth in rising} == {True}


def test_growth_above_that_ground_is_told_in_time() -> None:
    """What held 58 GiB and gave it back leaks on above that: told with a forecast before half of the rest is gone."""

    def leaks_on(seconds: float) -> float:
        return traffic(seconds) if seconds < 3 * PERIOD else 24 + 34 * (seconds - 3 * PERIOD) / PERIOD

    said = told(leaks_on, 6 * PERIOD)
    above = next(seconds for seconds, _, _ in said if leaks_on(seconds) > 58)
    first = next(seconds for seconds, _, growth in said if seconds > 3 * PERIOD and growth.forecast_seconds is not None)
    assert above < first < (above + said[-1][0]) / 2


def test_ground_that_others_have_taken_is_news() -> None:
    """With no room left for what it held before, the same rise fills the GPU: it has a forecast long before that."""
    said = told(traffic, 4 * PERIOD, lambda seconds: BESIDE if seconds < 1.5 * PERIOD else BESIDE + 16)
    full = said[-1][0]
    assert full < 2 * PERIOD
    rising = [seconds for seconds, _, one in said if seconds > 1.5 * PERIOD and one.forecast_seconds is not None]
    assert rising[0] < full - 5 * MINUTE


def test_a_leak_under_teeth_has_the_pace_of_its_lows() -> None:
    """Pace and time to full are those of what stays, and do not jump with each tooth."""
    said = told(leak_under_teeth, 3 * 3600)
    full = said[-1][0]
    leaking = [(seconds, one) for seconds, _, one in said if one.verdict is Verdict.LEAKING and full - seconds > 600]
    assert len(leaking) > 100
    for seconds, growth in leaking:
        assert growth.slope is not None
        assert growth.slope.value == pytest.approx(PACE * MIB, rel=0.05)
        assert growth.exhaustion is not None
        assert growth.exhaustion.value == pytest.approx(full - seconds, abs=8 * MINUTE)
        assert growth.state is GrowthState.RISING


def test_what_is_held_again_takes_no_part_in_the_forecast_of_its_gpu() -> None:
    """The forecast is of the leak alone; where nothing else grows, the GPU has a pace and no forecast."""
    pace = Range(2.0 * MIB, 1.0 * MIB, 3.0 * MIB)
    left = Range(20 * GIB / pace.value, 0.0, 1e9)
    leak = GrowingPart("emb", Growth(Verdict.LEAKING, slope=pace, exhaustion=left, state=GrowthState.RISING))
    again = GrowingPart(
        "v", Growth(Verdict.GROWING, slope=pace, reasons=("held",), state=GrowthState.RISING, held_before=True)
    )
    both = sum_up_device(None, [leak, again], 20 * GIB)
    assert both is not None
    assert (both.slope, both.forecast_seconds, both.held_before) == (pace, left.value, False)
    alone = sum_up_device(None, [again], 20 * GIB)
    assert alone is not None
    assert (alone.verdict, alone.forecast_seconds, alone.held_before) == (Verdict.GROWING, None, True)


def test_it_is_remembered_over_a_restart() -> None:
    """A dump in the middle of the third tooth goes on with the same words."""
    watched = detector()
    said = told(traffic, 2.8 * PERIOD, watched=watched)
    assert said[-1][2].held_before
    loaded = MemoryLeakDetector.load(watched.dump(), total_bytes=TOTAL_BYTES)
    used = traffic(2.8 * PERIOD + 5)
    again = loaded.update(2.8 * PERIOD + 5, used * GIB, TOTAL_BYTES - (used + BESIDE) * GIB)
    assert again == said[-1][2]
