"""The one document of what is said of growth: verdict, evidence, pace, begin, forecast and severity.

The leak detector decides all but the severity (`snapshot.growth`, which the metrics and the rules read as it is); the
severity is that of the gravest alert that fires about it, and follows from the verdict where none does. The status
document, the page, the command and the problems show this, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from gpuagent.core.growth import Growth, MemoryKey, Range, Verdict
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent_exporters.severity import Severity, gravest

MINUTES_LEFT_SECONDS = 1800.0
"""A leak that fills the memory sooner is critical, as for `GpuMemoryExhaustionSoon`."""
HOURS_LEFT_SECONDS = 4 * 3600.0
"""Growth that is suspected and fills it sooner is worth a word."""

Document: TypeAlias = dict[str, object]


class Assessments:
    """What is said of each process, GPU and MIG instance. `firing` are the alerts about growth."""

    def __init__(self, growth: Mapping[MemoryKey, Growth], firing: Sequence[FiringAlert] = ()) -> None:
        self._growth = growth
        self._firing = tuple(alert for alert in firing if alert.about_growth)

    def of(self, key: MemoryKey) -> Growth | None:
        """Return what the leak detector says."""
        return self._growth.get(key)

    def severity(self, key: MemoryKey) -> Severity | None:
        """How grave that is; None for what is worth no word."""
        growth = self._growth.get(key)
        return gravest(self._alerts(key, growth)) or (None if growth is None else _severity(growth))

    def alerted(self, key: MemoryKey) -> Severity | None:
        """Of the gravest alert that fires about it; None while none does."""
        return gravest(self._alerts(key, self._growth.get(key)))

    def document(self, key: MemoryKey) -> Document:
        """All keys, always; null is what is not known, or what will not come. Times are Unix time."""
        growth = self._growth.get(key)
        severity = self.severity(key)
        return {
            "verdict": str(growth.verdict) if growth else None,
            "growth_state": str(growth.state) if growth and growth.state else None,
            "evidence": str(growth.evidence) if growth and growth.evidence else None,
            "severity": str(severity) if severity else None,
            "growth_bytes_per_second": _value(growth.slope if growth else None),
            "growth_range_bytes_per_second": _range(growth.slope if growth else None),
            "growth_since_seconds": growth.since_seconds if growth else None,
            "leak_since_seconds": growth.since_seconds if growth and growth.verdict is Verdict.LEAKING else None,
            "exhaustion_seconds": growth.forecast_seconds if growth else None,
            "exhaustion_range_seconds": _range(_exhaustion(growth) if growth else None),
            "fast_exhaustion_seconds": growth.fast_exhaustion_seconds if growth and growth.fast else None,
            "reasons": list(growth.reasons) if growth else [],
        }

    def _alerts(self, key: MemoryKey, growth: Growth | None) -> Iterable[Severity]:
        """Of alerts that name it; an alert about its GPU, or its instance, is about what grows there."""
        grows = growth is not None and (growth.verdict in (Verdict.LEAKING, Verdict.GROWING) or growth.fast)
        for alert in self._firing:
            if alert.uuid != key.gpu_uuid or alert.severity is None:
                continue
            here = alert.gpu_instance_id == key.gpu_instance_id
            of_process = alert.pid == key.pid and (here or alert.gpu_instance_id == NO_INSTANCE)
            of_all = not alert.pid and here and (grows or not key.pid)
            if (alert.pid and of_process) or of_all:
                yield Severity(alert.severity)


def _severity(growth: Growth) -> Severity | None:
    """By what it is alone: what is no leak is never critical."""
    left = growth.forecast_seconds
    soon = left is not None and left < MINUTES_LEFT_SECONDS
    if growth.verdict is Verdict.LEAKING:
        return Severity.CRITICAL if soon else Severity.WARNING
    if growth.verdict is Verdict.GROWING or growth.fast:
        if soon:
            return Severity.WARNING
        return Severity.INFO if left is not None and left < HOURS_LEFT_SECONDS else None
    return Severity.INFO if growth.verdict is Verdict.CACHED else None


def _exhaustion(growth: Growth) -> Range | None:
    """Return the range of the forecast; None for one of the last half minute, which has none."""
    slow = growth.exhaustion
    return slow if slow is not None and slow.value == growth.forecast_seconds else None


def _value(figure: Range | None) -> float | None:
    return None if figure is None else figure.value


def _range(figure: Range | None) -> list[float] | None:
    return None if figure is None else [figure.low, figure.high]
