"""GPUs whose processes are not known, and since when: nothing may be said of who is on them."""

from __future__ import annotations

from typing import NamedTuple

from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, Snapshot
from gpuagent.core.units import format_duration


class UnreadableGpu(NamedTuple):
    """A GPU that was read before, or should be."""

    gpu_index: int
    gpu_uuid: str
    text: str
    """State, reason and time, for people."""


class UnreadableGpus:
    """Remembers when the processes of each GPU were last known; for one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[tuple[int, str], float | None] = {}
        self._snapshot: Snapshot | None = None

    def see(self, snapshot: Snapshot) -> None:
        """Take in the snapshot of a new tick."""
        self._snapshot = snapshot
        for gpu in snapshot.gpus:
            key = (gpu.identity.index, gpu.identity.uuid)
            if _is_readable(gpu):
                self._last[key] = gpu.read_seconds
            else:
                self._last.setdefault(key, None)

    def now(self) -> list[UnreadableGpu]:
        """Return them, by their index."""
        snapshot = self._snapshot
        if snapshot is None:
            return []
        gpus = {(gpu.identity.index, gpu.identity.uuid): gpu for gpu in snapshot.gpus}
        found = []
        for key in sorted(self._last):
            gpu = gpus.get(key)
            if gpu is not None and _is_readable(gpu):
                continue
            last = self._last[key]
            since = "since the agent started" if last is None else f"for {format_duration(self._clock.now() - last)}"
            found.append(UnreadableGpu(*key, f"GPU {key[0]} has not been readable {since}: {_why(snapshot, gpu)}"))
        return found


def _is_readable(gpu: GpuReading) -> bool:
    return gpu.state is GpuState.OK and gpu.processes_known


def _why(snapshot: Snapshot, gpu: GpuReading | None) -> str:
    if snapshot.node.nvml_state is NvmlState.PAUSED:
        return "measuring is paused; `gpuagent resume` ends that"
    if gpu is None:
        return snapshot.node.nvml_reason or "the driver does not list it"
    if gpu.state is GpuState.OK:
        return gpu.act_refusal or "its processes could not be read"
    return gpu.reason or str(gpu.state)
