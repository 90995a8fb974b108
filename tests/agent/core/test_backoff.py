"""When to try again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.clock import Backoff


def test_soon_at_first_then_less_often() -> None:
    """GPU-06: doubled up to the longest, over and over."""
    backoff = Backoff(1.0, 10.0)

    assert [backoff.failed(0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_due() -> None:
    """At once before the first failure; after one, when its time has come."""
    backoff = Backoff(2.0, 10.0)
    assert backoff.due(0.0)
    backoff.failed(100.0)

    assert [backoff.due(now) for now in (100.0, 101.9, 102.0, 500.0)] == [False, False, True, True]


def test_success_starts_over() -> None:
    """GPU-06: the next failure is the first again."""
    backoff = Backoff(1.0, 10.0)
    backoff.failed(0.0)
    backoff.failed(1.0)
    backoff.succeeded()

    assert backoff.due(1.0)
    assert backoff.failed(1.0) == 1.0


@given(st.integers(1, 5000))
def test_failing_for_ever(failures: int) -> None:
    """GPU-06: never longer than the longest, however often it failed."""
    backoff = Backoff(1.0, 60.0)
    for _ in range(failures):
        delay = backoff.failed(0.0)

    assert 1.0 <= delay <= 60.0
