"""Who was asked to end, is still there, and has given its memory back: by the driver's lists alone.

The first process of a pid namespace stays for as long as somebody outside does not reap another one in there, and any
process may hang in the kernel for ever. Once the driver counts nothing for it, others on its GPUs may be chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import GpuReading, Snapshot
from gpuagent_alerts.remedies.audit_rows import OutstandingProcess

READINGS = 3
"""Readings one after the other, of each of its GPUs, that have to show it."""
_RESIDUE = 0.2
"""Share of what it held that may be nobody's: contexts and the driver's own."""
_RESIDUE_BYTES = 2**30
"""As much may be nobody's in any case."""


class ReleasedMemory:
    """Counts the readings that show it; for one event loop, but for `has`."""

    def __init__(self) -> None:
        self._seen: Mapping[tuple[ProcessId, str], tuple[int, float]] = {}
        """Number of such readings, and the time of the last one, by process and GPU."""
        self._released: frozenset[ProcessId] = frozenset()

    def update_snapshot(self, snapshot: Snapshot, outstanding: Iterable[OutstandingProcess]) -> None:
        """Take in the snapshot of a tick, and whose end is waited for."""
        gpus = {gpu.identity.uuid: gpu for gpu in snapshot.gpus}
        listed = {(process.gpu_uuid, process.pid) for process in snapshot.processes}
        seen: dict[tuple[ProcessId, str], tuple[int, float]] = {}
        released = set()
        for one in outstanding:
            counts = []
            for uuid in one.gpu_uuids:
                gpu = gpus.get(uuid)
                if gpu is None or (uuid, one.identity.pid) in listed or not _is_back(gpu, one.used_bytes):
                    counts.append(0)
                    continue
                number, last = self._seen.get((one.identity, uuid), (0, 0.0))
                number += gpu.read_seconds > last
                seen[one.identity, uuid] = number, gpu.read_seconds
                counts.append(number)
            if counts and min(counts) >= READINGS:
                released.add(one.identity)
        self._seen, self._released = seen, frozenset(released)

    def has(self, identity: ProcessId) -> bool:
        """Return whether all that a process held is seen to be back. May be asked in any thread."""
        return identity in self._released


def _is_back(gpu: GpuReading, held_bytes: int) -> bool:
    """Return whether the driver lists all processes of a GPU, and hardly any memory that may be a dead one's."""
    if not gpu.processes_read or not gpu.processes_trusted or gpu.act_refusal:
        return False
    split = gpu.reconciliation
    return split is not None and (
        split.dead_processes_bytes + split.unattributed_bytes <= max(_RESIDUE * held_bytes, _RESIDUE_BYTES)
    )
