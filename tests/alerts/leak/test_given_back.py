"""A leak that gives back most of what it took, and leaks on: told as what it is, at each moment."""

from __future__ import annotations

import math

import pytest

from gpuagent.core.growth import Growth, GrowthState, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from tests.alerts.leak.curves import GIB, HOUR, MIB, TOTAL_BYTES, detector

MINUTE = 60.0
PACE = 30.0
"""MiB a second: 105 GiB/h."""
BESIDE = 20 * GIB
"""What another process holds all the time."""


def sheds(seconds: float, gives_back: float = 30.0) -> float:
    """MiB of what leaks from minute 15 to 41, gives back so many GiB at minute 44, and leaks on from minute 70."""
    held = 6 * 1024 + PACE * (min(seconds, 41 * MINUTE) - min(seconds, 15 * MINUTE))
    held -= gives_back * 1024 if seconds >= 44 * MINUTE else 0
    return held + PACE * max(0.0, seconds - 70 * MINUTE)


def told(
    until: float, gives_back: float = 30.0, watched: MemoryLeakDetector | None = None
) -> list[tuple[float, Growth]]:
    """What is said at each reading until then, or until the GPU is full."""
    watched, said = watched or detector(), []
    for seconds in range(0, math.ceil(until), 5):
        used = sheds(seconds, gives_back) * MIB
        if used + BESIDE >= TOTAL_BYTES:
            break
        said.append((float(seconds), watched.update(float(seconds), used, TOTAL_BYTES - BESIDE - used)))
    return said


def test_a_leak_that_gives_back_most_of_all_that_it_took() -> None:
    """Half of all its growth is gone, also of that since the alarm: it has levelled off, and says what came back."""
    said = told(70 * MINUTE)
    ended = next(seconds for seconds, growth in said if growth.verdict is Verdict.LEVELLED_OFF)
    assert 44 * MINUTE < ended <= 45 * MINUTE
    assert {growth.reasons[0] for _, growth in said if growth.verdict is Verdict.LEVELLED_OFF} == {
        "it gave back 30.0 GiB, and held 21.7 GiB then"
    }


def test_a_leak_that_gives_back_a_little() -> None:
    """Less than half of it ends nothing; and where it stopped at last is told, with what is held and free."""
    said = told(90 * MINUTE, 8.0)
    assert {growth.verdict for seconds, growth in said if 44 * MINUTE < seconds < 70 * MINUTE} == {Verdict.LEAKING}


def test_a_peak_is_no_growth_that_is_given_back() -> None:
    """What is held for a minute on top of a leak, and is gone again, ends no leak."""
    watched, verdicts = detector(), set()
    for seconds in range(0, 4 * 3600, 5):
        held = 6 * 1024 + 3 * max(0.0, seconds - 900.0) + (30 * 1024 if seconds % 1800 < 60 else 0)
        used = held * MIB
        growth = watched.update(float(seconds), used, TOTAL_BYTES - used)
        if growth.verdict is Verdict.LEAKING:
            verdicts.add(Verdict.LEAKING)
        elif verdicts:
            verdicts.add(growth.verdict)
    assert verdicts == {Verdict.LEAKING}


def test_what_leaked_before_is_suspected_on_ground_that_it_held() -> None:
    """It grows again to where it was: told as growing with its true pace, and when the GPU is full, in time."""
    said = told(2 * HOUR)
    full = said[-1][0]
    rises = [(seconds, one) for seconds, one in said if seconds > 70 * MINUTE and one.exhaustion is not None]
    assert rises[0][0] < 80 * MINUTE  # of 21 min
    assert {one.verdict for _, one in rises} <= {Verdict.GROWING, Verdict.LEAKING}
    seconds, growth = next(one for one in rises if one[0] > full - 5 * MINUTE)
    assert growth.slope is not None
    assert growth.slope.value == pytest.approx(PACE * MIB, rel=0.1)
    assert growth.exhaustion is not None
    assert growth.exhaustion.value == pytest.approx(full - seconds, abs=75)
    assert growth.state is GrowthState.RISING


def test_growth_that_began_a_while_ago_has_its_own_pace() -> None:
    """What stood still before is no part of the pace: also where nothing is suspected yet."""
    growing = [one for seconds, one in told(2 * HOUR) if seconds > 75 * MINUTE and one.verdict is Verdict.GROWING]
    assert growing
    slopes = [one.slope.value for one in growing if one.slope is not None and not one.suspected]
    assert all(slope == pytest.approx(PACE * MIB, rel=0.1) for slope in slopes)


def test_what_is_left_is_of_now() -> None:
    """The room in the reasons is what is free at this moment, and not at the alarm."""
    seconds, growth = told(41 * MINUTE)[-1]
    assert growth.verdict is Verdict.LEAKING
    left = float(growth.reasons[1].partition("with ")[2].removesuffix(" GiB left"))
    assert left == pytest.approx((TOTAL_BYTES - BESIDE) / GIB - sheds(seconds) / 1024, abs=2)  # renewed each minute
