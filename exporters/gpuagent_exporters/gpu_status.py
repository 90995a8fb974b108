"""One GPU in the status document."""

from __future__ import annotations

from collections.abc import Sequence

from gpuagent.core.hardware import Clocks, Ecc, Memory, MigInstance, Power, Thermal, Utilization
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading, ProcessState
from gpuagent_exporters.gpu_problems import recovery_name

_THROTTLES = frozenset(
    {
        "sw_power_cap",
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    }
)
"""The other event reasons (idle, clocks set by an administrator, display) are no slowdown."""


def gpu_status(gpu: GpuReading, processes: Sequence[ProcessReading], now_seconds: float) -> dict[str, object]:
    """Return what the GPU and its processes tell; parts that were not read are null."""
    identity, memory, power = gpu.identity, gpu.memory or Memory(), gpu.power or Power()
    utilization, thermal = gpu.utilization or Utilization(), gpu.thermal or Thermal()
    clocks, ecc = gpu.clocks or Clocks(), gpu.ecc or Ecc()
    return {
        "index": identity.index,
        "uuid": identity.uuid,
        "name": identity.name,
        "state": str(gpu.state),
        "reason": gpu.reason,
        "age_seconds": _age(gpu, now_seconds),
        "lost_seconds": None if gpu.lost_since_seconds is None else max(0.0, now_seconds - gpu.lost_since_seconds),
        "unified_memory": identity.unified_memory,
        "mig_enabled": identity.mig_enabled,
        "memory_total_bytes": memory.total_bytes,
        "memory_used_bytes": memory.used_bytes,
        "memory_free_bytes": memory.free_bytes,
        "memory_reserved_bytes": memory.reserved_bytes,
        "memory_used_ratio": memory.used_ratio,
        **_split(gpu, processes),
        "utilization_ratio": utilization.gpu_ratio,
        "memory_utilization_ratio": utilization.memory_ratio,
        "temperature_celsius": thermal.gpu_celsius,
        "memory_temperature_celsius": thermal.memory_celsius,
        "power_watts": power.watts if power.watts is not None else power.instant_watts,
        "power_limit_watts": power.enforced_limit_watts or power.limit_watts,
        "energy_joules": power.energy_joules,
        "fan_ratio": max(thermal.fan_ratios, default=None),
        "sm_clock_hertz": dict(clocks.hertz).get("sm"),
        "performance_state": power.performance_state,
        "throttle_reasons": [name for name, on in clocks.event_reasons if on and name in _THROTTLES],
        "ecc_uncorrected": ecc.volatile_uncorrected,
        "recovery_action": recovery_name(ecc.recovery_action),
        "processes": len({process.pid for process in processes}) if gpu.processes_known else None,
        "processes_trusted": gpu.processes_trusted,
        "act_refusal": gpu.act_refusal,
        "mig": [mig_status(instance) for instance in gpu.mig],
    }


def _split(gpu: GpuReading, processes: Sequence[ProcessReading]) -> dict[str, int | None]:
    """Where the used memory is. Without memory of its own a GPU has no rest, but its processes hold some."""
    split = gpu.reconciliation
    live = dead = rest = None
    if split is not None:
        live, dead, rest = split.processes_bytes, split.dead_processes_bytes, split.unattributed_bytes
    elif gpu.identity.unified_memory and gpu.processes_known:
        live = sum(process.used_bytes or 0 for process in processes if process.state is not ProcessState.DEAD)
        dead = sum(process.used_bytes or 0 for process in processes if process.state is ProcessState.DEAD)
    return {
        "memory_processes_bytes": live,
        "memory_dead_processes_bytes": dead,
        "memory_unattributed_bytes": rest,
    }


def _age(gpu: GpuReading, now_seconds: float) -> float | None:
    """Since this GPU was last read with success; null if it never was."""
    measured = gpu.measured_seconds
    if measured is None and gpu.state is GpuState.OK:
        measured = gpu.time_seconds
    return None if measured is None else max(0.0, now_seconds - measured)


def mig_status(instance: MigInstance) -> dict[str, object]:
    """Return what a MIG device tells; its memory is that of its GPU instance."""
    memory, compute = instance.memory, instance.compute_instance_id
    return {
        "uuid": instance.uuid,
        "gpu_instance_id": instance.gpu_instance_id,
        "compute_instance_id": None if compute == NO_INSTANCE else compute,
        "profile": instance.profile,
        "memory_total_bytes": memory.total_bytes,
        "memory_used_bytes": memory.used_bytes,
        "memory_free_bytes": memory.free_bytes,
    }
