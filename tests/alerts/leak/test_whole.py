"""A GPU as a whole: the sum of what grows on it."""

from __future__ import annotations

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, Range, Verdict
from gpuagent_alerts.leak.device import FreeMemory, GrowingPart, sum_up_device

STEADY, LEARNING = Growth(Verdict.STEADY), Growth(Verdict.LEARNING)


def growing(slope: float, seconds: float | None = None, **changes: object) -> Growth:
    """A part that grows by so many bytes a second, and fills the GPU by itself in so many seconds."""
    exhaustion = None if seconds is None else Range(seconds, seconds / 2, seconds * 1.5)
    plain = {"slope": Range(slope, slope - 1, slope + 1), "exhaustion": exhaustion, "reasons": ("it rose",), **changes}
    return Growth(**{"verdict": Verdict.GROWING, **plain})  # type: ignore[arg-type]


def test_nothing_grows() -> None:
    """What is said of nobody's memory is said of the GPU; a part that is judged is enough to have learned."""
    assert sum_up_device(STEADY, [], 10) is STEADY
    assert sum_up_device(LEARNING, [], 10) is LEARNING
    assert sum_up_device(LEARNING, [], 10, settled=True) == STEADY
    assert sum_up_device(None, [], 10) == LEARNING


def test_several_fill_it_sooner_than_each() -> None:
    """LEAK-02: slopes add up, and the forecast is that of all together; the earliest begin counts."""
    parts = [
        GrowingPart("a", growing(10.0, 100.0, since_seconds=5.0)),
        GrowingPart("b", growing(30.0, 33.0, since_seconds=3.0)),
    ]
    said = sum_up_device(STEADY, parts, 1000)
    assert said is not None
    assert said.slope == Range(40.0, 38.0, 42.0)
    assert said.exhaustion == Range(25.0, 12.5, 37.5)
    assert said.since_seconds == 3.0
    assert (said.verdict, said.evidence) == (Verdict.GROWING, None)


def test_a_mig_instance_is_full_by_itself() -> None:
    """LEAK-02: it grows into its own memory, and says nothing of when its GPU is full."""
    parts = [GrowingPart("a", growing(10.0, 100.0)), GrowingPart("b", growing(30.0, 50.0), shares_free=False)]
    said = sum_up_device(STEADY, parts, 10)
    assert said is not None
    assert said.exhaustion is not None
    assert said.exhaustion.value == 100.0
    assert said.slope is not None
    assert said.slope.value == 40.0


def test_one_forecast_for_what_grows_fast() -> None:
    """LEAK-04: fast and slow judgment name the same time, the sooner one."""
    parts = [
        GrowingPart("a", growing(10.0, 425.0)),
        GrowingPart("b", Growth(Verdict.GROWING, fast=True, fast_exhaustion_seconds=351.0)),
    ]
    said = sum_up_device(STEADY, parts, None)
    assert said is not None
    assert (said.fast_exhaustion_seconds, said.exhaustion) == (351.0, Range(351.0, 175.5, 526.5))
    slow = sum_up_device(STEADY, [parts[1], GrowingPart("a", growing(10.0, 99.0))], None)
    assert slow is not None
    assert (slow.fast_exhaustion_seconds, slow.forecast_seconds) == (99.0, 99.0)


def test_a_part_that_is_not_suspected_has_no_forecast() -> None:
    """LEAK-02: even growth of which no more is known fills nothing yet, not even together with others."""
    said = sum_up_device(STEADY, [GrowingPart("a", growing(10.0)), GrowingPart("b", growing(30.0))], 1000)
    assert said is not None
    assert (said.verdict, said.exhaustion, said.suspected) == (Verdict.GROWING, None, False)


def test_it_rises_while_a_part_does() -> None:
    """LEAK-02: where all have stopped, it is because the GPU is full, if that is so."""

    def state(*states: GrowthState) -> GrowthState | None:
        said = sum_up_device(STEADY, [GrowingPart("a", growing(1.0, state=one)) for one in states], 1000)
        return None if said is None else said.state

    assert state(GrowthState.FULL, GrowthState.RISING) is GrowthState.RISING
    assert state(GrowthState.STOPPED, GrowthState.FULL) is GrowthState.FULL
    assert state(GrowthState.STOPPED) is GrowthState.STOPPED


def test_one_leak_is_enough() -> None:
    """LEAK-02: the GPU leaks where a part does, by the strictest evidence; the leak's reason comes first."""
    parts = [
        GrowingPart("a", growing(10.0)),
        GrowingPart("b", growing(1.0, verdict=Verdict.LEAKING, evidence=Evidence.SENSITIVE)),
        GrowingPart("c", growing(1.0, verdict=Verdict.LEAKING, evidence=Evidence.STRICT)),
    ]
    said = sum_up_device(STEADY, parts, 1000)
    assert said is not None
    assert (said.verdict, said.evidence) == (Verdict.LEAKING, Evidence.STRICT)
    assert said.reasons == ("b: it rose", "c: it rose", "a: it rose")


def test_fast_growth_is_no_verdict() -> None:
    """LEAK-04: it is told beside the verdict, with the shortest time that is left."""
    parts = [
        GrowingPart("a", Growth(Verdict.LEARNING, fast=True, fast_exhaustion_seconds=9.0)),
        GrowingPart("b", Growth(Verdict.STEADY, fast=True, fast_exhaustion_seconds=7.0)),
    ]
    said = sum_up_device(STEADY, parts, 1000)
    assert said is not None
    assert (said.verdict, said.fast, said.fast_exhaustion_seconds) == (Verdict.STEADY, True, 7.0)
    assert (said.slope, said.exhaustion) == (None, None)


def test_growth_that_another_gives_back_fills_nothing() -> None:
    """LEAK-02: no forecast while what is free does not fall, and a later one where it falls slowly."""
    parts = [GrowingPart("a", growing(10.0, 100.0))]

    def forecast(fall: float | None) -> float | None:
        said = sum_up_device(STEADY, parts, 1000, fall=fall)
        assert said is not None
        return None if said.exhaustion is None else said.exhaustion.value

    assert [forecast(fall) for fall in (None, 10.0, 6.0, 2.0, 0.0, -5.0)] == [100.0, 100.0, 100.0, 500.0, None, None]


def test_a_forecast_is_of_the_paces_that_are_told() -> None:
    """LEAK-02: growth that has no forecast of its own yet takes its share; what has stopped, or is an instance's, none.

    In `eb leaking 42 GiB/h (and ea 48 GiB/h), full in 33 min`, both fill what is free.
    """
    others: list[tuple[Growth, bool, float]] = [
        (growing(30.0, state=GrowthState.RISING), True, 25.0),
        (growing(30.0, state=GrowthState.STOPPED), True, 100.0),
        (growing(30.0, state=GrowthState.RISING), False, 100.0),
        (growing(90.0, fast=True, fast_exhaustion_seconds=11.0, state=GrowthState.RISING), True, 10.0),
    ]
    leak = GrowingPart("a", growing(10.0, 100.0, verdict=Verdict.LEAKING, state=GrowthState.RISING))
    for other, shares_free, seconds in others:
        said = sum_up_device(STEADY, [leak, GrowingPart("b", other, shares_free=shares_free)], 1000)
        assert said is not None
        assert said.forecast_seconds == seconds


@pytest.mark.parametrize("ends", [(3000.0,), (2990.0, 3020.0)], ids=["at once", "in two steps"])
@pytest.mark.parametrize("held", [0.0, 1.0], ids=["with room", "full before"])
def test_the_fall_of_free_memory_after_a_program_ended(ends: tuple[float, ...], held: float) -> None:
    """LEAK-02: until two minutes have passed it is the one of before, or not known where there was no room."""
    free, falls = FreeMemory(), []
    for second in range(0, 3600, 15):
        back = sum(4e9 / len(ends) for end in ends if second >= end)
        now = back + (0.0 if held and second < 3000 else 6e9 - 1e6 * second)
        free.add(float(second), now)
        if second >= 3000:
            falls.append(free.fastest_fall(float(second), now))
    assert {fall if fall is None else round(fall, -3) for fall in falls} <= {1e6} | ({None} if held else set())
    assert falls[-1] == pytest.approx(1e6)


def test_a_program_that_ended_after_others_took_more_than_it_held() -> None:
    """LEAK-02: over half an hour a little less is free, and that is no slow fall: what goes on is as fast as it was."""
    free = FreeMemory()
    for second in range(0, 4200, 15):
        now = 80e9 - 17.5e6 * min(second, 3000) - 9.7e6 * max(0, second - 3000) + (29e9 if second >= 3000 else 0.0)
        free.add(float(second), now)
        if second >= 3000:
            fall = free.fastest_fall(float(second), now)
            assert fall is not None
            assert 9.69e6 <= fall <= 17.51e6


def test_memory_that_is_given_back_evenly_is_no_program_that_ended() -> None:
    """LEAK-02: what comes back as fast as others grow leaves no fall, at each moment."""
    free = FreeMemory()
    for second in range(0, 3600, 15):
        now = 1e9 + 1000.0 * second
        free.add(float(second), now)
        fall = free.fastest_fall(float(second), now)
        assert fall is None or fall <= 0


def test_how_fast_free_memory_falls() -> None:
    """The fastest of several windows: a program that ended hides no fall; two minutes are needed."""
    free = FreeMemory()
    assert free.fastest_fall(0.0, 1e9) is None
    for second in range(0, 1800, 30):
        free.add(float(second), 1e9 - 1000.0 * second + (5e8 if second >= 1500 else 0.0))
    assert free.fastest_fall(1800.0, 1.5e9 - 1.8e6) == pytest.approx(1000.0)
    flat = FreeMemory()
    for second in range(0, 3600, 5):
        flat.add(float(second), 1e9)
    assert flat.fastest_fall(3600.0, 1e9) == 0.0
