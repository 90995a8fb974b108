"""What must hold of any memory curve."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuagent.core.growth import Growth, Range, Verdict
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from tests.alerts.leak.curves import GIB, HOUR, MIB, TOTAL_BYTES, Curve, day, detector, first, leak, saw_tooth, show

Reading = tuple[float, float]
"""Time and used bytes."""


def walk(seed: int, hours: float, every: float = 15.0) -> list[Reading]:
    """A job: it drifts, bursts, jumps, and gives back; now and then it leaks."""
    draw = random.Random(seed)
    level, slope, readings = 20.0 * GIB, 0.0, []
    for tick in range(int(hours * HOUR / every)):
        if draw.random() < 0.002:
            slope = draw.choice([0.0, 0.0, 0.5, 2.0, 8.0]) * MIB
            level = draw.choice([level, level, 20.0 * GIB])
        level = min(78.0 * GIB, level + slope * every)
        used = level + draw.random() * GIB if draw.random() < 0.9 else level
        readings.append((tick * every, float(int(used) // 4096 * 4096)))
    return readings


def words(
    readings: list[Reading],
    total: float = TOTAL_BYTES,
    used: Callable[[float], float] = lambda used: used,
    free: Callable[[float], float] | None = None,
) -> list[Growth]:
    """The word after each reading."""
    watched = MemoryLeakDetector(total_bytes=int(total), started_seconds=0)
    left = free or (lambda bytes_: total - bytes_)
    return [watched.update(seconds, used(bytes_), left(used(bytes_))) for seconds, bytes_ in readings]


def _figures(one: Range | None) -> tuple[float, ...]:
    return () if one is None else tuple(one)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 2_000_000))
@settings(max_examples=8)
def test_a_shift_changes_nothing(seed: int, pages: int) -> None:
    """Memory that was there from the start, on a GPU with the same room left, changes no word and no figure."""
    readings = walk(seed, 6)
    shift = float(pages * 4096)
    plain = words(readings)
    watched = MemoryLeakDetector(total_bytes=TOTAL_BYTES, started_seconds=0)
    shifted = [watched.update(t, used + shift, TOTAL_BYTES - used) for t, used in readings]

    assert [one.verdict for one in shifted] == [one.verdict for one in plain]
    assert [one.slope for one in shifted] == [one.slope for one in plain]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from([2.0, 3.0, 8.0]))
@settings(max_examples=8)
def test_scale_scales_the_slope_and_nothing_else(seed: int, factor: float) -> None:
    """Bytes, free and total together; 80 GiB and more have no absolute threshold, only a share of the total."""
    plain = words(walk(seed, 6))
    scaled = words(walk(seed, 6), TOTAL_BYTES * factor, used=lambda used: used * factor)

    for one, other in zip(plain, scaled, strict=True):
        assert (one.verdict, one.evidence, one.since_seconds) == (other.verdict, other.evidence, other.since_seconds)
        assert _figures(other.slope) == pytest.approx([figure * factor for figure in _figures(one.slope)], abs=1)
        assert _figures(other.exhaustion) == pytest.approx(_figures(one.exhaustion))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 10_000))
@settings(max_examples=6)
def test_the_clocks_origin_changes_nothing(seed: int, days: int) -> None:
    """A shift of time by whole slots of 6 hours shifts onset and nothing else."""
    readings = walk(seed, 5)
    later = days * 86_400.0
    watched = MemoryLeakDetector(total_bytes=TOTAL_BYTES, started_seconds=later)
    shifted = [watched.update(t + later, used, TOTAL_BYTES - used) for t, used in readings]
    plain = words(readings)

    assert [one.verdict for one in shifted] == [one.verdict for one in plain]
    assert [one.reasons for one in shifted] == [one.reasons for one in plain]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from([1.0, 3.0, 5.0, 7.5]))
@example(167, 1.0)
@settings(max_examples=6)
def test_sampling_more_often_changes_no_verdict(seed: int, every: float) -> None:
    """Where a block's lowest reading is the same, nothing else counts: every word of all blocks is the same.

    That is a law of the slow judgment. The fast tier judges the readings themselves, and where it speaks the pace told
    is its own: the growth is declared here, which it is silent about and which no leak is judged by.
    """
    blocks = walk(seed, 4)
    rare, often = detector(), detector()
    for seconds, used in blocks:
        free = TOTAL_BYTES - used
        expected = rare.update(seconds, used, free, declared_bytes=TOTAL_BYTES)
        growth = often.update(seconds, used, free, declared_bytes=TOTAL_BYTES)
        for part in range(1, math.ceil(BLOCK_SECONDS / every)):
            more = used + MIB * part
            growth = often.update(seconds + part * every, more, free, declared_bytes=TOTAL_BYTES)
        assert not growth.fast
        assert growth == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "curve",
    [leak(2), leak(0.2, base=60_000), day(20_000), saw_tooth(3000, 12_000)],
    ids=["leak", "little free", "day", "saw-tooth"],
)
def test_between_1_and_60_seconds_the_rate_does_not_matter(curve: Curve) -> None:
    """The verdict on a curve is the same at every rate, and comes within a block of its level."""
    told = [first(show(detector(), curve, 16_000, every=every), Verdict.LEAKING) for every in (1, 5, 15, 30, 60)]

    if None in told:
        assert set(told) == {None}
    else:
        assert max(told) - min(told) <= 480  # type: ignore[type-var, operator]


@pytest.mark.slow
@given(
    st.floats(0.25, 24.0),
    st.floats(0.02, 0.9),
    st.sampled_from(["saw-tooth", "sine", "square", "ramp and hold"]),
    st.floats(0, 1),
)
@settings(max_examples=15)
def test_a_bounded_load_of_any_period_is_no_leak_after_the_second(
    hours: float, share: float, form: str, phase: float
) -> None:
    """LEAK-02: whatever its height, period up to 24 h, and form; the first period may look like a leak."""
    period = hours * HOUR
    height = share * 60_000

    def load(seconds: float) -> float:
        place = (seconds / period + phase) % 1
        return (
            20_000
            + height
            * {
                "saw-tooth": place,
                "sine": (1 - math.cos(2 * math.pi * place)) / 2,
                "square": float(place > 0.5),
                "ramp and hold": min(1.0, 3 * place),
            }[form]
        )

    every = 15.0 if hours < 6 else 60.0
    changes = show(detector(), load, 4 * period, every=every)

    after = [change for change in changes if change.seconds > 2 * period]
    assert first(after, Verdict.LEAKING) is None
    assert changes[-1].growth.verdict is not Verdict.LEAKING


@pytest.mark.slow
@given(st.floats(0.01, 0.36), st.floats(600, 60_000), st.booleans())
@settings(max_examples=12)
def test_growth_that_takes_less_than_the_dial_is_no_leak(share: float, fill_seconds: float, client: bool) -> None:
    """LEAK-01: a bounded fill within 17 h of less than 36 % of what was free is never called a leak."""
    free = 80 * 1024 - 20_000

    def fill(seconds: float) -> float:
        return 20_000 + share * free * min(1.0, max(0.0, seconds - 1200) / fill_seconds)

    assert first(show(detector(), fill, 30 * HOUR, every=30, client=client), Verdict.LEAKING) is None


@pytest.mark.slow
@given(st.floats(0.05, 20.0), st.booleans())
@settings(max_examples=8)
def test_a_steady_leak_is_found_before_the_gpu_is_full(mib_per_second: float, client: bool) -> None:
    """LEAK-02: any line that takes 45 minutes to 14 days is told by two thirds of the way, or within a day."""
    curve = leak(mib_per_second)
    life = (80 * 1024 - 20_000) / mib_per_second
    told = first(show(detector(), curve, 1200 + life, every=15, client=client), Verdict.LEAKING)

    assert told is not None
    assert told - 1200 <= max(life * 0.67, 24 * HOUR)


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=10)
def test_every_word_is_whole(seed: int) -> None:
    """Whatever comes: figures are finite, ranges ordered, a leak has all its parts, nothing else has evidence."""
    for growth in words(walk(seed, 5)):
        leaking = growth.verdict is Verdict.LEAKING
        assert (growth.evidence is not None) is leaking
        assert (growth.since_seconds is not None) is (leaking or growth.verdict is Verdict.GROWING)
        for figure in (growth.slope, growth.exhaustion):
            if figure is not None:
                assert all(math.isfinite(number) for number in figure)
                assert 0 <= figure.low <= figure.value <= figure.high
        if leaking:
            assert growth.slope is not None
            assert growth.reasons
        assert growth.fast is (growth.fast_exhaustion_seconds is not None)
