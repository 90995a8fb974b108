"""The series that rules see: made anew at each evaluation only where something has changed since the last one."""

from __future__ import annotations

from collections.abc import Sequence

from gpuagent.core.metrics.alerting import AlertingFigures
from gpuagent.core.metrics.family import SampleCache
from gpuagent.core.metrics.series import ExtraFamilies, series
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.promql.series import SeriesIndex

_MOST_KEPT = 8

Names = frozenset[str] | None


class RuleSeries:
    """Groups of rules come at intervals of their own, and each reads other metrics: one memory for each such choice."""

    def __init__(self, simulated: str) -> None:
        self._simulated = simulated
        self._kept: dict[Names, tuple[SampleCache, SeriesIndex | None]] = {}

    def index(
        self, snapshot: Snapshot, now_seconds: float, names: Names,
        *, alerting: AlertingFigures | None, preallocates: tuple[str, ...], further: Sequence[ExtraFamilies],
    ) -> SeriesIndex:  # fmt: skip
        """The series of these names (None: all) at a tick."""
        if names not in self._kept and len(self._kept) >= _MOST_KEPT:  # other rules were loaded, again and again
            self._kept.clear()
        memo, before = self._kept.get(names) or (SampleCache(), None)
        made = series(
            snapshot, now_seconds, simulated=self._simulated, alerting=alerting, preallocates=preallocates,
            further=further, only=names, memo=memo,
        )  # fmt: skip
        index = SeriesIndex.of(made, before)
        self._kept[names] = memo, index
        return index
