"""Processes of GPUs that are not measured now, as they were known last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading, Snapshot

READS_PROCESSES = "processes"
"""Name of the collector of a GPU's processes."""


class LastKnown(NamedTuple):
    """What was known of the GPUs whose processes cannot be read now."""

    gpus: tuple[GpuReading, ...]
    reason: str
    """Why they cannot be read; "" where nothing tells."""
    read_seconds: float | None
    """CLOCK_BOOTTIME of the oldest of what is shown; None where nothing was ever known."""
    processes: tuple[ProcessReading, ...]


class LastKnownProcesses:
    """Remember, by the UUID of each GPU, the last snapshot in which its processes were read."""

    def __init__(self) -> None:
        self._snapshots: dict[str, Snapshot] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Take in a snapshot."""
        for gpu in snapshot.gpus:
            if gpu.processes_read:
                self._snapshots[gpu.identity.uuid] = snapshot

    def of(self, snapshot: Snapshot) -> LastKnown | None:
        """Return what was known of the GPUs whose processes are not read in this snapshot; None if all are."""
        unread = tuple(gpu for gpu in snapshot.gpus if not gpu.processes_read and gpu.state not in _NOTHING_TO_KNOW)
        if not unread:
            return None
        found = {gpu.identity.uuid: known for gpu in unread if (known := self._snapshots.get(gpu.identity.uuid))}
        read = [one.read_seconds for uuid, known in found.items() for one in known.gpus if one.identity.uuid == uuid]
        return LastKnown(
            unread, _reason(snapshot, unread), min(read, default=None), tuple(_processes(found)),
        )  # fmt: skip


_NOTHING_TO_KNOW = (GpuState.STARTING, GpuState.ASLEEP)
"""Not read yet, or without a process when it was last read."""


def _processes(found: Mapping[str, Snapshot]) -> Iterator[ProcessReading]:
    for uuid, known in found.items():
        yield from (process for process in known.processes if process.gpu_uuid == uuid)


def _reason(snapshot: Snapshot, unread: Sequence[GpuReading]) -> str:
    if why := snapshot.node.why_unread:
        return why
    for gpu in unread:
        failed = [run.reason for run in gpu.runs if run.collector == READS_PROCESSES and not run.ok and run.reason]
        if why := gpu.reason or next(iter(failed), ""):
            return why
    return ""
