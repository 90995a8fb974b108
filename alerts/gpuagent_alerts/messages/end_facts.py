"""What an alert was about when its condition held last, and what is there now: what the reasons for its end compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.hardware import Memory
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState, NvmlState, ProcessReading, Snapshot
from gpuagent_alerts.alert import Alert

_PEAK_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class MeasuredFacts:
    """Measurements that an alert was about, when its condition held last."""

    boot_id: str
    nvml_initializations: int
    process: ProcessReading | None = None
    memory: Memory | None = None
    """Memory of the GPU, or of the MIG instance that the alert names."""
    grower: ProcessReading | None = None
    """The process on that GPU that grew most, by the leak detector."""
    processes: tuple[ProcessReading, ...] = ()
    """All that held memory there."""
    pause: str = ""
    """Who paused the agent and until when, while it was paused."""

    peak_bytes: int = 0
    """The most that was in use there in the last two minutes: what comes back at once is seen before its alert ends."""
    peak_at: float = 0.0
    """Unix time of that."""

    def with_peak_of(self, before: MeasuredFacts | None, wall_seconds: float) -> MeasuredFacts:
        """Return these facts, which are of this Unix time, with the peak of now or of those before."""
        used = 0 if self.memory is None else self.memory.used_bytes or 0
        if before is not None and before.peak_bytes > used and 0 <= wall_seconds - before.peak_at <= _PEAK_SECONDS:
            return replace(self, peak_bytes=before.peak_bytes, peak_at=before.peak_at)
        return replace(self, peak_bytes=used, peak_at=wall_seconds)

    def with_figures_of(self, before: MeasuredFacts) -> MeasuredFacts:
        """Return these facts of what is not measured now, with what was known of its memory before."""
        return replace(self.with_processes_of(before), memory=before.memory)

    def with_processes_of(self, before: MeasuredFacts) -> MeasuredFacts:
        """Return these facts of a GPU whose processes cannot be listed now, with what was known of those before."""
        return replace(self, process=before.process, grower=before.grower, processes=before.processes)


@dataclass(frozen=True, slots=True)
class EndedAlert:
    """An alert that ended, what was, and what is."""

    alert: Alert
    before: MeasuredFacts | None
    snapshot: Snapshot
    wall_seconds: float
    is_alive: Callable[[ProcessId], bool | None]
    unwatched: str = ""
    """What kept the agent from watching, where it has never seen the alert true: `gpuagent was not running`."""
    was_paused: bool = False
    """Whether measuring was paused since its condition was measured last."""
    former_id: ProcessId | None = None
    """The process that such an alert named, as far as its incident knows it."""
    former_name: str = ""
    """Name of the process that an incident is about, for an alert that names none; `former_id` stands for it."""

    @property
    def gpu(self) -> GpuReading | None:
        """The GPU that the alert names, now."""
        return _gpu(self.alert.labels, self.snapshot)

    @property
    def successor(self) -> GpuIdentity | None:
        """The GPU that answers in the place of the lost one that the alert names; None if there is none."""
        uuid = self.alert.labels.get("uuid")
        return next((gpu.identity for gpu in self.snapshot.gpus if uuid and gpu.replaces == uuid), None)

    @property
    def memory(self) -> Memory | None:
        """Its memory now, or that of its MIG instance; None while it cannot be read."""
        gpu = self.gpu
        return None if gpu is None or gpu.state is not GpuState.OK else _memory(self.alert.labels, gpu)

    @property
    def process(self) -> ProcessReading | None:
        """The process that the alert names, as the driver lists it now."""
        return _process(self.alert.labels, self.snapshot)

    @property
    def grower(self) -> ProcessReading | None:
        """The process on its GPU that grows most now, of an alert that names none; None while nobody grows."""
        return grower_of(self.alert.labels, self.snapshot)

    @property
    def growth(self) -> Growth | None:
        """What the leak detector says now of the memory that the alert names."""
        key = key_of(self.alert.labels)
        return None if key is None else self.snapshot.growth.get(key)


def facts_of(labels: Mapping[str, str], snapshot: Snapshot) -> MeasuredFacts | None:
    """Return what an alert with these labels is about; None while its GPU cannot be read."""
    gpu = _gpu(labels, snapshot)
    if gpu is not None and gpu.state in {GpuState.BLIND, GpuState.FAILED, GpuState.STARTING}:
        return None
    node = snapshot.node
    memory = None if gpu is None else _memory(labels, gpu)
    process = _process(labels, snapshot)
    holders = () if gpu is None else tuple(holders_of(labels, snapshot))
    pause = (node.nvml_reason or "on request") if node.nvml_state is NvmlState.PAUSED else ""
    return MeasuredFacts(
        node.boot_id, node.nvml_initializations, process, memory, grower_of(labels, snapshot), holders, pause
    )


def holders_of(labels: Mapping[str, str], snapshot: Snapshot) -> Iterator[ProcessReading]:
    """Yield the processes that hold memory of the GPU, or the MIG instance, that an alert with these labels names."""
    instance = labels.get("gpu_instance_id")
    for process in snapshot.processes:
        is_here = not instance or instance in {str(NO_INSTANCE), str(process.gpu_instance_id)}
        if is_here and process.gpu_uuid == labels.get("uuid") and process.used_bytes:
            yield process


def _gpu(labels: Mapping[str, str], snapshot: Snapshot) -> GpuReading | None:
    uuid = labels.get("uuid")
    return next((gpu for gpu in snapshot.gpus if uuid and gpu.identity.uuid == uuid), None)


def _memory(labels: Mapping[str, str], gpu: GpuReading) -> Memory | None:
    instance = labels.get("gpu_instance_id")
    if not instance or instance == str(NO_INSTANCE):
        return gpu.memory
    return next((one.memory for one in gpu.mig if str(one.gpu_instance_id) == instance), None)


def memory_of(labels: Mapping[str, str], snapshot: Snapshot) -> Memory | None:
    """Return the memory of the GPU or MIG instance that an alert with these labels names; None if it is not there."""
    gpu = _gpu(labels, snapshot)
    return None if gpu is None else _memory(labels, gpu)


def has_instance(labels: Mapping[str, str], gpu: GpuReading) -> bool:
    """Return whether the MIG instance that an alert names may be there: False where the GPU lists all, and not that.

    An alert that names none is of the GPU itself.
    """
    instance = labels.get("gpu_instance_id", "")
    if not instance.isdecimal() or any(not run.ok for run in gpu.runs if run.collector == "mig"):
        return True
    return any(str(one.gpu_instance_id) == instance for one in gpu.mig)


def key_of(labels: Mapping[str, str]) -> MemoryKey | None:
    """Return whose memory an alert with these labels is about; None where its labels do not say."""
    try:
        pid, instance = int(labels.get("pid") or 0), int(labels.get("gpu_instance_id") or NO_INSTANCE)
    except ValueError:  # a rule may set any label to any text
        return None
    return MemoryKey(labels.get("uuid", ""), pid, instance)


def grower_of(labels: Mapping[str, str], snapshot: Snapshot) -> ProcessReading | None:
    """Return the process that grows most on an alert's GPU; None for an alert that names a process by itself."""
    if labels.get("pid"):
        return None
    paces = {
        key: growth.slope.value
        for key, growth in snapshot.growth.items()
        if key.pid
        and key.gpu_uuid == labels.get("uuid")
        and growth.slope is not None
        and growth.verdict in {Verdict.GROWING, Verdict.LEAKING}
        and not growth.held_before
    }
    most = max(paces, key=lambda one: paces[one], default=None)
    return None if most is None else next((one for one in snapshot.processes if one.key == most), None)


def _process(labels: Mapping[str, str], snapshot: Snapshot) -> ProcessReading | None:
    def matches() -> Iterator[ProcessReading]:
        for process in snapshot.processes:
            if str(process.pid) == labels.get("pid") and process.gpu_uuid == labels.get("uuid"):
                instance = labels.get("gpu_instance_id")
                if not instance or instance == str(process.gpu_instance_id):
                    yield process

    return next(matches(), None) if labels.get("pid") else None


_ANSWERS = "it answers again "
"""Begin of the words for a repair of a GPU that was lost (`gpuagent.collector.repairs`)."""


def since_repaired(case: EndedAlert) -> str:
    """Return what has brought a GPU back, also one that was lost before the agent was started; "" if not known."""
    repair = "" if case.gpu is None else case.gpu.repair
    return since_initialized(case) or (repair.removeprefix(_ANSWERS) if repair.startswith(_ANSWERS) else "")


def since_initialized(case: EndedAlert) -> str:
    """Return what happened to the driver since: a reboot or a new initialization of NVML; "" if neither is known."""
    before, node = case.before, case.snapshot.node
    if before is None:
        return ""
    if before.boot_id != node.boot_id:
        return "after a reboot"
    return "after NVML was initialized again" if node.nvml_initializations > before.nvml_initializations else ""
