"""Sizes and durations: what people write comes back exactly, and nonsense is refused in words."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.units import (
    MAX_BYTES,
    MAX_SECONDS,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration,
    write_bytes,
    write_duration,
)
from tests.tables import table


@table(
    "text, count",
    [
        (0, 0),
        (2048, 2048),
        ("1024", 1024),
        ("512B", 512),
        ("2kB", 2000),
        ("2KB", 2000),
        ("2KiB", 2048),
        ("500MB", 500_000_000),
        ("500MiB", 524_288_000),
        ("6GB", 6_000_000_000),
        ("6GiB", 6_442_450_944),
        ("1.5 GiB", 1_610_612_736),
        ("0.1GB", 100_000_000),
        (" 2 TiB ", 2_199_023_255_552),
        ("3TB", 3_000_000_000_000),
    ],
)
def test_sizes(text: str | int, count: int) -> None:
    """Every unit is exact: no binary float between the text and the bytes."""
    assert parse_bytes(text) == count


@table(
    "value, words",
    [
        ("6G", "write 6GiB or 6GB"),
        ("6gb", "write 6GiB or 6GB"),
        ("5 parsecs", "unknown unit parsecs"),
        ("1.5", "has no unit"),
        ("", "is not a size"),
        ("GiB", "is not a size"),
        ("-1GiB", "is not a size"),
        ("1e9", "is not a size"),
        ("٣GiB", "is not a size"),
        ("nan", "is not a size"),
        ("6GiB" + " " * 100, "is not a size"),
        (-1, "cannot be negative"),
        (2**63, "too large"),
        ("9" * 50, "too large"),
        (10**400, "too large"),
        (True, "is not a size"),
    ],
)
def test_sizes_that_are_none(value: str | int, words: str) -> None:
    """A size that cannot be meant is refused with what to write instead."""
    with pytest.raises(ValueError, match=words):
        parse_bytes(value)


@table(
    "text, seconds",
    [
        (0, 0.0),
        (2.5, 2.5),
        ("30", 30.0),
        ("500ms", 0.5),
        ("1s", 1.0),
        ("0.1s", 0.1),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("1y", 31_536_000.0),
        ("1d2h3m4s5ms", 93_784.005),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    """Durations are read as Prometheus reads them, and exactly."""
    assert parse_duration(text) == seconds


@table(
    "value, words",
    [
        ("30m1h", "out of order"),
        ("1h1h", "out of order"),
        ("5 minutes", "is not a duration"),
        ("5min", "unknown unit min"),
        ("", "is not a duration"),
        ("-5m", "is not a duration"),
        ("NaN", "is not a duration"),
        ("inf", "is not a duration"),
        ("1h" * 60, "is not a duration"),
        ("300y", "too long"),
        (-1, "cannot be negative"),
        (-0.5, "cannot be negative"),
        (math.nan, "is not a duration"),
        (math.inf, "too long"),
        (10**400, "too long"),
        (True, "is not a duration"),
    ],
)
def test_durations_that_are_none(value: str | float, words: str) -> None:
    """A duration that cannot be meant is refused in words."""
    with pytest.raises(ValueError, match=words):
        parse_duration(value)


@given(st.integers(0, MAX_BYTES))
def test_sizes_come_back(count: int) -> None:
    """What is written for a configuration file is read back as the same bytes."""
    assert parse_bytes(write_bytes(count)) == count


@given(
    st.floats(0, 10**9).filter(lambda seconds: seconds == 0 or seconds > 1e-9)
    | st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000)
)
def test_durations_come_back(seconds: float) -> None:
    """What is written for a configuration file is read back as the same seconds."""
    assert parse_duration(write_duration(seconds)) == seconds


@given(st.text(max_size=100) | st.integers() | st.floats())
def test_nothing_but_a_value_error(value: str | float) -> None:
    """Whatever is handed in, the answer is a number in range or a ValueError."""
    with contextlib.suppress(ValueError):
        assert 0 <= parse_bytes(value) <= MAX_BYTES  # type: ignore[arg-type]
    with contextlib.suppress(ValueError):
        assert 0 <= parse_duration(value) <= MAX_SECONDS


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (20_830_000_000, "19.4 GiB"),
        (1024**4, "1.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
    ],
)
def test_sizes_on_a_screen(count: int, text: str) -> None:
    """A size has one decimal in the unit that fits, and is never 1024.0 of a smaller one."""
    assert format_bytes(count) == text


@table(
    "seconds, text",
    [
        (0, "0 s"),
        (0.0001, "<1 ms"),
        (0.12, "120 ms"),
        (0.9999, "1 s"),
        (1.5, "1.5 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (303, "5 min 3 s"),
        (3599.9, "1 h"),
        (8040, "2 h 14 min"),
        (86_399, "1 d"),
        (93_600, "1 d 2 h"),
        (400 * 86_400, "400 d"),
    ],
)
def test_durations_on_a_screen(seconds: float, text: str) -> None:
    """A duration is shown in at most two units, rounded over their borders."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf])
def test_formats_refuse_what_is_no_quantity(value: float) -> None:
    """NaN, infinite and negative values are an error of the caller, never a text on a screen."""
    for show in (format_bytes, format_duration, write_bytes, write_duration):
        with pytest.raises(ValueError, match=r"negative|is not"):
            show(value)  # type: ignore[arg-type]
