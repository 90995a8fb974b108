"""When to try again: soon at first, then less and less often."""

from __future__ import annotations


class Backoff:
    """Doubles from `first_seconds` to `longest_seconds`; `succeeded()` starts over."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._next = first_seconds
        self.due_at: float | None = None

    def failed(self, now: float) -> float:
        """Note a failure; returns the seconds until the next try is due."""
        delay = self._next
        self._next = min(delay * 2, self._longest)
        self.due_at = now + delay
        return delay

    def due(self, now: float) -> bool:
        """Whether it is time: at once if nothing has failed yet."""
        return self.due_at is None or now >= self.due_at

    def succeeded(self) -> None:
        """Start over."""
        self._next = self._first
        self.due_at = None
