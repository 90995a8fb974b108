"""Whether rules are evaluated: a disk that hangs holds them up, and a heartbeat would say that all is well."""

from __future__ import annotations

import logging

from gpuagent.core.clock import Clock

log = logging.getLogger(__name__)

STALLED_SECONDS = 60.0
"""Time for which no evaluation came to its end, though one was due, after which alerting does not work."""


class EvaluationWatch:
    """Since when an evaluation is due, or under way, and none came to its end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_since: float | None = None
        self._is_told = False

    def note_due(self) -> None:
        """Note that one is due or under way. Log once that none comes to its end."""
        if self._due_since is None:
            self._due_since = self._clock.now()
        if self.is_stalled and not self._is_told:
            self._is_told = True
            waited = (self._clock.now() - self._due_since) / self._clock.speed
            log.error("no rule could be evaluated for %.0f s: alerts stand still, and heartbeats stop", waited)

    def note_done(self) -> None:
        """Note that one came to its end."""
        self._due_since, self._is_told = None, False

    @property
    def is_stalled(self) -> bool:
        """Whether alerting does not work."""
        if self._due_since is None:
            return False
        return self._clock.now() - self._due_since > STALLED_SECONDS * self._clock.speed
