"""When to try again."""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.core.clock import Clock
from gpuagent_alerts.outbox.outcome import Outcome

BASE_SECONDS = 1.0
CAP_SECONDS = 300.0
"""No back-off is longer: a receiver that is back is told within five minutes."""
MAX_RETRY_AFTER_SECONDS = 3600.0
"""A receiver may ask for at most this much patience."""
SHORTEST_PAUSE_SECONDS = 1.0
"""After 429 without `Retry-After`."""

_STEP_SECONDS = 1.0


def wait_seconds(attempts: int, outcome: Outcome, random: Callable[[], float]) -> float:
    """How long to wait after so many failed attempts (1 or more).

    As the receiver asked; else exponential back-off with full jitter, so that many senders do not come back at once
    (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """
    if outcome.retry_after_seconds is not None:
        return min(max(outcome.retry_after_seconds, 0.0), MAX_RETRY_AFTER_SECONDS)
    longest = min(CAP_SECONDS, BASE_SECONDS * 2.0 ** min(attempts, 32))
    wait = longest * random()
    return max(wait, SHORTEST_PAUSE_SECONDS) if outcome.pause else wait


class WallSteps:
    """Notices that the wall clock was set, by how far it moved against the clock that never goes back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.now()

    def step(self) -> float:
        """Seconds by which it was set since the last call; 0.0 if it was not."""
        offset = self._clock.wall() - self._clock.now()
        delta = offset - self._offset
        if abs(delta) <= _STEP_SECONDS * self._clock.speed:
            return 0.0  # drift adds up until it counts as a step
        self._offset = offset
        return delta
