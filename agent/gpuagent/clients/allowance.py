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

    def __init__(self, rate: Rate, now: Callable[[], float], parent: Allowance | None = None) -> None:
        """`now` are seconds that never go back."""
        self._rate = rate
        self._now = now
        self._parent = parent
        self._lines = rate.lines_per_second * rate.burst_seconds
        self._bytes = rate.bytes_per_second * rate.burst_seconds
        self._at = now()

    def spend(self, lines: float, size_bytes: int) -> None:
        """Take this; it may lead into debt, which is waited for afterwards."""
        self._refill()
        self._lines -= lines
        self._bytes -= size_bytes
        if self._parent is not None:
            self._parent.spend(lines, size_bytes)

    def wait_seconds(self) -> float:
        """Until there is something to spend again; 0 where there is."""
        self._refill()
        own = max(-self._lines / self._rate.lines_per_second, -self._bytes / self._rate.bytes_per_second, 0.0)
        return own if self._parent is None else max(own, self._parent.wait_seconds())

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
