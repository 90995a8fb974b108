"""Families of the node and of the agent's own health, from a snapshot and the moment of looking at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpuagent import __version__
from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single
from gpuagent.core.metrics.gpu import GPU_LABELS
from gpuagent.core.metrics.preallocation import fast_growth_expected, preallocated
from gpuagent.core.metrics.process import FrameworkRecognizer, framework_recognizer, is_dead
from gpuagent.core.process_labels import ORIGIN_LABELS
from gpuagent.core.snapshot import CollectorRun, GpuReading, GpuState, NvmlState, Snapshot
from gpuagent.core.xids import explain_xid


class NodeView(NamedTuple):
    """A snapshot (None before the first) and the CLOCK_BOOTTIME at which it is looked at."""

    snapshot: Snapshot | None
    now_seconds: float
    simulated: str
    recognize: FrameworkRecognizer = framework_recognizer()


NodeFamily = Family[NodeView]


def _gpu(gpu: GpuReading) -> tuple[str, str]:
    return str(gpu.identity.index), gpu.identity.uuid


def _of(read: Callable[[Snapshot], Value]) -> Callable[[NodeView], Iterable[LabeledValue]]:
    return lambda view: (((), None if view.snapshot is None else read(view.snapshot)),)


def _ages(view: NodeView) -> Iterable[LabeledValue]:
    for gpu in view.snapshot.gpus if view.snapshot else ():
        if gpu.measured_seconds is not None and gpu.state is not GpuState.ASLEEP:
            yield _gpu(gpu), max(0.0, view.now_seconds - gpu.measured_seconds)


def _lost_since(view: NodeView) -> Iterable[LabeledValue]:
    snapshot = view.snapshot
    for gpu in snapshot.gpus if snapshot else ():
        if snapshot is not None and gpu.lost_since_seconds is not None:
            yield _gpu(gpu), snapshot.time_seconds - (snapshot.clock_seconds - gpu.lost_since_seconds)


def _snapshot_age(view: NodeView) -> Value:
    if view.snapshot is None or view.snapshot.measured_seconds is None:
        return None
    return max(0.0, view.now_seconds - view.snapshot.measured_seconds)


def _pause_left(view: NodeView) -> Iterable[LabeledValue]:
    pause = None if view.snapshot is None else view.snapshot.node.pause
    if pause is not None:
        yield (pause.by or "unknown",), pause.until_seconds - view.now_seconds


def _runs(value: Callable[[CollectorRun], Value]) -> Callable[[NodeView], Iterable[LabeledValue]]:
    def of(view: NodeView) -> Iterable[LabeledValue]:
        if view.snapshot is None:
            return
        for run in view.snapshot.runs:
            yield (run.collector, "", ""), value(run)
        for gpu in view.snapshot.gpus:
            for run in gpu.runs:
                yield (run.collector, *_gpu(gpu)), value(run)

    return of


def _processes(view: NodeView) -> Iterable[LabeledValue]:
    if view.snapshot is not None:
        counts = Counter((str(p.gpu_index), p.gpu_uuid) for p in view.snapshot.processes)
        for gpu in view.snapshot.gpus:
            yield _gpu(gpu), counts[_gpu(gpu)] if gpu.processes_known else None


def _preallocated(view: NodeView) -> Iterable[LabeledValue]:
    if view.snapshot is not None:
        snapshot = view.snapshot
        for gpu, is_so in preallocated(snapshot.gpus, snapshot.processes, snapshot.clients, view.recognize):
            yield _gpu(gpu), is_so


def _fast_growth_expected(view: NodeView) -> Iterable[LabeledValue]:
    if view.snapshot is not None:
        for gpu, is_so in fast_growth_expected(view.snapshot, view.recognize):
            yield _gpu(gpu), is_so


def _dead_processes(view: NodeView) -> Iterable[LabeledValue]:
    if view.snapshot is not None:
        counts = Counter((str(p.gpu_index), p.gpu_uuid) for p in view.snapshot.processes if is_dead(p))
        for gpu in view.snapshot.gpus:
            yield _gpu(gpu), counts[_gpu(gpu)] if gpu.processes_known else None


_OUTLIVING = tuple(label for label in ORIGIN_LABELS if label.outlives)
_OWNER = tuple(label.name for label in _OUTLIVING)


def _dead_memory(view: NodeView) -> Iterable[LabeledValue]:
    """Yield one series for each dead process on a GPU, whatever its instances."""
    if view.snapshot is None:
        return
    held: dict[tuple[str, ...], int] = {}
    for process in view.snapshot.processes:
        if not is_dead(process) or process.used_bytes is None:
            continue
        was = process.former
        who = (was.name, was.user) if was else ("[dead]", "unknown")
        owner = tuple(label.of(was) if was else "" for label in _OUTLIVING)
        labels = (str(process.gpu_index), process.gpu_uuid, str(process.pid), *who, *owner)
        held[labels] = held.get(labels, 0) + process.used_bytes
    yield from held.items()


def _xid_events(view: NodeView) -> Iterable[LabeledValue]:
    for xid in view.snapshot.xids if view.snapshot else ():
        yield (str(xid.gpu_index), xid.gpu_uuid, str(xid.xid)), xid.count


def _last_xids(view: NodeView) -> Iterable[LabeledValue]:
    seen = view.snapshot
    if seen is None:
        return
    for xid in seen.xids:
        labels = (str(xid.gpu_index), xid.gpu_uuid, str(xid.xid), explain_xid(xid.xid).severity)
        yield labels, xid.unix_seconds(seen.clock_seconds, seen.time_seconds)


def _driver(view: NodeView) -> Iterable[LabeledValue]:
    if view.snapshot is not None and view.snapshot.node.driver_version:
        node = view.snapshot.node
        yield (node.driver_version, node.nvml_version, node.cuda_version), 1


def _readable(snapshot: Snapshot) -> int:
    return sum(gpu.state in (GpuState.OK, GpuState.ASLEEP) for gpu in snapshot.gpus)


def _enumerated(snapshot: Snapshot) -> Value:
    if snapshot.node.nvml_state is not NvmlState.READY:
        return None
    return sum(gpu.state is not GpuState.GONE for gpu in snapshot.gpus)


def _family(
    name: str, text: str, of: Callable[[NodeView], Iterable[LabeledValue]], labels: tuple[str, ...] = (),
    kind: MetricType = MetricType.GAUGE, collector: str = "nvml",
) -> NodeFamily:  # fmt: skip
    return Family(f"gpuagent_{name}", kind, text, collector, labels, of)


_RUN_LABELS = ("collector", *GPU_LABELS)

NODE_FAMILIES: tuple[NodeFamily, ...] = (
    _family("build_info", "The agent; always 1.", lambda _: (((__version__,), 1),), ("version",)),
    _family("simulated", "1 if every reading comes from a simulated node.", single(lambda view: bool(view.simulated))),
    _family("snapshot_age_seconds", "Time since a GPU was last read with success; absent before the first time.",
            single(_snapshot_age)),
    _family("snapshot_timestamp_seconds", "Unix time of the last tick, successful or not.",
            _of(lambda snapshot: snapshot.time_seconds)),
    _family("gpu_reading_age_seconds", "Time since this GPU was last read with success; absent while it is asleep.",
            _ages, GPU_LABELS),
    _family("gpu_lost_timestamp_seconds", "Unix time since which the GPU is lost; absent while it is not.",
            _lost_since, GPU_LABELS, collector="identity"),
    _family("collector_success", "1 if the collector succeeded at its last run; `gpu` is empty for the node's own.",
            _runs(lambda run: run.ok), _RUN_LABELS),
    _family("collector_duration_seconds", "Duration of the collector's last run.",
            _runs(lambda run: run.duration_seconds), _RUN_LABELS),
    _family("nvml_up", "1 while NVML is initialized.",
            _of(lambda snapshot: snapshot.node.nvml_state is NvmlState.READY)),
    _family("pause_remaining_seconds",
            "Time until the pause of measuring ends by itself, negative once that should have been; absent while the "
            "agent measures. `by` is the user who asked for it.", _pause_left, ("by",)),
    _family("nvml_initializations_total", "Times that NVML was initialized.",
            _of(lambda snapshot: snapshot.node.nvml_initializations), kind=MetricType.COUNTER),
    _family("driver_info", "Versions of driver, NVML and CUDA; always 1.", _driver,
            ("driver_version", "nvml_version", "cuda_version")),
    _family("gpus", "GPUs that the driver enumerates.", _of(_enumerated)),
    _family("gpus_readable", "GPUs that were read in the last tick, or are left asleep.", _of(_readable)),
    _family("gpus_expected", "GPUs that there should be: seen since the boot, or on the PCI bus.",
            _of(lambda snapshot: snapshot.node.gpus_expected)),
    _family("pci_gpus", "GPUs on the PCI bus, whatever the driver says.",
            _of(lambda snapshot: snapshot.node.pci_gpus), collector="pci"),
    _family("processes", "Processes on the GPU.", _processes, GPU_LABELS, collector="processes"),
    _family("dead_processes", "Processes that the driver lists and that have ended, zombies among them.",
            _dead_processes, GPU_LABELS, collector="processes"),
    _family("dead_process_memory_used_bytes",
            "Memory that a process still holds on the GPU although it has ended, with what it was while it lived.",
            _dead_memory, (*GPU_LABELS, "pid", "process", "user", *_OWNER), collector="processes"),
    _family("gpu_memory_preallocated",
            "1 if servers that take most of the GPU by design (vLLM and the like) hold 80 % or more of what is used "
            "and other users and pods 2 % at most. On a GPU that several share, the servers' units have to be named. 0 "
            "where more than 90 % is in use and would not be without processes that do not preallocate.",
            _preallocated, GPU_LABELS, collector="processes"),
    _family("gpu_memory_fast_growth_expected",
            "While growth would fill the GPU within minutes: 1 if all that grows so fast are servers that take most of "
            "the GPU by design, have started less than half an hour ago, and have the GPU to themselves.",
            _fast_growth_expected, GPU_LABELS, collector="processes"),
    _family("processes_seen_total", "Processes with GPU memory since the agent started.",
            _of(lambda snapshot: snapshot.processes_seen), kind=MetricType.COUNTER, collector="procfs"),
    _family("host_pid_namespace", "0 if the agent cannot tell whose a pid is: it then acts on none.",
            _of(lambda snapshot: snapshot.node.host_pid_namespace), collector="procfs"),
    _family("xid_events_total", "Xid errors since the agent started.", _xid_events,
            (*GPU_LABELS, "xid"), MetricType.COUNTER, "xid_events"),
    _family("xid_last_timestamp_seconds", "Unix time of the last Xid error of this code.",
            _last_xids, (*GPU_LABELS, "xid", "severity"), collector="xid_events"),
    _family("ticks_total", "Ticks since the agent started.", _of(lambda snapshot: snapshot.ticks),
            kind=MetricType.COUNTER),
    _family("ticks_late_total", "Ticks that could not begin in time.", _of(lambda snapshot: snapshot.ticks_late),
            kind=MetricType.COUNTER),
)  # fmt: skip
