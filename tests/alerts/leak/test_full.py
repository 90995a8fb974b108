"""Growth that stops: because there is no room, or with room; and growth of which nothing more is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gpuagent.core.growth import Growth, GrowthState, Range, Verdict
from gpuagent.core.units import format_bytes
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.settings import FULL_SHARE
from gpuagent_alerts.leak.verdict import add_fast_growth
from tests.alerts.leak.curves import GIB, HOUR, MIB, TOTAL_BYTES, Curve, detector, leak

WALL_MIB = 81_000.0
"""What the process gets until allocations fail: 920 MiB are left of 80 GiB."""
AT_THE_WALL = 31_700.0
"""A leak of 2 MiB/s has been there for a while."""


def to_the_wall(seconds: float) -> float:
    """A leak that has taken all there is."""
    return min(WALL_MIB, leak(2)(seconds))


def feed(
    watched: MemoryLeakDetector,
    curve: Curve,
    since: float,
    until: float,
    others: Callable[[float], float] = lambda _: 0,
) -> Growth:
    """Readings every 5 s, with what other processes take; the last word."""
    growth = Growth(Verdict.LEARNING)
    for seconds in range(int(since), int(until), 5):
        used = curve(seconds) * MIB
        growth = watched.update(seconds, used, max(0.0, TOTAL_BYTES - used - others(seconds) * MIB))
    return growth


@pytest.mark.slow
@pytest.mark.parametrize("client", [False, True])
def test_a_leak_at_the_wall_is_still_a_leak(client: bool) -> None:
    """Whatever time goes by: the verdict, its begin, its evidence and its pace stay, and the forecast is now."""
    watched = detector()
    seen = []
    for seconds in range(0, 40 * 3600, 15):
        used = to_the_wall(seconds) * MIB
        own = (used - GIB, used - GIB / 2) if client else (None, None)
        growth = watched.update(seconds, used, TOTAL_BYTES - used, *own)
        if seconds >= AT_THE_WALL:
            seen.append(growth)

    assert {growth.verdict for growth in seen} == {Verdict.LEAKING}
    assert {growth.state for growth in seen[60:]} == {GrowthState.FULL}
    assert len({growth.since_seconds for growth in seen}) == 1
    assert len({growth.evidence for growth in seen[60:]}) == 1
    assert all(growth.driver_confirms for growth in seen)
    last = seen[-1]
    assert last.exhaustion == Range(0.0, 0.0, 0.0)
    assert last.slope is not None
    assert last.slope.value == pytest.approx(2 * MIB, rel=0.05)


@pytest.mark.slow
def test_another_process_takes_the_last_memory() -> None:
    """There is no room for the leak either, whoever has it."""
    watched = detector()
    rising = leak(2)
    stopped = 18_000.0

    def others(seconds: float) -> float:
        return 0.0 if seconds < stopped else 80 * 1024 - rising(stopped) - 100

    growth = feed(watched, lambda seconds: rising(min(seconds, stopped)), 0, 40 * HOUR, others)
    assert (growth.verdict, growth.state) == (Verdict.LEAKING, GrowthState.FULL)


@pytest.mark.parametrize("is_read", [True, False], ids=["stood still", "was not read"])
def test_the_pace_of_growth_that_goes_on_is_that_since(is_read: bool) -> None:
    """Neither a window with the time in which memory stood still, nor the first readings after it, make a pace."""
    watched = detector()
    begin, pause, again = 600.0, 1800.0, 3000.0

    def curve(seconds: float) -> float:
        return 6144 + 25 * (min(max(seconds, begin), pause) - begin + max(0.0, seconds - again))

    feed(watched, curve, 0, pause if not is_read else again)
    seen = [feed(watched, curve, at, at + 5) for at in range(int(again), int(again) + 600, 5)]
    rising = [one for one in seen if one.state is GrowthState.RISING]
    assert len(rising) >= 84, "for three minutes at most it is said to have stopped"
    assert all(one.slope is not None and one.slope.value == pytest.approx(25 * MIB, rel=0.3) for one in rising)
    assert all(one.exhaustion is None for one in seen if one.state is GrowthState.STOPPED)


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_had_no_room_has_not_stopped_as_soon_as_it_has_some(goes_on: bool) -> None:
    """A neighbor ends at the wall: until it has stood still for a while with room, it goes on as it did."""
    watched = detector()
    rising = leak(10)
    wall, roomy = 3000.0, 3600.0

    def others(seconds: float) -> float:
        return 80 * 1024 - rising(min(seconds, wall)) - 100 if wall <= seconds < roomy else 0.0

    def curve(seconds: float) -> float:
        return rising(min(seconds, wall)) + (10 * max(0.0, seconds - roomy) if goes_on else 0.0)

    assert feed(watched, curve, 0, roomy, others).state is GrowthState.FULL
    seen = [feed(watched, curve, at, at + 5, others) for at in range(int(roomy), int(roomy) + 900, 5)][6:]
    assert [one.state for one in seen[:10]] == [GrowthState.RISING] * 10
    assert all(one.exhaustion is not None for one in seen if one.state is GrowthState.RISING)
    paces = [one.slope.value for one in seen if one.slope is not None and one.state is GrowthState.RISING]
    assert paces == pytest.approx([10 * MIB] * len(paces), rel=0.3)
    assert seen[-1].state is (GrowthState.RISING if goes_on else GrowthState.STOPPED)


@pytest.mark.slow
def test_room_again() -> None:
    """Growth that does not come back within the alarm's window ends it: what stopped, where, and with how much free."""
    watched = detector()
    rising = leak(2)
    stopped, roomy = 18_000.0, 40 * HOUR

    def others(seconds: float) -> float:
        return 80 * 1024 - rising(stopped) - 100 if stopped <= seconds < roomy else 0.0

    def curve(seconds: float) -> float:
        return rising(min(seconds, stopped))

    feed(watched, curve, 0, roomy, others)
    soon = feed(watched, curve, roomy, roomy + 1800, others)
    assert (soon.verdict, soon.state, soon.exhaustion) == (Verdict.LEAKING, GrowthState.STOPPED, None)
    over = feed(watched, curve, roomy + 1800, roomy + 5 * HOUR, others)
    assert (over.verdict, over.state, over.slope) == (Verdict.LEVELLED_OFF, None, Range(0, 0, 0))
    held, free = curve(stopped) * MIB, TOTAL_BYTES - curve(stopped) * MIB
    assert over.reasons[0].startswith(f"growth stopped at {format_bytes(held)} with {format_bytes(free)} free: no new")


@pytest.mark.parametrize("spacing", [5, 30, 60])
@pytest.mark.parametrize("is_restored", [False, True], ids=["goes on", "after a restart"])
def test_what_is_full_is_full_in_this_reading(spacing: int, is_restored: bool) -> None:
    """A neighbor ends at the wall: the first reading with room has a forecast of that room, and no full GPU."""
    watched = detector()
    rising, wall, roomy = leak(10), 3000.0, 3600
    feed(watched, rising, 0, wall)
    at_wall = feed(watched, lambda _: rising(wall), wall, roomy, lambda _: 80 * 1024 - rising(wall) - 100)
    assert at_wall.state is GrowthState.FULL
    if is_restored:
        watched = MemoryLeakDetector.load(watched.dump(), total_bytes=TOTAL_BYTES)
    seen = [feed(watched, lambda _: rising(wall), at, at + 1) for at in (roomy, roomy + spacing)]
    assert [one.state for one in seen] == [GrowthState.RISING] * 2
    assert all(one.forecast_seconds is not None and one.forecast_seconds > 600 for one in seen)
    assert {one.since_seconds for one in seen} == {at_wall.since_seconds}


def test_memory_that_is_given_back_at_the_wall() -> None:
    """A release is one, however full the GPU is with what others have taken."""
    watched = detector()
    feed(watched, to_the_wall, 0, AT_THE_WALL)
    growth = feed(watched, lambda _: 20_000, AT_THE_WALL, AT_THE_WALL + 60, lambda _: 80 * 1024 - 20_100)
    assert growth.verdict is Verdict.LEVELLED_OFF
    assert growth.reasons[0] == "it gave back 59.5 GiB, and held 19.5 GiB then"


def test_the_wall_survives_a_restart() -> None:
    """A detector that is restored says the same as the one that was written down."""
    watched = detector()
    before = feed(watched, to_the_wall, 0, AT_THE_WALL + 600)
    restored = MemoryLeakDetector.load(watched.dump(), total_bytes=TOTAL_BYTES)
    after = feed(restored, to_the_wall, AT_THE_WALL + 600, AT_THE_WALL + 7200)
    assert before.state is GrowthState.FULL
    assert (after.verdict, after.state, after.since_seconds, after.slope, after.evidence) == (
        before.verdict, before.state, before.since_seconds, before.slope, before.evidence,
    )  # fmt: skip


@pytest.mark.slow
def test_the_wall_is_where_the_alert_says_so() -> None:
    """What is free just above the limit is room."""
    limit = FULL_SHARE * TOTAL_BYTES / MIB
    watched = detector()
    growth = feed(watched, lambda seconds: min(80 * 1024 - limit - 10, leak(2)(seconds)), 0, 40 * HOUR)
    assert growth.verdict in {Verdict.LEVELLED_OFF, Verdict.STEADY}


def test_what_rises_is_never_steady() -> None:
    """Even growth is `growing` before it is suspected, without a forecast; what it takes to be a leak is more."""
    watched = detector()
    growth = feed(watched, leak(6, begin=0), 0, 1300)
    assert (growth.verdict, growth.state, growth.suspected) == (Verdict.GROWING, GrowthState.RISING, False)
    assert growth.slope is not None
    assert growth.slope.value == pytest.approx(6 * MIB, rel=0.1)
    assert growth.forecast_seconds is None
    assert growth.reasons


@pytest.mark.parametrize(
    "curve",
    [
        lambda seconds: 20_000 + 20_000 * (seconds > 4000),
        lambda seconds: 20_000 + 5_000 * (seconds > 4000) + 5_000 * (seconds > 4400),
        lambda seconds: 20_000 + min(9_000, max(0.0, 10 * (seconds - 3500))),
    ],
    ids=["one jump", "two jumps", "a load of a quarter of an hour"],
)
def test_what_has_jumped_does_not_grow(curve: Curve) -> None:
    """Memory that stands still has no growth, though it is more than half an hour ago."""
    growth = feed(detector(), curve, 0, 5400)
    assert (growth.verdict, growth.slope) == (Verdict.STEADY, Range(0, 0, 0))


@pytest.mark.slow
def test_every_verdict_agrees_with_its_growth() -> None:
    """Over a life with everything in it: never steady beside growth, nor leaking or growing without."""
    watched = detector()
    curves = [leak(2), lambda s: 20_000.0, lambda s: 20_000 + 8000 * (s % 900) / 900, leak(9, begin=200_000.0)]
    for number in range(20_000):
        seconds = number * 15
        used = min(WALL_MIB, curves[min(3, number // 6000)](seconds)) * MIB
        growth = watched.update(seconds, used, TOTAL_BYTES - used)
        slope = None if growth.slope is None else growth.slope.value
        if growth.verdict in {Verdict.GROWING, Verdict.LEAKING}:
            assert slope
            assert growth.state is not None
            assert growth.since_seconds is not None or growth.fast
        elif growth.verdict is not Verdict.CACHED:
            assert not slope
            assert growth.state is None


def test_one_forecast() -> None:
    """Beside the fast judgment the slow one has the same forecast: the sooner of the two."""
    leaks = Growth(Verdict.LEAKING, slope=Range(1, 1, 1), exhaustion=Range(425, 212, 640), state=GrowthState.RISING)
    sooner, later = (add_fast_growth(leaks, 10 * GIB / seconds, 10 * GIB) for seconds in (351, 500))
    assert (sooner.fast_exhaustion_seconds, sooner.forecast_seconds) == pytest.approx((351, 351))
    assert sooner.slope is not None
    assert sooner.slope.value == pytest.approx(10 * GIB / 351)
    assert (later.fast_exhaustion_seconds, later.forecast_seconds, later.slope) == (425, 425, leaks.slope)
    alone = add_fast_growth(Growth(Verdict.LEARNING), 2 * GIB, 18 * GIB)
    assert (alone.verdict, alone.exhaustion, alone.forecast_seconds) == (Verdict.GROWING, None, 9)


def last_told(curve: Curve, until: float, gaps: Callable[[float], bool] = lambda _: False) -> Growth:
    """What is said in the end of readings every 5 s, with none in the gaps."""
    watched = detector()
    growth = Growth(Verdict.LEARNING)
    for seconds in range(0, int(until), 5):
        used = None if gaps(seconds) else curve(seconds) * MIB
        growth = watched.update(seconds, used, None if used is None else max(0.0, TOTAL_BYTES - used))
    return growth


@pytest.mark.parametrize(
    ("pace_mib", "stops", "flat_seconds"),
    [(28.0, 1500.0, 200.0), (28.0, 1500.0, 700.0), (28.0, 1500.0, 1500.0), (2.0, 18_000.0, 900.0),
     (2.0, 18_000.0, 5000.0)],
)  # fmt: skip
def test_the_pace_of_what_has_stopped_is_that_while_it_grew(pace_mib: float, stops: float, flat_seconds: float) -> None:
    """The flat time after growth counts for nothing: the pace is what it was, however late somebody asks."""
    growth = last_told(lambda seconds: 4096 + pace_mib * max(0.0, min(seconds, stops) - 180), stops + flat_seconds)

    assert (growth.state, growth.exhaustion) == (GrowthState.STOPPED, None)
    assert growth.slope is not None
    assert growth.slope.value == pytest.approx(pace_mib * MIB, rel=0.1)


def test_what_slows_down_before_it_stops_has_the_pace_of_all_its_growth() -> None:
    """A wave of 44 GiB in an hour has grown at about that pace, not at that of its last minutes; noise is no growth."""
    watched, seen = detector(), []
    for tick in range(87 * 12):
        seconds = tick * 5.0
        used = (30 - 22 * math.cos(math.pi * min(seconds / HOUR, 1.0)) + 0.1 * math.sin(tick)) * GIB
        growth = watched.update(seconds, used, TOTAL_BYTES - used - 12 * GIB)
        if seconds > 1.05 * HOUR:
            seen.append(growth)

    assert {growth.state for growth in seen} == {GrowthState.STOPPED}
    paces = [growth.slope.value * HOUR / GIB for growth in seen if growth.slope is not None]
    assert len(paces) == len(seen)
    assert min(paces) > 40
    assert max(paces) < 60


@pytest.mark.parametrize("gap_seconds", [120.0, 600.0, 1800.0])
def test_a_list_that_was_refused_is_no_stop(gap_seconds: float) -> None:
    """Who grew before and after a gap has not stopped in it, nor is its pace another one."""
    refused = 4000.0

    def curve(seconds: float) -> float:
        return 4096 + 10 * max(0.0, seconds - 180)

    for after in (60.0, 300.0, 900.0):
        until = refused + gap_seconds + after
        growth = last_told(curve, until, lambda seconds: refused <= seconds < refused + gap_seconds)
        assert (growth.verdict, growth.state) == (Verdict.LEAKING, GrowthState.RISING), after
        assert growth.slope is not None
        assert growth.slope.value == pytest.approx(10 * MIB, rel=0.2), after


@pytest.mark.parametrize(("mib", "every"), [(400, 100), (2000, 600)])
def test_growth_in_steps_goes_on_between_them(mib: int, every: int) -> None:
    """A leak that takes memory in steps has not stopped between two of them."""
    watched = detector()
    states = set()
    for seconds in range(0, 18_000, 5):
        used = (4096 + mib * (seconds // every)) * MIB
        growth = watched.update(seconds, used, TOTAL_BYTES - used)
        if growth.verdict is Verdict.LEAKING:
            states.add(growth.state)
    assert states == {GrowthState.RISING}
