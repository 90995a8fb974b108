"""Numbers that mean "no value"."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.driver.nvml.device import celsius, count, is_blank, ratio, watts
from tests.tables import table

SENTINELS = (
    2**31 - 16,
    2**31 - 1,
    2**63 - 16,
    9223372036854775794,
    float(2**63 - 16),
    2**64 - 1,
    float(2**64 - 1),
    140737488355328.0,
    140737488355331.0,
    math.nan,
    math.inf,
    -math.inf,
)


@table("value", SENTINELS)
def test_sentinels_are_no_values(value: float) -> None:
    """NUM-02: whatever call they come from, as integers or floats."""
    assert is_blank(value)
    assert count(value) is None


@table("value", [0, 1, 2**31 - 17, 2**31, 2**32, 85520809984, 2**47 - 1, 2**63 - 17, 0.5, -40])
def test_neighbors_are_values(value: float) -> None:
    """NUM-02: what lies beside a sentinel is a number like any other."""
    assert not is_blank(value)


@given(pages=st.integers(0, 2**34))
def test_amounts_of_memory_are_never_blank(pages: int) -> None:
    """NUM-02: memory comes in pages, and no whole number of pages up to 64 TiB is taken for a sentinel."""
    assert count(pages * 4096) == pages * 4096


@given(st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70)))
def test_a_count_is_a_whole_number_or_nothing(value: float | None) -> None:
    """NUM-01: never below zero, never a sentinel."""
    counted = count(value)
    assert counted is None or (counted >= 0 and not is_blank(counted))


@given(st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70)))
def test_gauges_are_possible_or_nothing(value: float | None) -> None:
    """NUM-03: 37,100 %, 4294967295 and NaN are refused, whatever the unit."""
    for convert, low, high in ((ratio, 0.0, 1.0), (celsius, -100.0, 250.0), (watts, 0.0, 100_000.0)):
        converted = convert(value)
        assert converted is None or low <= converted <= high


def test_what_is_possible_is_converted() -> None:
    """Percent to ratio, milliwatts to watts."""
    assert (ratio(0), ratio(37), ratio(100), ratio(101), ratio(-1)) == (0.0, 0.37, 1.0, None, None)
    assert (watts(412_300), watts(-1), watts(2**32 - 1)) == (412.3, None, None)
    assert (celsius(61), celsius(-40), celsius(2**31 - 16)) == (61.0, -40.0, None)
