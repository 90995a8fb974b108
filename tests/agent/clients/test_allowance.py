"""What one connection, one user and all together may send."""

from __future__ import annotations

from gpuagent.clients.admission import Allowance, Rate
from gpuagent.core.clock import ManualClock

RATE = Rate(lines_per_second=10, bytes_per_second=1000, burst_seconds=2)


def test_a_burst_is_free_and_debt_is_waited_for() -> None:
    """A few lines at once cost nothing; what goes beyond the burst is waited for at the rate."""
    clock = ManualClock()
    allowance = Allowance(RATE, clock.now)

    allowance.spend(20, 0)
    assert allowance.wait_seconds() == 0
    allowance.spend(5, 0)
    assert allowance.wait_seconds() == 0.5
    clock.advance(0.5)
    assert allowance.wait_seconds() == 0


def test_bytes_count_too() -> None:
    """One line may be as costly as many."""
    allowance = Allowance(RATE, ManualClock().now)

    allowance.spend(1, 5000)
    assert allowance.wait_seconds() == 3


def test_a_neighbor_pays_for_the_user_not_for_the_connection() -> None:
    """Connections of one user share that user's allowance, and each has its own."""
    clock = ManualClock()
    user = Allowance(Rate(100, 10_000, 1), clock.now)
    greedy, modest = Allowance(RATE, clock.now, user), Allowance(RATE, clock.now, user)

    greedy.spend(50, 0)
    assert (greedy.wait_seconds() > 0, modest.wait_seconds()) == (True, 0)
    greedy.spend(150, 0)
    assert modest.wait_seconds() == 1.0


def test_it_is_full_after_a_rest() -> None:
    """Then it can be forgotten: a user who left an hour ago costs no memory."""
    clock = ManualClock()
    allowance = Allowance(RATE, clock.now)
    assert allowance.full
    allowance.spend(1, 10)
    assert not allowance.full
    clock.advance(3600)
    assert allowance.full
    assert allowance.wait_seconds() == 0
