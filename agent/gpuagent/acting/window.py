"""The values of expressions while their alerts fire: what a remedy was decided on, for the record of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpuagent_alerts.remedies.judged import Judged

INTERVAL_SECONDS = 10.0
LENGTH = 60


class Window:
    """The last ten minutes of each alert that fires, a value every ten seconds."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float]]] = {}

    def add(self, judged: Sequence[Judged]) -> None:
        """All that fires, after an evaluation; the rest is forgotten."""
        kept: dict[str, deque[tuple[float, float]]] = {}
        for each in judged:
            ring = self._points.get(each.alert.fingerprint) or deque(maxlen=LENGTH)
            if not ring or each.measured_seconds - ring[-1][0] >= INTERVAL_SECONDS:
                ring.append((each.measured_seconds, each.alert.value))
            kept[each.alert.fingerprint] = ring
        self._points = kept

    def values(self, fingerprint: str) -> tuple[float, ...]:
        """Oldest first."""
        return tuple(value for _, value in self._points.get(fingerprint, ()))
