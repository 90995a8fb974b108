"""Growth that would fill the GPU within minutes."""

from __future__ import annotations

import math
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.growth import Verdict
from gpuagent_alerts.leak.blocks import BlockStore
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.forecast import GROWTH_SHARE, FastGrowth
from tests.alerts.leak.curves import GIB, MIB, TOTAL_BYTES, Curve, detector


def fast_times(
    watched: MemoryLeakDetector,
    curve: Curve,
    since: float,
    until: float,
    every: float = 1.0,
    declared_bytes: float | None = None,
) -> list[tuple[float, float | None]]:
    """When it was on, and the seconds to full that it told. The curve is in GiB."""
    told = []
    seconds = since
    while seconds < until:
        used = min(80.0, curve(seconds)) * GIB
        growth = watched.update(seconds, used, TOTAL_BYTES - used, declared_bytes=declared_bytes)
        if growth.fast:
            told.append((seconds, growth.fast_exhaustion_seconds))
        seconds += every
    return told


def collapse(seconds: float) -> float:
    """At 1000 s, from 29 GiB free to 2.5 GiB in 9 s."""
    return 51.0 + 26.5 * min(1.0, max(0.0, (seconds - 1000) / 9))


@pytest.mark.parametrize("every", [0.5, 1.0, 2.0])
def test_a_collapse_of_9_seconds(every: float) -> None:
    """LEAK-04: told with more than half of the time to go, with the seconds left, as growth and not as a leak."""
    watched = detector()
    told = fast_times(watched, collapse, 0, 1009, every)

    assert told
    assert watched.update(1009, collapse(1009) * GIB, 2.5 * GIB).verdict is Verdict.GROWING
    seconds, left = told[0]
    assert seconds <= 1004
    assert left is not None
    assert left == pytest.approx((80 - collapse(seconds)) / (26.5 / 9), rel=0.4)


def test_a_collapse_between_two_readings() -> None:
    """LEAK-04: a jump from one reading to the next has no pace, however large: the second step has."""
    told = fast_times(detector(), collapse, 0, 1011, 5)

    assert [seconds for seconds, _ in told] == [1010]


@pytest.mark.parametrize("every", [0.5, 1.0, 3.0, 5.0, 30.0])
def test_a_burst_in_one_step_is_no_collapse(every: float) -> None:
    """LEAK-04: requests that take 32 GiB at once, and hold them for three minutes, fill nothing."""
    assert not fast_times(detector(), lambda s: 60.0 if 1090 <= s < 1280 else 28.0, 0, 2000, every)


@pytest.mark.parametrize("every", [1.0, 2.0, 3.0, 5.0, 12.0])
def test_a_larger_load_begins_where_it_began(every: float) -> None:
    """LEAK-04: of a load in steps the last seconds are on new ground, and most of it is not: 34 GiB were held."""

    def loads(seconds: float) -> float:
        peak = 34.0 if seconds < 1050 else 58.0
        return 3.0 + (peak - 3.0) / 5 * min(5, max(0, (seconds % 540 - 20) // 12))

    assert not fast_times(detector(), loads, 500, 1560, every)


def test_a_warm_up_that_slows_down() -> None:
    """LEAK-04: a training that takes its memory ever more slowly stops before the GPU is full; an even one does not."""
    assert not fast_times(detector(), lambda s: 74.0 - 66 * math.exp(-s / 90), 0, 1200)
    assert fast_times(detector(), lambda s: 50.0 + max(0.0, s - 120) / 5, 0, 250)


@pytest.mark.parametrize("steps", [(3, 5, 10), (10, 3, 3, 5), (5, 10, 10, 3, 5), (3, 20, 5)])
def test_a_warm_up_that_is_read_irregularly(steps: tuple[int, ...]) -> None:
    """LEAK-04: that it slows down is told from when the readings were taken."""
    watched, seconds = detector(), 0.0
    for step in islice(cycle(steps), 60):
        seconds += step
        used = (2.0 + 66.0 * (1 - math.exp(-seconds / 90))) * GIB
        assert not watched.update(seconds, used, 75.6 * GIB - used).fast


def test_it_stays_on_for_whoever_looks_in_between() -> None:
    """It holds for 30 s after the growth, and then is gone: memory that stays is no growth."""
    told = [seconds for seconds, _ in fast_times(detector(), collapse, 0, 1200)]

    assert 1039 <= told[-1] <= 1050
    assert told == [float(second) for second in range(int(told[0]), int(told[-1]) + 1)]


def test_it_ends_without_readings_too() -> None:
    """A process of which nothing more is read is not growing for ever."""
    watched = detector()
    assert fast_times(watched, collapse, 0, 1009)
    for seconds in range(1009, 1100):
        growth = watched.update(seconds, None, None)

    assert not growth.fast


@pytest.mark.parametrize(("minutes", "expected"), [(0.5, True), (2, True), (8, True), (25, False), (60, False)])
def test_minutes_are_fast_and_hours_are_not(minutes: float, expected: bool) -> None:
    """What leaves more than 10 minutes has time for the slow evidence."""
    told = fast_times(detector(), lambda s: 20 + max(0, s - 1000), 0, 1001)
    assert not told
    told = fast_times(detector(), lambda s: 20 + 60 * max(0.0, s - 1000) / (60 * minutes), 0, 1000 + 33 * minutes)

    assert bool(told) is expected


@pytest.mark.parametrize("every", [1.0, 5.0, 20.0, 60.0])
def test_at_every_sampling_rate(every: float) -> None:
    """A GPU that fills in 6 minutes is told of before two thirds of the way, however often it is read."""
    told = fast_times(detector(), lambda s: 20 + max(0.0, s - 1000) / 6, 0, 1360, every)

    assert told
    assert told[0][0] <= 1200


def test_a_model_that_loads_at_the_start() -> None:
    """LEAK-01: loading within the blackout, and staying, says nothing."""
    assert not fast_times(detector(), lambda s: min(70.0, 1 + s), 0, 3000)


def late_load(seconds: float) -> float:
    """At 1000 s, from 10 to 60 GiB in 20 s."""
    return 10.0 + 50.0 * min(1.0, max(0.0, (seconds - 1000) / 20))


def test_a_model_that_is_loaded_late() -> None:
    """LEAK-04: is told as growth, for nothing tells it from a collapse; an app that has said what it needs is not."""
    assert fast_times(detector(), late_load, 0, 1200)
    assert not fast_times(detector(), late_load, 0, 1200, declared_bytes=61 * GIB)


def test_more_than_was_declared() -> None:
    """LEAK-04: a collapse is told at once when it goes beyond what the app needs, or when there is no room for that."""
    told = fast_times(detector(), collapse, 0, 1009, declared_bytes=55 * GIB)
    assert told
    assert told[0][0] <= 1005
    assert fast_times(detector(), late_load, 0, 1200, declared_bytes=90 * GIB)


def test_a_model_that_was_loaded_before() -> None:
    """What was held and given back is no news: of a model swap, only the first is told."""
    watched = detector()

    def swap(seconds: float) -> float:
        return 10 + min(40, 4 * (seconds % 1800)) if seconds % 1800 < 900 and seconds > 1800 else 10

    told = [int(seconds // 1800) for seconds, _ in fast_times(watched, swap, 0, 9000)]
    assert set(told) <= {1}


def test_peaks_are_no_growth() -> None:
    """A peak of requests that is given back every minute is held before."""
    told = fast_times(detector(), lambda s: 40 + (s % 60) / 4, 0, 4000)

    assert all(seconds < 300 for seconds, _ in told)


def test_small_growth_is_not_fast() -> None:
    """A third of what was free, in seconds, is a large request."""
    assert not fast_times(detector(), lambda s: 40 + 13 * min(1.0, max(0.0, (s - 1000) / 5)), 0, 1200)


@given(
    readings=st.lists(st.tuples(st.integers(1, 20), st.floats(0, 80), st.floats(0, 80)), min_size=2, max_size=60),
)
def test_the_cheapest_test_misses_nothing(readings: list[tuple[int, float, float]]) -> None:
    """LEAK-04: it leaves out the readings alone whose longest look back would not have been enough either."""
    fast, store = FastGrowth(), BlockStore()
    now = 0.0
    for seconds, used, free in readings:
        now += seconds
        fast.update(now, used * GIB, free * GIB, store)
        rise = used * GIB - min(fast.used)
        if used < GROWTH_SHARE * (free + used):
            assert not rise >= GROWTH_SHARE * (free * GIB + rise) > 0


@pytest.mark.parametrize("every", [1.0, 2.0, 5.0])
def test_memory_that_only_changes_owner_is_no_growth(every: float) -> None:
    """LEAK-04: 60 GiB that another owner gives up in the same moment leave the GPU as full as it was."""
    watched, seconds = detector(), 0.0
    while seconds < 1300:
        used = (61 if seconds >= 1000 else 1) * GIB
        assert not watched.update(seconds, used, 18 * GIB).fast
        seconds += every


@pytest.mark.parametrize("every", [1.0, 5.0])
def test_what_was_taken_over_is_no_pace_for_what_comes_after(every: float) -> None:
    """LEAK-04: 60 GiB of another owner, and then 50 MiB/s of its own: the 18 GiB last minutes, not seconds."""
    watched, seconds = detector(), 0.0
    while seconds < 1240:
        own = 0.05 * max(0.0, seconds - 1000) * GIB
        used = (61 if seconds >= 1000 else 1) * GIB + own
        growth = watched.update(seconds, used, 18 * GIB - own)
        told = growth.fast_exhaustion_seconds
        assert told is None or told > 0.5 * (18 * GIB - own) / (0.05 * GIB), seconds
        seconds += every


def test_the_first_reading_after_blindness_is_no_collapse() -> None:
    """LEAK-04: what grew while nothing was seen may have stopped long ago; the next readings show whether it has."""
    watched, seconds = detector(), 0.0
    while seconds < 1000:
        watched.update(seconds, 20 * GIB, 58 * GIB)
        seconds += 1
    for after in range(60):
        assert not watched.update(1300.0 + after, 60 * GIB, 18 * GIB).fast, after


def test_a_collapse_that_goes_on_after_blindness_is_told() -> None:
    """LEAK-04: as soon as a good part of what was free is seen to go, at the pace of what is seen."""
    watched, seconds = detector(), 0.0
    while seconds < 1000:
        watched.update(seconds, 20 * GIB, 58 * GIB)
        seconds += 1
    told = fast_times(watched, lambda now: 62.0 + 2 * (now - 1300), 1300, 1308)
    seconds_told, left = told[0]
    assert seconds_told == 1304.0
    assert left == pytest.approx(5.0, rel=0.1)


def test_a_neighbor_that_ends_changes_no_pace() -> None:
    """LEAK-04: what others give back is more room, and no faster growth: the forecast comes later."""
    watched = detector()
    told: dict[int, tuple[float, float]] = {}
    for seconds in range(400):
        used = (1024 + 120 * max(0, seconds - 20)) * MIB
        others = (12 if seconds < 390 else 4) * GIB
        growth = watched.update(seconds, used, TOTAL_BYTES - used - others)
        if growth.fast and growth.slope is not None and growth.fast_exhaustion_seconds is not None:
            told[seconds] = growth.slope.value, growth.fast_exhaustion_seconds

    assert told.keys() >= set(range(386, 400))
    assert told[390][0] == told[389][0] == pytest.approx(120 * MIB, rel=0.1)
    assert told[390][1] > told[389][1] + 60
