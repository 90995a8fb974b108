"""Families of one process on one GPU.

Labels are few and do not change while a process lives, but for its owner's: they are empty while it has not been shown
to hold its memory. Everything else about it is in `gpuagent_process_info`, to be joined on (gpu, uuid, pid).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from operator import attrgetter

from gpuagent.catalogue.family import Family, Kind, Labelled, Sample, Value, single
from gpuagent.catalogue.gpu import GPU_LABELS
from gpuagent.growth import MemoryKey
from gpuagent.identity import NO_INSTANCE
from gpuagent.reading import ProcessInfo, ProcessReading, ProcessState

PROCESS_LABELS = (*GPU_LABELS, "pid", "process", "user", "gpu_instance_id", "compute_instance_id")
OTHER = "other"
"""`process` of the series that sums up the processes below the `processes.top` largest of a GPU."""

ProcessFamily = Family[ProcessReading]


def base_labels(process: ProcessReading) -> tuple[str | None, ...]:
    """Values of `PROCESS_LABELS`; the MIG ones are left out where there is no MIG.

    Memory whose holder is unproven is nobody's: it must not count in a sum over what a user holds.
    """
    info = process.info
    mig = process.gpu_instance_id != NO_INSTANCE
    return (
        str(process.gpu_index),
        process.gpu_uuid,
        str(process.pid),
        info.name if info else f"[{process.state}]",
        info.user if info and not process.holder_unproven else "",
        str(process.gpu_instance_id) if mig else None,
        str(process.compute_instance_id) if mig else None,
    )


def split_top(
    processes: Iterable[ProcessReading], top: int | None, first: Container[MemoryKey] = ()
) -> tuple[list[ProcessReading], list[Sample]]:
    """`top` processes of each GPU, and one memory sample per GPU for the rest. Those of `first`, then the largest."""
    if top is None:
        return list(processes), []
    by_gpu: dict[tuple[int, str], list[ProcessReading]] = {}
    for process in processes:
        by_gpu.setdefault((process.gpu_index, process.gpu_uuid), []).append(process)
    shown: list[ProcessReading] = []
    rest: list[Sample] = []
    for (index, uuid), group in by_gpu.items():
        if len(group) <= top:
            shown += group
            continue
        group.sort(key=lambda process: (process.key not in first, -(process.used_bytes or 0), process.pid))
        shown += group[:top]
        others = float(sum(process.used_bytes or 0 for process in group[top:]))
        rest.append(Sample((str(index), uuid, "", OTHER, "", None, None), others))
    return shown, rest


def _utilization(field: int) -> Callable[[ProcessReading], Iterable[Labelled]]:
    def value(process: ProcessReading) -> Value:
        utilization = process.utilization
        return None if utilization is None else utilization[field]

    return single(value)


def _state(letter: str) -> Callable[[ProcessReading], Iterable[Labelled]]:
    """Only while it is so: for nearly every process it never is."""
    return single(lambda process: 1 if process.info and process.info.state == letter else None)


_info_texts: Callable[[ProcessInfo], tuple[str, ...]] = attrgetter(
    "command", "unit", "container_id", "container_runtime", "container_name", "pod_uid", "pod", "namespace", "slurm_job"
)
# `pod`, `namespace` and `container` would collide with the labels of a scrape and be renamed (dcgm-exporter#85).
_INFO_LABELS = (
    "uid", "command", "unit", "container_id", "container_runtime", "container_name", "pod_uid", "pod_name",
    "pod_namespace", "slurm_job", "parent_pid", "type", "state",
)  # fmt: skip


def _info(process: ProcessReading) -> Iterable[Labelled]:
    info, kinds, state = process.info, process.kinds, process.state
    if info is None:
        return (((*[""] * (len(_INFO_LABELS) - 2), kinds, state), 1),)
    if process.holder_unproven:  # nobody's
        return ((("", info.command, *[""] * (len(_INFO_LABELS) - 5), str(info.parent_pid), kinds, state), 1),)
    return (((str(info.uid), *_info_texts(info), str(info.parent_pid), kinds, state), 1),)


def _family(
    name: str, collector: str, text: str, of: Callable[[ProcessReading], Iterable[Labelled]],
    labels: Sequence[str] = (),
) -> ProcessFamily:  # fmt: skip
    return Family(f"gpuagent_process_{name}", Kind.GAUGE, text, collector, (*PROCESS_LABELS, *labels), of)


USED = _family("memory_used_bytes", "processes", "Device memory of the process as the driver counts it.",
               single(lambda process: process.used_bytes))  # fmt: skip

PROCESS_FAMILIES: tuple[ProcessFamily, ...] = (
    USED,
    _family("sm_utilization_ratio", "process_utilization",
            "Share of the multiprocessors' time, 0 to 1; absent unless the driver sampled it or the GPU is at 0.",
            _utilization(0)),
    _family("memory_utilization_ratio", "process_utilization",
            "Share of the memory's time, 0 to 1; absent while unknown.", _utilization(1)),
    _family("encoder_utilization_ratio", "process_utilization",
            "Share of the video encoder's time, 0 to 1; absent while unknown.", _utilization(2)),
    _family("decoder_utilization_ratio", "process_utilization",
            "Share of the video decoder's time, 0 to 1; absent while unknown.", _utilization(3)),
    _family("resident_memory_bytes", "procfs", "Host memory resident.",
            single(lambda process: process.info.resident_bytes if process.info else None)),
    _family("start_time_seconds", "procfs", "Unix time at which the process started.",
            single(lambda process: process.info.start_time_seconds if process.info else None)),
    _family("uninterruptible", "procfs", "1 while the process is in D state: only SIGKILL may reach it.", _state("D")),
    _family("zombie", "procfs", "1 if the process has ended and its parent has not taken note.", _state("Z")),
    _family("info", "procfs", "What the process is; always 1.", _info, _INFO_LABELS),
)  # fmt: skip


def is_dead(process: ProcessReading) -> bool:
    """Whether the driver lists what /proc does not know."""
    return process.state is ProcessState.DEAD
