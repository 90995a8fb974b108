"""The floor of a recording of any length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.recording.track import FloorPath, NetGrowth


def path_of(values: list[float], every: float = 1.0) -> FloorPath:
    """Readings from 1000 s on."""
    path = FloorPath()
    for number, value in enumerate(values):
        path.add(1000.0 + number * every, value)
    return path


def test_the_first_half_is_left_out() -> None:
    """Loading 50 in the first half and leaking 10 in the second is a growth of 10."""
    values = [float(min(k, 50)) for k in range(100)] + [50 + k * 0.1 for k in range(100)]

    assert path_of(values).last_half() == pytest.approx(NetGrowth(9.9, 99.0))


def test_peaks_do_not_count() -> None:
    """LEAK-02: what is given back is not held, wherever the recording ends in the saw-tooth."""
    tooth = [float(k % 10) for k in range(200)]

    assert path_of(tooth).last_half() == NetGrowth(9.0, 99.0)  # it ends at the top of a tooth
    assert path_of([*tooth, 0.0]).last_half() == NetGrowth(0.0, 100.0)


def test_a_week_is_kept_in_few_figures() -> None:
    """The longer, the coarser, and the slope stays what it is: 2 a second."""
    path = path_of([2.0 * k * 10 for k in range(60_480)], every=10.0)
    rise = path.last_half()

    assert rise is not None
    assert len(path._lows) <= 512
    assert rise.seconds == pytest.approx(302_400, rel=0.01)
    assert rise.bytes / rise.seconds == pytest.approx(2.0, rel=0.01)


def test_a_gap_is_no_slope() -> None:
    """Minutes without a reading neither raise nor lower the floor."""
    path = path_of([5.0] * 60)
    path.add(1600.0, 6.0)

    assert path.last_half() == NetGrowth(0.0, 300.0)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0]])
def test_too_little_says_nothing(values: list[float]) -> None:
    """A slope needs two points in the second half."""
    assert path_of(values).last_half() is None


@given(st.lists(st.floats(0, 1e12), min_size=4, max_size=600), st.floats(0.1, 60))
def test_the_rise_is_never_negative_nor_more_than_was_seen(values: list[float], every: float) -> None:
    """It is a part of the difference between the highest and the lowest reading, whatever comes."""
    rise = path_of(values, every).last_half()

    assert rise is None or (0 <= rise.bytes <= max(values) - min(values) and rise.seconds > 0)
