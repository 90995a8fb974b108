"""The status document: one snapshot as JSON, for `/api/v1/status`, the page and the command.

Numbers are bare and their units are in the keys. null is what the driver does not tell, never zero and never the
last value. `schema` changes when a key goes or changes its meaning, not when one is added.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gpuagent.core.growth import MemoryKey
from gpuagent.core.hardware import Clocks, Ecc, Memory, MigInstance, Power, Thermal, Utilization
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.alerting import FiringAlert, Undelivered
from gpuagent.core.metrics.clients import cached_bytes, outside_bytes
from gpuagent.core.metrics.preallocation import full_by_design
from gpuagent.core.metrics.process import Framework, FrameworkRecognizer, framework_of, framework_recognizer
from gpuagent.core.process_labels import ORIGIN_LABELS
from gpuagent.core.snapshot import (
    AllocatorReading,
    CollectorRun,
    GpuReading,
    GpuState,
    ProcessReading,
    ProcessState,
    Snapshot,
)
from gpuagent_exporters.status.gpu_problems import recovery_name, with_begin_of_loss
from gpuagent_exporters.status.last_known import LastKnown
from gpuagent_exporters.status.mps import shared_servers
from gpuagent_exporters.status.problems import find_problems, stale_after_seconds
from gpuagent_exporters.status.severity import Assessments, Problem, gravest

SCHEMA = 1

Document: TypeAlias = dict[str, object]
_Points = Sequence[float | None]


def status_document(
    snapshot: Snapshot | None,
    *,
    now_seconds: float,
    source: str = "agent",
    version: str,
    pid: int,
    uptime_seconds: float | None,
    poll_interval_seconds: float,
    history: Mapping[str, _Points],
    history_interval_seconds: float,
    simulated: str = "",
    preallocates: tuple[str, ...] = (),
    state_problem: str = "",
    left_alone: int = 0,
    undelivered: Sequence[Undelivered] = (),
    firing: Sequence[FiringAlert] = (),
    silenced_processes: Collection[tuple[int, int]] = frozenset(),
    known: LastKnown | None = None,
) -> Document:
    """Everything that a person asks of the node first.

    Args:
        snapshot: What was measured; None before the first measurement.
        now_seconds: CLOCK_BOOTTIME, as in the snapshot.
        source: "agent", or "direct" where the command has read the GPUs by itself.
        version: Version of the agent.
        pid: Its pid.
        uptime_seconds: Since its start.
        poll_interval_seconds: How often it measures.
        history: Used bytes by GPU UUID, oldest first.
        history_interval_seconds: Between two of those points.
        simulated: Name of the scenario, for as long as no snapshot tells it.
        preallocates: Patterns of processes that take most of the GPU by design, beyond those that are known.
        state_problem: What is wrong with the agent's state file, in words; "" where nothing is.
        left_alone: Users, units and containers whose processes rules leave alone until a person has looked.
        undelivered: Receivers that are not told what they should be.
        firing: The alerts that fire: how grave something is, they say first.
        silenced_processes: Index of the GPU and pid of processes whose growth nobody wants to hear of.
        known: What was known of the GPUs whose processes are not read in this snapshot.
    """
    snapshot = with_begin_of_loss(snapshot, firing)
    problems = find_problems(
        snapshot,
        now_seconds,
        poll_interval_seconds=poll_interval_seconds,
        preallocates=preallocates,
        state_problem=state_problem,
        left_alone=left_alone,
        undelivered=undelivered,
        firing=firing,
        silenced_processes=silenced_processes,
    )
    said = Assessments(snapshot.growth if snapshot else {}, firing)
    recognize = framework_recognizer(preallocates)
    document: Document = {
        "schema": SCHEMA,
        "source": source,
        "agent": {
            "version": version,
            "pid": pid,
            "uptime_seconds": uptime_seconds,
            "simulated": snapshot.simulated if snapshot else simulated,
            "poll_interval_seconds": poll_interval_seconds,
        },
        **_times(snapshot, now_seconds, poll_interval_seconds),
        "node": _node(snapshot),
        "problems": [
            {
                "severity": str(problem.severity),
                "kind": problem.kind,
                "gpu": problem.gpu,
                "pid": problem.pid,
                "text": problem.sentence,
                "advice": problem.advice,
            }
            for problem in problems
        ],
        "gpus": [],
        "processes": _processes(snapshot, recognize, said) if snapshot else [],
        "last_known": _last_known(snapshot, known, now_seconds, recognize),
        "collectors": list(_collectors(snapshot)) if snapshot else [],
    }
    if snapshot is not None:
        by_design = full_by_design(snapshot, recognize)
        document["gpus"] = _gpus(snapshot, now_seconds, history, history_interval_seconds, said, problems, by_design)
    return {key: finite(value) for key, value in document.items()}


def processes_document(
    snapshot: Snapshot | None,
    *,
    now_seconds: float,
    source: str = "agent",
    poll_interval_seconds: float = 1.0,
    simulated: str = "",
    preallocates: tuple[str, ...] = (),
    identified: bool = False,
    firing: Sequence[FiringAlert] = (),
) -> Document:
    """Return the GPU processes alone, with what it takes to judge them: whose figures these are, and how old.

    With `identified` each has what tells it from every other process, for requests that act on it: never to be told on
    an address that everybody can reach.
    """
    said = Assessments(snapshot.growth if snapshot else {}, firing)
    recognize = framework_recognizer(preallocates)
    document: Document = {
        "schema": SCHEMA,
        "source": source,
        "agent": {"simulated": snapshot.simulated if snapshot else simulated},
        **_times(snapshot, now_seconds, poll_interval_seconds),
        "processes": _processes(snapshot, recognize, said, identified=identified) if snapshot else [],
    }
    return {key: finite(value) for key, value in document.items()}


def _last_known(
    snapshot: Snapshot | None, known: LastKnown | None, now_seconds: float, recognize: FrameworkRecognizer
) -> Document | None:
    """Return the processes of GPUs that are not measured now, without a verdict; None where all are measured."""
    if snapshot is None or known is None:
        return None
    then = replace(snapshot, processes=known.processes)
    return {
        "gpus": [gpu.identity.index for gpu in known.gpus],
        "reason": known.reason,
        "age_seconds": None if known.read_seconds is None else max(0.0, now_seconds - known.read_seconds),
        "processes": _processes(then, recognize, Assessments({})),
    }


def finite(value: object) -> object:
    """Return the same value without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _times(snapshot: Snapshot | None, now_seconds: float, poll_interval_seconds: float) -> Document:
    """`age_seconds` is the age of the newest measurement of a GPU; null while there is none."""
    measured = snapshot.measured_seconds if snapshot else None
    age = None if measured is None else max(0.0, now_seconds - measured)
    return {
        "time_seconds": snapshot.time_seconds if snapshot else None,
        "age_seconds": age,
        "stale": age is not None and age > stale_after_seconds(poll_interval_seconds),
    }


def _node(snapshot: Snapshot | None) -> Document:
    node = snapshot.node if snapshot else None
    return {
        "nvml_state": str(node.nvml_state) if node else "starting",
        "nvml_reason": node.nvml_reason if node else "",
        "driver_version": (node.driver_version or None) if node else None,
        "nvml_version": (node.nvml_version or None) if node else None,
        "cuda_version": (node.cuda_version or None) if node else None,
        "host_pid_namespace": node.host_pid_namespace if node else None,
        "gpus": len(snapshot.gpus) if snapshot else None,
        "gpus_expected": node.gpus_expected if node else None,
    }


def _gpus(
    snapshot: Snapshot,
    now_seconds: float,
    history: Mapping[str, _Points],
    history_interval_seconds: float,
    said: Assessments,
    problems: Sequence[Problem],
    by_design: Mapping[MemoryKey, bool],
) -> list[Document]:
    by_gpu: dict[tuple[int, str], list[ProcessReading]] = defaultdict(list)
    for process in snapshot.processes:
        by_gpu[process.gpu_index, process.gpu_uuid].append(process)
    documents = []
    for gpu in snapshot.gpus:
        key = (gpu.identity.index, gpu.identity.uuid)
        document = gpu_status(gpu, by_gpu[key], now_seconds)
        document |= said.document(MemoryKey(gpu.identity.uuid))
        worst = gravest(problem.severity for problem in problems if problem.is_about(gpu.identity))
        document["severity"] = str(worst) if worst else None
        document["memory_preallocated"] = by_design.get(MemoryKey(gpu.identity.uuid))
        document["mig"] = [
            mig_status(one) | said.document(place) | {"memory_preallocated": by_design.get(place)}
            for one in gpu.mig
            for place in (MemoryKey(gpu.identity.uuid, 0, one.gpu_instance_id),)
        ]
        unrepaired = {xid.xid for xid in gpu.unrepaired_xids}
        document["xids"] = [
            {
                "xid": xid.xid,
                "count": xid.count,
                "last_time_seconds": xid.last_time_seconds,
                "unrepaired": xid.xid in unrepaired,
            }
            for xid in snapshot.xids
            if (xid.gpu_index, xid.gpu_uuid) == key
        ]
        document["memory_used_history_bytes"] = list(history.get(gpu.identity.uuid, ()))
        document["history_interval_seconds"] = history_interval_seconds
        documents.append(document)
    return documents


def _processes(
    snapshot: Snapshot, recognize: FrameworkRecognizer, said: Assessments, *, identified: bool = False
) -> list[Document]:
    """Return the processes by GPU, the largest first; those of which the driver tells no memory are last."""
    ordered = sorted(
        snapshot.processes,
        key=lambda process: (
            process.gpu_index,
            process.used_bytes is None,
            -(process.used_bytes or 0),
            process.pid,
        ),
    )
    shared = shared_servers(ordered)
    return [
        _process(process, snapshot.time_seconds)
        | {"shared_through_mps": (process.gpu_uuid, process.pid) in shared}
        | said.document(process.key)
        | _framework(framework_of(process, snapshot.clients, recognize))
        | allocator_status(snapshot, process)
        | (_identity(process) if identified else {})
        for process in ordered
    ]


def _process(process: ProcessReading, time_seconds: float) -> Document:
    """Return a process's document. One that has ended is called what it was while it lived."""
    info, utilization = process.info, process.utilization
    who = info or process.former
    mig = process.gpu_instance_id != NO_INSTANCE
    age = max(0.0, time_seconds - info.start_time_seconds) if info and info.start_time_seconds else None
    return {
        "gpu": process.gpu_index,
        "gpu_uuid": process.gpu_uuid,
        "pid": process.pid,
        "process": who.name if who else "",
        "user": who.user if who else "",
        "uid": who.uid if who else None,
        "state": str(process.state),
        "holder_unproven": process.holder_unproven,
        "process_state": info.state if info else "Z" if process.is_zombie else "",
        "memory_used_bytes": process.used_bytes,
        "sm_utilization_ratio": utilization.sm_ratio if utilization else None,
        "memory_utilization_ratio": utilization.memory_ratio if utilization else None,
        "encoder_utilization_ratio": utilization.encoder_ratio if utilization else None,
        "decoder_utilization_ratio": utilization.decoder_ratio if utilization else None,
        "kinds": process.kinds,
        "gpu_instance_id": process.gpu_instance_id if mig else None,
        "compute_instance_id": process.compute_instance_id if mig else None,
        **{label.document_key: label.of(who) if who else "" for label in ORIGIN_LABELS},
        "command": who.command if who else "",
        "age_seconds": age,
        "host_memory_bytes": info.resident_bytes if info else None,
    }


def _identity(process: ProcessReading) -> Document:
    """Null is unknown, as for a process that hides its start time: such a one cannot be named, nor acted on."""
    info = process.info
    ticks = info.id.start_ticks if info else 0
    return {
        "start_ticks": ticks if ticks > 0 else None,
        "boot_id": (info.id.boot_id or None) if info else None,
        "pid_namespace": (info.pid_namespace or None) if info else None,
        "parent_pid": (info.parent_pid or None) if info else None,
    }


def _framework(framework: Framework | None) -> Document:
    return {
        "framework": framework.name if framework else "",
        "preallocates": framework.preallocates if framework else None,
    }


def _collectors(snapshot: Snapshot) -> Iterator[Document]:
    for run in snapshot.runs:
        yield _collector(run, None)
    for gpu in snapshot.gpus:
        for run in gpu.runs:
            yield _collector(run, gpu)


def _collector(run: CollectorRun, gpu: GpuReading | None) -> Document:
    return {
        "collector": run.collector,
        "gpu": None if gpu is None else gpu.identity.index,
        "ok": run.ok,
        "reason": run.reason,
        "duration_seconds": run.duration_seconds,
    }


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
        "memory_kind": str(identity.memory_kind),
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
    """Where the used memory is; what the processes hold is known even where the whole is not."""
    split = gpu.reconciliation
    live = dead = rest = host = None
    if split is not None:
        live, dead, rest = split.processes_bytes, split.dead_processes_bytes, split.unattributed_bytes
        host = split.host_bytes if gpu.identity.shares_memory else None
    elif gpu.identity.unified_memory and gpu.processes_known:
        live = sum(process.used_bytes or 0 for process in processes if process.state is not ProcessState.DEAD)
        dead = sum(process.used_bytes or 0 for process in processes if process.state is ProcessState.DEAD)
    return {
        "memory_processes_bytes": live,
        "memory_dead_processes_bytes": dead,
        "memory_unattributed_bytes": rest,
        "memory_host_bytes": host,
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


def allocator_status(snapshot: Snapshot, process: ProcessReading) -> dict[str, object]:
    """Return the allocator's figures of one process on one GPU; all null where no embedded client tells of it."""
    client = snapshot.clients.get(process.pid)
    reading = client.devices.get(process.gpu_uuid) if client else None
    figures = reading or AllocatorReading()
    return {
        "app": client.app if client else None,
        "allocated_bytes": figures.allocated_bytes,
        "reserved_bytes": figures.reserved_bytes,
        "cached_bytes": cached_bytes(figures),
        "outside_bytes": outside_bytes(process, figures),
    }
