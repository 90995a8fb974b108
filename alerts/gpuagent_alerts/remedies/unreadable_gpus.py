"""GPUs that cannot be read now, who was on them at the last good reading, and how a person may still end one of those.

A GPU that was lost, or whose driver hangs, has no list of processes any more, and these may be the very ones to end.
`--force` is a person's word for what the driver does not say; every other safeguard stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, ProcessReading, Snapshot
from gpuagent.core.units import format_duration
from gpuagent_alerts.remedies.observation import Condition, Observation
from gpuagent_alerts.remedies.observer import SnapshotObserver
from gpuagent_alerts.remedies.target import Target


class UnreadableGpu(NamedTuple):
    """A GPU that was read before, or should be."""

    gpu_index: int
    gpu_uuid: str
    text: str
    """State, reason and time, for people."""
    processes: tuple[ProcessReading, ...] = ()
    """Who was on it at the last good reading and may be named by a person; nobody where measuring is paused or the
    figures of the GPU are withheld, as that has a way out of its own."""
    act_refusal: str = ""
    """Why nobody on it could be acted on at that reading; "" if nothing forbade it."""
    trusted: bool = True
    """False where the driver was known to shuffle its process list."""


@dataclass(frozen=True, slots=True)
class _LastReading:
    gpu: GpuReading
    processes: tuple[ProcessReading, ...]
    """The processes of all GPUs."""


class UnreadableGpus:
    """Remembers when the processes of each GPU were last known, and who they were; for one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[tuple[int, str], _LastReading | None] = {}
        self._snapshot: Snapshot | None = None
        self.updated_seconds = 0.0
        """When the newest snapshot came (CLOCK_BOOTTIME)."""

    def update_snapshot(self, snapshot: Snapshot) -> None:
        """Take in the snapshot of a tick."""
        self._snapshot = snapshot
        self.updated_seconds = self._clock.now()
        for gpu in snapshot.gpus:
            if gpu.identity.uuid:  # it has told its name meanwhile: the first tick may end before it does
                self._last.pop((gpu.identity.index, ""), None)
            key = (gpu.identity.index, gpu.identity.uuid)
            if gpu.processes_read:
                self._last[key] = _LastReading(gpu, snapshot.processes)
            else:
                self._last.setdefault(key, None)

    @property
    def in_host_pid_namespace(self) -> bool:
        """Whether the agent is in the host's pid namespace, as the newest snapshot has it."""
        return self._snapshot is not None and self._snapshot.node.host_pid_namespace

    def now(self) -> list[UnreadableGpu]:
        """Return them, by their index."""
        snapshot = self._snapshot
        if snapshot is None:
            return []
        gpus = {(gpu.identity.index, gpu.identity.uuid): gpu for gpu in snapshot.gpus}
        found = []
        for key in sorted(self._last):
            gpu = gpus.get(key)
            if gpu is not None and gpu.processes_read:
                continue
            last = self._last[key]
            why = _why(snapshot, gpu)
            if last is None:
                text = f"GPU {key[0]} has not been readable since the agent started: {why}"
                found.append(UnreadableGpu(*key, text))
                continue
            since = format_duration(self._clock.now() - last.gpu.read_seconds)
            processes = _on(key, last.processes) if _may_be_named(snapshot, gpu) else ()
            text = f"GPU {key[0]} has not been readable for {since}: {why}"
            found.append(UnreadableGpu(*key, text, processes, last.gpu.act_refusal, last.gpu.processes_trusted))
        return found

    def find(self, target: Target) -> UnreadableGpu | None:
        """Return the unreadable GPU on whose last list this process is; None where there is none."""
        for gpu in self.now():
            if gpu.gpu_uuid == target.key.gpu_uuid and any(
                each.info is not None and each.info.id == target.id for each in gpu.processes
            ):
                return gpu
        return None


def _on(key: tuple[int, str], processes: tuple[ProcessReading, ...]) -> tuple[ProcessReading, ...]:
    return tuple(each for each in processes if (each.gpu_index, each.gpu_uuid) == key)


def _may_be_named(snapshot: Snapshot, gpu: GpuReading | None) -> bool:
    """Return whether it is the GPU or its driver that does not answer."""
    if snapshot.node.nvml_state is NvmlState.PAUSED:
        return False
    return gpu is None or gpu.state is not GpuState.OK or not gpu.act_refusal


def _why(snapshot: Snapshot, gpu: GpuReading | None) -> str:
    if snapshot.node.nvml_state is NvmlState.PAUSED:
        return "measuring is paused; `gpuagent resume` ends that"
    if gpu is None:
        return snapshot.node.why_unread or "the driver does not list it"
    if gpu.state is GpuState.OK:
        return gpu.act_refusal or "its processes could not be read"
    return gpu.reason or str(gpu.state)


class LastListObserver:
    """Observer of a process that a person has forced on a GPU which cannot be read.

    Until the GPU can be read again, the process is on it as far as anybody knows, and nothing is known of its memory.
    From then on each reading counts as ever.
    """

    def __init__(self, observer: SnapshotObserver, gpus: UnreadableGpus) -> None:
        self._observer = observer
        self._gpus = gpus

    def observe(self, target: Target, alert: str, scope: str = "process") -> Observation:
        """See `gpuagent_alerts.remedies.observation.Observer`."""
        gpu = self._gpus.find(target)
        if gpu is None:
            return self._observer.observe(target, alert, scope)
        return Observation(
            self._gpus.updated_seconds,
            Condition.HOLDS,
            target=target,
            target_listed=True,
            trusted=gpu.trusted,
            gpu_index_certain=False,
            host_pid_namespace=self._gpus.in_host_pid_namespace,
            everybody=self._observer.everybody(),
            present=frozenset({target.id}),
            act_refusal=gpu.act_refusal,
            unlisted_gpus=self._observer.unlisted_gpus(),
            unreadable=gpu.text,
        )

    async def next_observation(
        self,
        target: Target,
        alert: str,
        after: float,
        deadline_seconds: float,
        *,
        evaluated: bool = True,
        scope: str = "process",
    ) -> Observation | None:
        """See `gpuagent_alerts.remedies.observation.Observer`."""
        while self._gpus.find(target) is not None:
            if (seen := self.observe(target, alert, scope)).clock_seconds > after:
                return seen
            if not await self._observer.next_tick(deadline_seconds):
                return None
        return await self._observer.next_observation(
            target, alert, after, deadline_seconds, evaluated=evaluated, scope=scope
        )
