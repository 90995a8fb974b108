"""Snapshots made by hand. Each builder gives a healthy part; `changes` make it what the test is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuagent.core.hardware import Clocks, Ecc, Memory, MigInstance, Power, Thermal, Utilization
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import (
    CollectorRun,
    GpuIdentity,
    GpuReading,
    GpuState,
    NodeReading,
    NvmlState,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    ProcessUtilization,
    Reconciliation,
    Snapshot,
)
from gpuagent.core.units import GIB

NOW = 5000.0
"""The boot clock of every snapshot here."""
WALL = 1_700_000_000.0
"""Unix time of every snapshot here."""
BOOT_ID = "6f1c4f0e-4c1e-4f5a-9f0e-0123456789ab"


def identity(index: int = 0, **changes: Any) -> GpuIdentity:
    """An A10G, or whatever `changes` make of it."""
    return GpuIdentity(**{"index": index, "uuid": f"GPU-{index:08d}", "name": "NVIDIA A10G", **changes})


def memory(used_gib: float | None = 19.5, total_gib: float | None = 24.0, reserved_gib: float = 0.25) -> Memory:
    """Device memory that adds up."""
    if used_gib is None or total_gib is None:
        return Memory()
    used, total, reserved = (int(size * GIB) for size in (used_gib, total_gib, reserved_gib))
    reserved = max(0, min(reserved, total - used))
    return Memory(total_bytes=total, used_bytes=used, free_bytes=total - used - reserved, reserved_bytes=reserved)


def gpu(
    index: int = 0, *, used_gib: float | None = 19.5, total_gib: float | None = 24.0, name: str = "", **changes: Any
) -> GpuReading:
    """A GPU that was read in this tick."""
    used = 0 if used_gib is None else int(used_gib * GIB)
    reading = GpuReading(
        identity=identity(index, **({"name": name} if name else {})),
        state=GpuState.OK,
        time_seconds=NOW,
        since_seconds=NOW - 600,
        measured_seconds=NOW,
        memory=memory(used_gib, total_gib),
        reconciliation=Reconciliation(used, 0, 0),
        utilization=Utilization(gpu_ratio=0.97, memory_ratio=0.41),
        thermal=Thermal(gpu_celsius=61.0, memory_celsius=70.0, fan_ratios=(0.3, 0.35)),
        power=Power(watts=212.4, enforced_limit_watts=300.0, default_limit_watts=300.0, performance_state=0),
        clocks=Clocks(hertz=(("sm", 1_710e6),), event_reasons=(("gpu_idle", False), ("hw_thermal_slowdown", False))),
        ecc=Ecc(enabled=True, volatile_uncorrected=0, recovery_action=0),
        processes_known=True,
        runs=(CollectorRun("memory", ok=True, duration_seconds=0.001),),
    )
    return replace(reading, **changes)


def absent_gpu(index: int, state: GpuState, reason: str = "", **changes: Any) -> GpuReading:
    """A GPU without figures: lost, blind, gone, failed or starting since two minutes."""
    return GpuReading(
        **{
            "identity": identity(index),
            "state": state,
            "reason": reason,
            "time_seconds": NOW,
            "since_seconds": NOW - 120,
            "measured_seconds": None if state is GpuState.STARTING else NOW - 120,
            "runs": (CollectorRun("memory", ok=False, duration_seconds=0.0, reason=reason),),
            **changes,
        }
    )


def mig_instance(
    number: int, used_gib: float, total_gib: float = 9.75, profile: str = "1g.10gb", compute: int = 0
) -> MigInstance:
    """A compute instance in a GPU instance; several may share one, and its memory."""
    return MigInstance(
        uuid=f"MIG-{number:04d}{compute:04d}",
        gpu_instance_id=number,
        compute_instance_id=compute,
        profile=profile,
        memory=memory(used_gib, total_gib, reserved_gib=0),
    )


def process(
    pid: int = 4242,
    *,
    gpu_index: int = 0,
    used_gib: float | None = 12.25,
    state: ProcessState = ProcessState.LIVE,
    sm_ratio: float | None = 0.93,
    kinds: str = "C",
    instance: int | None = None,
    kernel_state: str = "S",
    **info: Any,
) -> ProcessReading:
    """A process on a GPU; `info` goes into what /proc tells of it, while it is live."""
    known = {
        "id": ProcessId(BOOT_ID, pid, 1000),
        "name": "python3",
        "uid": 1000,
        "user": "alice",
        "command": "python3 train.py --config big.yaml",
        "state": kernel_state,
        "start_time_seconds": WALL - 8040,
        "resident_bytes": 3 * GIB,
    }
    reading = ProcessReading(
        gpu_index=gpu_index,
        gpu_uuid=f"GPU-{gpu_index:08d}",
        pid=pid,
        state=state,
        info=ProcessInfo(**{**known, **info}) if state is ProcessState.LIVE else None,
        used_bytes=None if used_gib is None else int(used_gib * GIB),
        kinds=kinds,
        utilization=None if sm_ratio is None else ProcessUtilization(sm_ratio, 0.2, 0.0, 0.0),
    )
    return reading if instance is None else reading._replace(gpu_instance_id=instance, compute_instance_id=0)


def node(**changes: Any) -> NodeReading:
    """A node whose driver answers."""
    return NodeReading(
        **{
            "nvml_state": NvmlState.READY,
            "driver_version": "580.82.07",
            "nvml_version": "13.580.82",
            "cuda_version": "13.0",
            "boot_id": BOOT_ID,
            "gpus_expected": 1,
            "pci_gpus": 1,
            "nvml_initializations": 1,
            **changes,
        }
    )


def snapshot(
    gpus: Sequence[GpuReading] | None = None, processes: Sequence[ProcessReading] | None = None, **changes: Any
) -> Snapshot:
    """One tick of a node; by default one GPU with one process. `node` takes changes to the node."""
    gpus = [gpu()] if gpus is None else gpus
    processes = ([process()] if gpus else []) if processes is None else processes
    node_changes = {"gpus_expected": len(gpus), "pci_gpus": len(gpus), **changes.pop("node", {})}
    return Snapshot(
        **{
            "time_seconds": WALL,
            "clock_seconds": NOW,
            "node": node(**node_changes),
            "gpus": tuple(gpus),
            "processes": tuple(processes),
            "measured_seconds": NOW,
            "runs": (CollectorRun("nvml", ok=True, duration_seconds=0.0),),
            "ticks": 10,
            **changes,
        }
    )
