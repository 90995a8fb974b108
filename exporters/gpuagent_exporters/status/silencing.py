"""Which problems silences leave out: those of which alerts tell that fire, and that nobody wants to hear of.

A problem is found in the snapshot, and a silence holds for alerts. So a problem goes by the alerts that say the same. A
silence of what is less grave leaves it in, unless it is of the whole incident: that the GPU is full now is not
silenced by the silence of a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.severity import Problem, gravest

_LEAKS = frozenset({"leak", "growth", "fast_growth", "unowned_leak", "memory_full"})
_HEALTH = frozenset({"gpu_lost", "gpu_blind", "gpu_gone", "gpu_failed"})
KINDS: dict[str, frozenset[str]] = {
    "GpuMemoryHigh": frozenset({"memory_full"}),
    "GpuMemoryFull": frozenset({"memory_full"}),
    "GpuInstanceMemoryFull": frozenset({"memory_full"}),
    "GpuMemoryUnattributed": frozenset({"unattributed", "unowned_leak"}),
    "GpuDeadProcessesHoldMemory": frozenset({"dead_processes", "zombie_processes"}),
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
_OF_A_PROCESS = frozenset({"leak", "growth"})
"""Problems of one process where they have a pid: what is said of its GPU decides nothing of them."""
_SEVERITIES = frozenset(Severity)


def is_silenced(
    problem: Problem, firing: Iterable[FiringAlert], processes: Collection[tuple[int, int]] = frozenset()
) -> bool:
    """Return whether alerts that fire say what a problem says, and each of them is silenced.

    `processes` are those, by the index of their GPU and by pid, of which a silence holds for their leak: it holds for
    their growth too, also before an alert tells of it.
    """
    alerts = _alerts_about(problem, [one for one in firing if _says(one, problem)])
    if problem.kind in _OF_A_PROCESS and (problem.gpu, problem.pid) in processes:
        return all(one.silenced for one in alerts if one.pid)
    if not alerts or not all(one.silenced for one in alerts):
        return False
    if problem.gpus and not {one.gpu for one in alerts} >= set(problem.gpus):
        return False
    if problem.pid is not None and problem.kind in _OF_A_PROCESS:
        return True  # what it does to its GPU has alerts of its own
    told = gravest(Severity(one.severity) for one in alerts if one.severity in _SEVERITIES)
    is_as_grave = told is not None and gravest((told, problem.severity)) is told
    return is_as_grave or any(one.incident_silenced for one in alerts)


def _says(alert: FiringAlert, problem: Problem) -> bool:
    """Return whether an alert tells of such problems, in the same place."""
    if problem.kind not in KINDS.get(alert.name, frozenset()) or alert.is_ending:
        return False
    if problem.xid is not None and alert.xid != problem.xid:
        return False
    if problem.uuid and alert.uuid:
        return problem.uuid == alert.uuid
    return alert.gpu in problem.gpus if problem.gpus else alert.gpu == problem.gpu


def _alerts_about(problem: Problem, alerts: Iterable[FiringAlert]) -> list[FiringAlert]:
    """Return those of these alerts that are about the process, the MIG instance or the GPU of a problem."""
    if problem.pid is not None and problem.kind in _OF_A_PROCESS:
        return [one for one in alerts if one.pid == problem.pid or (not one.pid and problem.pid in one.incident_pids)]
    if problem.pid is not None:
        return [one for one in alerts if one.pid in {0, problem.pid}]
    return [one for one in alerts if not one.pid and one.gpu_instance_id == problem.gpu_instance_id]
