"""Putting the GPUs' answers and /proc together: whose process each entry is, and where the memory went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuagent.nvml.collect import Collected
from gpuagent.reading import Memory, ProcessInfo, ProcessReading, ProcessState, Reconciliation


def join_processes(
    collected: Collected, infos: Mapping[int, ProcessInfo | None], *, host_pid_namespace: bool
) -> list[ProcessReading]:
    """The processes of one GPU.

    In a pid namespace of our own a pid of the driver may be anybody's here: such processes stay unresolved even where
    the number exists (https://github.com/NVIDIA/nvidia-docker/issues/1483).
    """
    identity = collected.reading.identity
    utilizations = collected.utilizations
    readings = []
    for process in collected.processes:
        info = infos.get(process.pid) if host_pid_namespace else None
        if not host_pid_namespace:
            state = ProcessState.UNRESOLVED
        elif info is None:
            state = ProcessState.DEAD
        else:
            state = ProcessState.LIVE
        readings.append(
            ProcessReading(
                identity.index,
                identity.uuid,
                process.pid,
                state,
                info,
                process.used_bytes,
                process.kinds,
                None if utilizations is None else utilizations.get(process.pid),
                process.gpu_instance_id,
                process.compute_instance_id,
            )
        )
    return readings


def reconcile(memory: Memory | None, processes: Iterable[ProcessReading]) -> Reconciliation | None:
    """Where the used memory of a GPU is; None where it is not known.

    Unattributed memory is what no process is listed for: contexts of the driver, managed memory, leftovers. Memory
    and processes are read microseconds apart, so their difference may come out below zero: it is not shown then.
    """
    if memory is None or memory.used_bytes is None:
        return None
    live = dead = 0
    for process in processes:
        if process.state is ProcessState.DEAD:
            dead += process.used_bytes or 0
        else:
            live += process.used_bytes or 0
    return Reconciliation(live, dead, max(0, memory.used_bytes - live - dead))
