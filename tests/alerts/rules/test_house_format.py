"""Quantities in annotations, as every surface of the agent writes them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.rules.template import parse_template

GIB = 2**30


@pytest.mark.parametrize(
    ("template", "value", "prometheus", "agent"),
    [
        ("{{ $value | humanize1024 }}B/h", 84.38 * GIB, "84.38GiB/h", "84.4 GiB/h"),
        ("{{ $value | humanize1024 }}B", 26.7 * GIB, "26.7GiB", "26.7 GiB"),
        ("{{ $value | humanize1024 }}B", -2.0 * GIB, "-2GiB", "-2.0 GiB"),
        ("{{ $value | humanize1024 }}B", math.inf, "+InfB", "+InfB"),
        ("{{ $value | humanize1024 }} errors", 2048.0, "2ki errors", "2ki errors"),
        ("{{ $value | humanizeDuration }} left", 495.0, "8m 15s left", "8 min 15 s left"),
        ("{{ humanizeDuration $value }}", -5.0, "-5s", "-5s"),
        ("{{ $value | humanizePercentage }}", 0.8712, "87.12%", "87 %"),
        ("{{ $value | humanizePercentage }}", math.nan, "NaN%", "NaN%"),
        ("{{ $value | humanize }} and {{ $value }}", 1500.0, "1.5k and 1500", "1.5k and 1500"),
    ],
)
def test_one_format_for_each_quantity(template: str, value: float, prometheus: str, agent: str) -> None:
    """The same text in a rule file: Prometheus' digits for Prometheus, `84.4 GiB/h` for who reads it on the node."""
    parsed = parse_template(template)

    assert parsed.fill({}, value) == prometheus
    assert parsed.fill({}, value, house_format=True) == agent


@given(
    st.sampled_from(
        ["{{ $value | humanize1024 }}B", "{{ $value | humanizeDuration }}", "{{ $value | humanizePercentage }}"]
    ),
    st.floats(),
)
def test_every_number_has_a_text(template: str, value: float) -> None:
    """Filling in cannot fail, whatever an expression comes to."""
    assert parse_template(template).fill({}, value, house_format=True)
