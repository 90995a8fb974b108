"""What the detector says of a life where others of its service have shown something."""

from __future__ import annotations

import math

import pytest

from gpuagent.core.growth import Evidence, Verdict
from gpuagent_alerts.leak.blocks import PAGE_BYTES
from gpuagent_alerts.leak.course import LIVES_ROSE
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.settings import Sensitivity
from gpuagent_alerts.leak.witnesses import NOTHING_KNOWN, Prior
from tests.alerts.leak.curves import GIB, HOUR, MIB, Change, Curve, detector, first, leak, plateau, show


def words_of(watched: MemoryLeakDetector, curve: Curve, until: float) -> list[Change]:
    """Every word of a detector, also where the verdict stays."""
    words: list[Change] = []
    for tick in range(int(until / 15)):
        used = curve(15.0 * tick) * MIB
        if used >= 80 * GIB:
            break
        said = watched.update(15.0 * tick, used, 80 * GIB - used)
        if not words or said is not words[-1].growth:
            words.append(Change(15.0 * tick, said))
    return words


@pytest.mark.slow
def test_a_cache_that_stopped_before_is_held_back() -> None:
    """LEAK-01: growth to where an earlier life levelled off is growth; beyond it, it is a leak."""
    watched = detector()
    watched.use_prior(Prior(level_used=int(60_000 * MIB) // PAGE_BYTES))
    words = words_of(watched, leak(2), 9 * HOUR)
    told = first(words, Verdict.LEAKING)
    plain = first(show(detector(), leak(2), 9 * HOUR, every=15), Verdict.LEAKING)

    assert plain is not None
    assert told is not None
    assert leak(2)(plain) < 50_000
    assert 60_000 < leak(2)(told) < 68_000
    held = next(one.growth for one in words if one.seconds > plain + 60)
    assert held.verdict is Verdict.GROWING
    assert held.reasons[-1] == "an earlier life of this service levelled off at 58.6 GiB"


@pytest.mark.slow
def test_after_a_life_that_leaked_growth_is_enough() -> None:
    """LEAK-02: the second life is told earlier than the first, and a strict sensitivity waits all the same."""
    once, again, strict = detector(), detector(), detector("strict")
    for each in (again, strict):
        each.use_prior(Prior(leaked=True, exhausted=True))
    plain, sooner, strictly = (
        first(show(each, leak(2), 9 * HOUR, every=15), Verdict.LEAKING) for each in (once, again, strict)
    )

    assert plain is not None
    assert strictly is not None
    assert sooner is not None
    assert sooner < plain - 0.5 * HOUR
    assert strictly >= plain


def test_after_lives_that_were_cut_short_a_rise_is_enough() -> None:
    """A service that dies every 12 min is named in its next life, by `balanced`, and not where that waits or is off."""
    balanced, strict, later = detector(), detector("strict"), detector()
    for each, ended in ((balanced, 0.0), (strict, 0.0), (later, -700.0)):
        each.use_prior(Prior(cut_short_seconds=ended))
    words = words_of(balanced, leak(40, begin=20), 720)
    told = next(one for one in words if one.growth.verdict is Verdict.LEAKING)

    assert told.seconds < 660
    assert told.growth.evidence is Evidence.BALANCED
    assert not told.growth.confirmed
    assert told.growth.forecast_seconds is not None
    assert told.growth.reasons == ("it rises evenly, as each of the lives before did until it was restarted",)
    assert first(words_of(strict, leak(40, begin=20), 720), Verdict.LEAKING) is None
    assert first(words_of(later, leak(40, begin=20), 720), Verdict.LEAKING) is None
    assert (balanced.life().rises, balanced.life().leaks, balanced.life().full) == (True, False, True)
    assert later.life().rises


def night(hours: float) -> Curve:
    """20 GiB that are taken ever more slowly, and nearly all of them after so many hours."""
    return lambda seconds: round(20_000 + 20_000 * (1 - math.exp(-3 * seconds / 3600 / hours)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("curve", "prior", "sensitivity", "told", "rose"),
    [
        (night(40), Prior(leaked=True), "balanced", True, True),
        (night(40), Prior(leaked=True), "sensitive", True, True),
        (night(40), Prior(leaked=True), "strict", False, True),
        (night(40), NOTHING_KNOWN, "balanced", False, True),
        (night(40), Prior(leaked=True, level_used=30_000 * MIB // PAGE_BYTES), "balanced", False, True),
        (night(8), NOTHING_KNOWN, "balanced", False, False),
        (lambda seconds: 20_000 + round(3000 * seconds / 86_400), Prior(leaked=True), "balanced", False, False),
    ],
)
def test_a_life_that_rises_as_those_before_did(
    curve: Curve, prior: Prior, sensitivity: Sensitivity, told: bool, rose: bool
) -> None:
    """LEAK-02: a leak that each night cuts short is told; no cache that is full by noon, and no little growth."""
    watched = detector(sensitivity)
    watched.use_prior(prior)
    words = words_of(watched, curve, 24 * HOUR)
    leaks = [one for one in words if LIVES_ROSE in one.growth.reasons]

    assert bool(leaks) is told
    assert watched.life().rose is rose
    for one in leaks:
        assert (one.growth.verdict, one.growth.evidence) == (Verdict.LEAKING, Evidence.BALANCED)
        assert one.growth.forecast_seconds is not None
        assert not one.growth.confirmed


def test_a_life_that_rose_and_stands_leaks_no_more() -> None:
    """LEAK-02: what has stopped is not told as rising by the course of the whole life, and has no forecast."""
    watched = detector()
    watched.use_prior(Prior(leaked=True))
    words = words_of(watched, lambda seconds: 22_000 + round(2 * min(seconds, 8 * HOUR)), 15 * HOUR)
    late = [one.growth for one in words if one.seconds > 9 * HOUR]

    assert all(one.forecast_seconds is None for one in late)
    assert Verdict.LEVELLED_OFF in {one.verdict for one in late}


@pytest.mark.parametrize(
    ("prior", "sensitivity", "curve", "begin", "until"),
    [
        (Prior(leaked=True), "balanced", leak(30, begin=20), 480, 600),
        (Prior(leaked=True), "sensitive", leak(30, begin=20), 480, 600),
        (Prior(leaked=True), "strict", leak(30, begin=20), None, 700),
        (NOTHING_KNOWN, "balanced", leak(30, begin=20), None, 700),
        # An earlier life has levelled off: it may do so again.
        (Prior(level_used=9, leaked=True), "balanced", leak(30, begin=20), None, 700),
        # A model is loaded for 5 min, and the requests after that fill a cache for two more.
        (Prior(leaked=True), "balanced", plateau(100, 30_000, begin=0), None, 3000),
        (Prior(leaked=True), "balanced", lambda at: min(20_000 + 100 * at, 50_000 + 20 * min(at, 420)), None, 3000),
        # It would be full in hours: there is time for the usual proof.
        (Prior(leaked=True), "balanced", leak(4, begin=20), None, 700),
    ],
)
def test_a_known_leaker_has_its_forecast_in_minutes(
    prior: Prior, sensitivity: Sensitivity, curve: Curve, begin: float | None, until: float
) -> None:
    """What leaked until its end in an earlier life is told by pace and room, past the time in which models load."""
    watched = detector(sensitivity)
    watched.use_prior(prior)
    words = words_of(watched, curve, until)
    told = next((one for one in words if one.growth.verdict is Verdict.LEAKING), None)

    if begin is None:
        assert told is None
        return
    assert told is not None
    assert begin <= told.seconds < until
    left = (80 * 1024 - curve(told.seconds)) * MIB
    assert told.growth.forecast_seconds == pytest.approx(left / (30 * MIB), rel=0.1)
    assert told.growth.evidence is Evidence.BALANCED
    assert told.growth.reasons == ("it rises evenly, and an earlier life of this service leaked until its end",)
    assert not watched.life().leaks


def test_the_pace_of_a_second_life_is_without_its_load() -> None:
    """A model that is loaded for 4 min makes no forecast of minutes for the leak that follows."""
    watched = detector()
    watched.use_prior(Prior(leaked=True))
    words = words_of(watched, lambda at: 15 * at + 100 * min(at, 240), 720)
    told = next(one.growth for one in words if one.growth.verdict is Verdict.LEAKING)

    assert told.slope is not None
    assert told.slope.value == pytest.approx(15 * MIB, rel=0.05)


@pytest.mark.parametrize(
    ("prior", "taken"), [(NOTHING_KNOWN, 0.5), (Prior(leaked=True, exhausted=True), 0.44), (Prior(replicas=1), 0.44)]
)
def test_more_than_one_witness(prior: Prior, taken: float) -> None:
    """A leak is confirmed by an earlier life, by a replica, or once half of what was free is gone in a day."""
    watched = detector()
    watched.use_prior(prior)
    changes = words_of(watched, leak(2), 9 * HOUR)
    confirmed = next(one.seconds for one in changes if one.growth.confirmed)

    room = 80 * 1024 - 20_000
    share = (leak(2)(confirmed) - 20_000) / room
    assert taken <= share < taken + 0.06
    assert all(one.growth.grade is Evidence.CONFIRMED for one in changes if one.growth.confirmed)


@pytest.mark.slow
def test_a_cache_of_a_third_is_never_confirmed() -> None:
    """LEAK-01: what takes a third of the free memory over three days, and stops, is told with one witness at most."""
    fill = plateau(20_000 / (72 * 3600), 20_000)
    changes = words_of(detector("sensitive"), fill, 120 * HOUR)

    assert not any(one.growth.confirmed for one in changes)
    assert changes[-1].growth.verdict is not Verdict.LEAKING
