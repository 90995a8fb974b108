"""What one connection, one user and all of them together may cost the agent's loop.

Token buckets: what is used up comes back with time. Whoever is over it is not read from for a while, so it is the
sender that waits, and nothing it sent is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Rate(NamedTuple):
    """The most that is taken in the long run; `burst_seconds` of it at once."""

    lines_per_second: float
    bytes_per_second: float
    burst_seconds: float = 4.0


class Allowance:
    """One bucket for lines and one for bytes, inside the allowance of a `parent`."""

    def __init__(
        self,
        rate: Rate,
        now: Callable[[], float],
        parent: Allowance | None = None,
        assured: Rate | None = None,
    ) -> None:
        """Begin with a full bucket.

        Args:
            rate: the most that is taken, as far as the parent has it.
            now: seconds that never go back.
            parent: what several of them share.
            assured: what is taken in any case, so that others who use up the parent's share cannot silence this one.
        """
        self._rate = rate
        self._now = now
        self._parent = parent
        self._assured = Allowance(assured, now) if assured else None
        self._lines = rate.lines_per_second * rate.burst_seconds
        self._bytes = rate.bytes_per_second * rate.burst_seconds
        self._at = now()

    def spend(self, lines: float, size_bytes: int) -> None:
        """Take this; it may lead into debt, which is waited for afterwards."""
        if self._assured is not None and not self._assured.in_debt:
            self._assured.spend(lines, size_bytes)
            return
        self._refill()
        self._lines -= lines
        self._bytes -= size_bytes
        if self._parent is not None:
            self._parent.spend(lines, size_bytes)

    def wait_seconds(self) -> float:
        """Until there is something to spend again; 0 where there is."""
        assured = self._assured.wait_seconds() if self._assured is not None else None
        if assured == 0.0:
            return 0.0
        self._refill()
        wait = max(-self._lines / self._rate.lines_per_second, -self._bytes / self._rate.bytes_per_second, 0.0)
        if self._parent is not None:
            wait = max(wait, self._parent.wait_seconds())
        return wait if assured is None else min(wait, assured)

    @property
    def in_debt(self) -> bool:
        """Whether more was spent than there was, whatever the parent has left."""
        self._refill()
        return self._lines < 0 or self._bytes < 0

    @property
    def full(self) -> bool:
        """Nothing is missing: forgetting it changes nothing."""
        self._refill()
        rate = self._rate
        return (
            self._lines >= rate.lines_per_second * rate.burst_seconds
            and self._bytes >= rate.bytes_per_second * rate.burst_seconds
        )

    def _refill(self) -> None:
        now = self._now()
        seconds, self._at = now - self._at, now
        rate = self._rate
        self._lines = min(self._lines + seconds * rate.lines_per_second, rate.lines_per_second * rate.burst_seconds)
        self._bytes = min(self._bytes + seconds * rate.bytes_per_second, rate.bytes_per_second * rate.burst_seconds)
