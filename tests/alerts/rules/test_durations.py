"""Durations as Prometheus takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.rules.formats import format_milliseconds, parse_milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("1w2d", 777_600_000),
        ("1ms", 1),
        ("90s", 90_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    """Units from years to milliseconds, the largest first."""
    assert parse_milliseconds(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "5", "1.5h", "m", "5m1h", "-5m", "5 m", "5M", "٣m", "1y" * 30, "300y", "9" * 60 + "s"]
)
def test_what_is_no_duration(text: str) -> None:
    """What Prometheus 2.42 refuses is refused in words; the agent's own configuration takes more."""
    with pytest.raises(ValueError, match=r"duration|longer"):
        parse_milliseconds(text)


@given(st.integers(0, 9 * 10**12))
def test_what_is_printed_is_read_back(milliseconds: int) -> None:
    """Printing loses nothing."""
    assert parse_milliseconds(format_milliseconds(milliseconds)) == milliseconds
