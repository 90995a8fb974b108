"""A leak in steps that are hours apart: one pace, and a forecast that counts down between two steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.growth import Growth, GrowthState, Range, Verdict
from gpuagent_alerts.leak.device import FreeMemory, GrowingPart, sum_up_device
from gpuagent_alerts.leak.forecast import Steps, exhaustion_of
from tests.alerts.leak.curves import GIB, HOUR, TOTAL_BYTES, detector

SIZE, EVERY = 4, 2 * HOUR
BESIDE = 20 * GIB


def held(seconds: float) -> int:
    """Bytes: 4 GiB more every 2 hours."""
    return (6 + SIZE * int(seconds // EVERY)) * GIB


def told() -> list[tuple[float, Growth]]:
    """What is said at each reading, half a minute apart, until there is no room for a step."""
    watched, said, seconds = detector(), [], 0.0
    while held(seconds) + BESIDE < TOTAL_BYTES:
        free = TOTAL_BYTES - BESIDE - held(seconds)
        said.append((seconds, watched.update(seconds, held(seconds), free)))
        seconds += 30.0
    return said


@pytest.mark.slow
def test_a_step_is_not_the_pace_of_a_leak_in_steps() -> None:
    """No step is told as fast growth once the leak is known, and the pace is that of all steps, to the last."""
    leaks = [(seconds, one) for seconds, one in told() if one.verdict is Verdict.LEAKING]
    assert leaks
    assert not any(one.fast for _, one in leaks)
    paces = [one.slope.value * 3600 / GIB for _, one in leaks if one.slope is not None]
    assert min(paces) > 1.2
    assert max(paces) < 3.1


@pytest.mark.slow
def test_the_forecast_counts_down_between_two_steps() -> None:
    """It is full at a step: the time to that goes by while nothing changes, and near its end it is near the truth."""
    said = told()
    full = said[-1][0]
    last = {round((full - seconds) / 60): one.exhaustion for seconds, one in said if full - seconds < 110 * 60}
    assert all(each is not None for each in last.values())
    for minutes in (100, 60, 30, 10):
        forecast = last[minutes]
        assert forecast is not None
        assert forecast.value == pytest.approx(minutes * 60, abs=12 * 60)


@pytest.mark.parametrize(
    ("free_gib", "flat_hours", "hours"),
    [(8, 0.0, 4.0), (8, 1.0, 3.0), (2, 0.0, 2.0), (2, 1.5, 0.5), (2, 5.0, 0.2)],
)
def test_full_at_a_step(free_gib: float, flat_hours: float, hours: float) -> None:
    """The next step is the earliest time at which it is full; a step that is late is expected soon."""
    forecast = exhaustion_of(free_gib * GIB, SIZE * GIB / EVERY, Steps(EVERY, flat_hours * HOUR))
    assert forecast is not None
    assert forecast.value == pytest.approx(hours * HOUR)


def test_memory_that_falls_in_steps_falls() -> None:
    """What is free has not changed for an hour, and fell before: the forecast of a leak in steps stays."""
    free = FreeMemory()
    for minute in range(5 * 60):
        free.add(60.0 * minute, TOTAL_BYTES - held(60.0 * minute))
    fall = free.fastest_fall(5 * HOUR, TOTAL_BYTES - held(5 * HOUR))
    assert fall is not None
    assert fall * 3600 / GIB == pytest.approx(2.0, rel=0.1)
    leak = Growth(Verdict.LEAKING, slope=Range(6e5, 3e5, 9e5), exhaustion=Range(9000.0, 4500.0, 13500.0))
    part = GrowingPart("nightly", replace(leak, state=GrowthState.RISING))
    whole = sum_up_device(None, [part], 5 * GIB, fall=fall)
    assert whole is not None
    assert whole.exhaustion == leak.exhaustion
