"""Quantities as functions of time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.problems import Problem
from gpuagent.core.sections import Section, read_section
from gpuagent_simulator.curves import (
    SHAPES,
    Constant,
    Curve,
    Noise,
    Plateau,
    Ramp,
    SawTooth,
    Staircase,
    Steps,
    Sum,
    WarmUp,
)
from tests.tables import table

amounts = st.floats(0, 2**40)
times = st.floats(0, 1e7)
spans = st.floats(0.001, 1e6)


@given(start=amounts, rate=st.floats(0, 2**30), more=amounts, after=times, at=times)
def test_ramp_stays_between_start_and_cap(start: float, rate: float, more: float, after: float, at: float) -> None:
    """A ramp never leaves its range, stands at its start until `after`, and never falls."""
    ramp = Ramp(start=start, rate=rate, cap=start + more, after=after)

    assert start <= ramp(at) <= start + more
    assert ramp(after) == start
    assert ramp(at) <= ramp(at + 1)


def test_ramp_grows_by_its_rate() -> None:
    """So many bytes a second, from `after` on."""
    assert Ramp(start=10, rate=3, after=5)(9) == 22


@given(points=st.lists(st.tuples(times, amounts), min_size=1), at=times)
def test_steps_only_takes_given_amounts(points: list[tuple[float, float]], at: float) -> None:
    """The amount is that of the last point reached, or nothing before the first."""
    points.sort(key=lambda point: point[0])
    reached = [amount for time, amount in points if time <= at]

    assert Steps(points=tuple(points))(at) == (reached[-1] if reached else 0.0)


def test_steps_out_of_order_are_refused() -> None:
    """Points that go back in time are a mistake, and so are none at all."""
    for points in (((5.0, 1.0), (2.0, 3.0)), ()):
        with pytest.raises(ValueError, match="earliest first"):
            Steps(points=points)


@given(size=amounts, every=spans, start=amounts, cap=amounts, at=times)
def test_staircase_never_falls_or_leaves_its_cap(
    size: float, every: float, start: float, cap: float, at: float
) -> None:
    """What grows once a period only grows, up to its cap."""
    stairs = Staircase(size=size, every=every, start=start, cap=cap)

    assert stairs(at) <= stairs(at + every)
    assert stairs(at) <= cap


def test_staircase_stands_still_between_steps() -> None:
    """The size is added at the end of each period, not on the way."""
    stairs = Staircase(size=4, every=10, start=1)

    assert [stairs(at) for at in (0, 9.9, 10, 19.9, 20)] == [1, 1, 5, 5, 9]


@given(low=amounts, more=amounts, period=spans, at=times)
def test_saw_tooth_stays_between_low_and_high(low: float, more: float, period: float, at: float) -> None:
    """A saw tooth begins low and never leaves its range."""
    tooth = SawTooth(low=low, high=low + more, period=period)

    assert tooth(0) == low
    assert low <= tooth(at) <= low + more + 2 * math.ulp(low + more)


def test_saw_tooth_falls_back() -> None:
    """At the end of each period it is as at the beginning."""
    tooth = SawTooth(low=2, high=12, period=10)

    assert [tooth(at) for at in (0, 5, 10, 15)] == [2, 7, 2, 7]


@given(start=amounts, more=amounts, time_constant=spans, at=times)
def test_warm_up_approaches_its_level(start: float, more: float, time_constant: float, at: float) -> None:
    """A warm-up rises from its start, never beyond its level."""
    warm_up = WarmUp(level=start + more, time_constant=time_constant, start=start)
    slack = 1e-6 * (start + more) + 1e-6

    assert start - slack <= warm_up(at) <= start + more + slack
    assert warm_up(at) <= warm_up(at + time_constant) + slack


def test_warm_up_by_its_time_constant() -> None:
    """63 % of the way after one time constant, 95 % after three."""
    warm_up = WarmUp(level=100, time_constant=20)

    assert (round(warm_up(20)), round(warm_up(60))) == (63, 95)


@given(start=amounts, level=amounts, over=spans, at=times)
def test_plateau_is_flat_in_the_end(start: float, level: float, over: float, at: float) -> None:
    """From `over` on it is exactly the level, and before that between both ends."""
    plateau = Plateau(level=level, over=over, start=start)

    assert plateau(over + at) == level
    low, high = sorted((start, level))
    slack = 2 * math.ulp(high)
    assert low - slack <= plateau(at) <= high + slack


@given(amplitude=amounts, seed=st.integers(0, 2**32), at=times)
def test_noise_is_bounded_and_repeatable(amplitude: float, seed: int, at: float) -> None:
    """The same seed and time give the same noise, within its amplitude."""
    assert abs(Noise(amplitude=amplitude, seed=seed)(at)) <= amplitude
    assert Noise(amplitude=amplitude, seed=seed)(at) == Noise(amplitude=amplitude, seed=seed)(at)


def test_noise_is_noise() -> None:
    """It changes from period to period and from seed to seed, and is not lopsided."""
    values = [Noise(amplitude=1, seed=3)(second) for second in range(2000)]

    assert len(set(values)) == 2000
    assert abs(sum(values) / 2000) < 0.05
    assert values[:10] != [Noise(amplitude=1, seed=4)(second) for second in range(10)]


@given(st.lists(amounts, max_size=5), times)
def test_sum_adds(values: list[float], at: float) -> None:
    """A sum is the sum of its parts."""
    assert Sum(of=tuple(Constant(value) for value in values))(at) == math.fsum(values)


class _Holder(Section):
    """What has a curve."""

    curve: Curve


def _read(written: object) -> tuple[Curve | None, list[Problem]]:
    holder, problems = read_section(_Holder, {"curve": written})
    return None if holder is None else holder.curve, problems


def test_every_shape_is_read_from_a_file() -> None:
    """Each shape that exists can be named, with sizes and durations as people write them."""
    examples: dict[str, dict[str, object]] = {
        "constant": {"value": "6GiB"},
        "ramp": {"rate": "-10MiB", "start": "1GiB", "after": "1m30s"},
        "steps": {"points": (("0s", "1GiB"), ("5m", 12))},
        "staircase": {"size": "1MiB", "every": "1h"},
        "saw_tooth": {"low": 0, "high": "2GiB", "period": 30},
        "warm_up": {"level": "2GiB", "time_constant": "90s"},
        "plateau": {"level": "2GiB", "over": "90s"},
        "noise": {"amplitude": "4MiB", "seed": 7},
        "sum": {"of": ("1GiB", {"shape": "noise", "amplitude": 3})},
    }
    assert set(examples) == set(SHAPES)

    for shape, fields in examples.items():
        read, _ = _read({"shape": shape, **fields})
        assert getattr(read, "shape", None) == shape
    assert _read("6GiB") == (Constant(6 * 1024**3), [])


@table(
    "wrong",
    [
        {"shape": "saw_tooth", "low": 0, "high": 1, "period": 0},
        {"shape": "ramp", "rate": "1 furlong"},
        {"shape": "ramp", "rate": True},
        {"shape": "ramp", "rate": 1, "rat": 2},
        {"shape": "hill"},
        {"rate": 1},
        (1, 2),
        True,
        {"shape": "steps", "points": ((1, 2, 3),)},
        {"shape": "steps", "points": ((5, 1), (2, 3))},
        {"shape": "sum", "of": (1, {"shape": "ramp", "rate": ()})},
        None,
    ],
)
def test_wrong_shapes_are_refused(wrong: object) -> None:
    """A period of nothing, a unit that is none, a key too many: refused, not guessed."""
    read, problems = _read(wrong)

    assert (read, len(problems)) == (None, 1)
