"""Alerts as problems: what pages somebody is on the screen and in a check, too, whoever wrote its rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.units import format_duration
from gpuagent_exporters.severity import Problem, Severity, gravest

_LEAKS = frozenset({"leak", "growth", "fast_growth", "unowned_leak", "memory_full"})
_HEALTH = frozenset({"gpu_lost", "gpu_blind", "gpu_gone", "gpu_failed"})
_KINDS: dict[str, frozenset[str]] = {
    "GpuMemoryHigh": frozenset({"memory_full"}),
    "GpuMemoryFull": frozenset({"memory_full"}),
    "GpuInstanceMemoryFull": frozenset({"memory_full"}),
    "GpuMemoryUnattributed": frozenset({"unattributed", "unowned_leak"}),
    "GpuDeadProcessesHoldMemory": frozenset({"dead_processes"}),
    "GpuProcessMemoryLeak": _LEAKS,
    "GpuMemoryLeak": _LEAKS,
    "GpuMemoryExhaustionSoon": _LEAKS,
    "GpuXidCritical": frozenset({"xid"}),
    "GpuXidWarning": frozenset({"xid"}),
    "GpuEccUncorrectable": frozenset({"ecc_uncorrected"}),
    "GpuRowRemapFailed": frozenset({"memory_defect"}),
    "GpuRowRemapPending": frozenset({"remap_pending"}),
    "GpuRecoveryAction": frozenset({"recovery_action"}),
    "GpuLost": _HEALTH,
    "GpuCountDropped": frozenset({"gpu_missing", "gpu_gone", "gpu_lost"}),
    "GpuThrottledThermal": frozenset({"slowed_down"}),
    "GpuThrottledPower": frozenset({"slowed_down"}),
    "GpuMonitorBlind": _HEALTH | {"collector", "figures_untrusted", "nvml_failed", "nvml_paused", "stale"},
}
"""Problems that already say what an alert says."""
_TOLD = frozenset({Severity.CRITICAL, Severity.WARNING})
_ADVICE = "`gpuagent alerts` shows it, and who is told."


def alert_problems(firing: Iterable[FiringAlert], others: Sequence[Problem]) -> Iterator[Problem]:
    """Yield a problem for each alert that fires, is not silenced, and that none of the others stands for.

    What could not be measured any more is told as it was known last: a check does not get better because less is known.
    """
    told: set[tuple[str, int | None, int]] = set()
    for alert in firing:
        severity = Severity(alert.severity) if alert.severity in _TOLD else None
        about = alert.name, alert.gpu, alert.pid
        if severity is None or alert.silenced or about in told or _is_told(alert, severity, others):
            continue
        told.add(about)
        yield Problem(severity, "alert", _text(alert), _ADVICE, gpu=alert.gpu, pid=alert.pid or None)


def _is_told(alert: FiringAlert, severity: Severity, others: Sequence[Problem]) -> bool:
    kinds = _KINDS.get(alert.name, frozenset())
    return any(
        problem.kind in kinds
        and problem.gpu in {None, alert.gpu}
        and (not alert.pid or problem.pid in {None, alert.pid})
        and gravest((problem.severity, severity)) is problem.severity
        for problem in others
    )


def _text(alert: FiringAlert) -> str:
    place = "" if alert.gpu is None else f"GPU {alert.gpu}"
    text = alert.summary.removeprefix(f"{place}: ") if place else alert.summary
    text = text or f"the alert {alert.name} fires"
    if not alert.unmeasured_seconds:
        return text
    return f"last known {format_duration(alert.unmeasured_seconds)} ago: {text}"
