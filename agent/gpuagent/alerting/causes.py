"""What a snapshot knows of processes and GPUs, as far as it tells which alerts have one cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from gpuagent.core.growth import Growth, Verdict
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessInfo, ProcessReading, ProcessState, Snapshot
from gpuagent_alerts.incidents.cause import Program

_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = re.compile(rf"(.+?)(?:-[{_SAFE}]{{8,10}})?-[{_SAFE}]{{5}}")
"""What Kubernetes appends to the names of pods that it makes (`SafeEncodeString` in apimachinery, `util/rand`)."""
_SERVICE = ".service"
_SESSIONS = "user@"
_INIT = 1
_UNREADABLE = frozenset({GpuState.BLIND, GpuState.FAILED})


class SnapshotFacts:
    """Looks into one snapshot, and only for what alerts name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def program(self, uuid: str, pid: int) -> Program | None:
        """Return a live process of the driver's list; None if it is not there."""
        found = self._processes.get((uuid, pid))
        return None if found is None or found.info is None else _program(found, found.info)

    def grower(self, uuid: str, *, leaking: bool) -> Program | None:
        """Return the process that grows most on a GPU; with `leaking` one that leaks, or fills it within minutes."""
        growing = [
            (growth.slope.value if growth.slope is not None else 0.0, key.pid)
            for key, growth in self._snapshot.growth.items()
            if key.gpu_uuid == uuid and key.pid and _counts(growth, leaking=leaking)
        ]
        return self.program(uuid, max(growing)[1]) if growing else None

    def dead_pids(self, uuid: str) -> Sequence[int]:
        """Return the processes that have ended and hold memory of a GPU."""
        return [each.pid for each in self._snapshot.processes
                if each.gpu_uuid == uuid and each.state is ProcessState.DEAD]  # fmt: skip

    def lost_uuids(self) -> Sequence[str]:
        """Return the GPUs that are lost or gone."""
        gone = (GpuState.LOST, GpuState.GONE)
        return [gpu.identity.uuid for gpu in self._snapshot.gpus if gpu.state in gone and gpu.identity.uuid]

    def is_blind(self) -> bool:
        """Return whether no GPU of the node can be read."""
        gpus = self._snapshot.gpus
        is_away = self._snapshot.node.nvml_state is not NvmlState.READY
        return is_away or (len(gpus) > 1 and all(gpu.state in _UNREADABLE for gpu in gpus))

    @cached_property
    def _processes(self) -> dict[tuple[str, int], ProcessReading]:
        found: defaultdict[tuple[str, int], list[ProcessReading]] = defaultdict(list)
        for each in self._snapshot.processes:
            found[each.gpu_uuid, each.pid].append(each)
        return {key: next((one for one in those if one.info is not None), those[0]) for key, those in found.items()}


def _counts(growth: Growth, *, leaking: bool) -> bool:
    return growth.verdict is Verdict.LEAKING or growth.fast or (not leaking and growth.verdict is Verdict.GROWING)


def _program(reading: ProcessReading, info: ProcessInfo) -> Program:
    labels = {
        "gpu": str(reading.gpu_index), "uuid": reading.gpu_uuid, "pid": str(reading.pid), "process": info.name,
        "user": info.user, "unit": info.unit, "container_id": info.container_id, "pod_namespace": info.namespace,
        "pod_name": info.pod, "slurm_job": info.slurm_job,
    }  # fmt: skip
    identity = f"{info.id.boot_id}:{info.id.pid}:{info.id.start_ticks}"
    known = {name: value for name, value in labels.items() if value}
    return Program(identity, reading.pid, tuple(_groups(info)), known)


def _groups(info: ProcessInfo) -> Iterator[str]:
    """Yield what the process shares with others of its program. Each has the user: nobody joins another's incident."""
    if info.slurm_job:
        yield f"job:{info.slurm_job}:{info.uid}"
    if info.namespace and info.pod and "pod" in info.proven_names:
        # Another container, and often another pod: the program is the same.
        yield f"pod:{info.namespace}/{program_of_pod(info.pod)}:{info.uid}"
    if info.container_id:
        yield f"container:{info.container_id}:{info.uid}"
    elif info.unit.endswith(_SERVICE) and not info.unit.startswith(_SESSIONS):
        yield f"unit:{info.unit}:{info.uid}"
    boot = info.id.boot_id
    if info.process_group:
        yield f"process-group:{boot}:{info.process_group}:{info.uid}"
    if info.parent_pid > _INIT:
        # Launchers such as torchrun give each rank a process group of its own.
        yield f"siblings:{boot}:{info.parent_pid}:{info.uid}:{info.name}"


def program_of_pod(name: str) -> str:
    """Return a pod's name without what Kubernetes appends to it: `api-7d9f8c6b5d-x2kqz` is of `api`."""
    found = _SUFFIX.fullmatch(name)
    return name if found is None else found[1]
