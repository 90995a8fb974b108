"""Processes of a snapshot as targets, and who belongs to whom."""

from __future__ import annotations

from collections.abc import Iterator

from gpuagent.growth import Growth, Verdict
from gpuagent.reading import ProcessReading, ProcessState, Snapshot
from gpuagent_alerts.remedies.target import Target


def targets_on(snapshot: Snapshot, gpu_uuid: str) -> Iterator[Target]:
    """Every process on a GPU of which enough is known: what is not, is never acted on."""
    for process in snapshot.processes:
        if process.gpu_uuid == gpu_uuid:
            target = target_of(process, snapshot.growth.get(process.key))
            if target is not None:
                yield target


def target_of(process: ProcessReading, growth: Growth | None) -> Target | None:
    """None for what /proc does not know, for what hides its start time, and where the memory is not told."""
    info = process.info
    if info is None or process.state is not ProcessState.LIVE or process.used_bytes is None or info.id.start_ticks <= 0:
        return None
    return Target(
        id=info.id,
        key=process.key,
        gpu_index=process.gpu_index,
        name=info.name,
        uid=info.uid,
        user=info.user,
        command=info.command,
        cgroup=info.cgroup,
        used_bytes=process.used_bytes,
        started_seconds=info.start_time_seconds,
        kinds=process.kinds,
        unit=info.unit,
        container_id=info.container_id,
        container_runtime=info.container_runtime,
        slurm_job=info.slurm_job,
        parent_pid=info.parent_pid,
        sm_ratio=process.utilization.sm_ratio if process.utilization else None,
        slope_bytes_per_second=growth.slope.value if growth and growth.slope else None,
        leaking=growth is not None and growth.verdict is Verdict.LEAKING,
    )


def relatives(target: Target, others: Iterator[Target], scope: str) -> tuple[Target, ...]:
    """Who falls with the target, or holds its memory after it: by container or job, else by descent.

    A cgroup alone makes nobody a relative: everything that a person has started by hand is in one.
    """
    found = []
    for other in others:
        if other.id == target.id:
            continue
        if (
            (scope in {"container", "process"} and target.container_id and other.container_id == target.container_id)
            or (scope in {"job", "process"} and target.slurm_job and other.slurm_job == target.slurm_job)
            or (target.unit and other.unit == target.unit)
            or other.parent_pid == target.pid
            or (scope == "job" and other.parent_pid == target.parent_pid and target.parent_pid > 1)
        ):
            found.append(other)
    return tuple(found)
