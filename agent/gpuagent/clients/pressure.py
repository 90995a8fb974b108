"""How much room the GPUs have, told to apps, so that they can turn work away before they run out of memory.

An app's own cache counts as room for that app: its allocator hands it out again without asking the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent.clients.frames import Message
from gpuagent.embedded import ClientReading
from gpuagent.reading import GpuReading, Snapshot

OK, WARNING, CRITICAL = "ok", "warning", "critical"
_THRESHOLDS = ((CRITICAL, 0.03), (WARNING, 0.10))
"""Share of the GPU that is left. 3 % of a 24 GiB card is 740 MiB: a CUDA context and one larger tensor."""
_RELIEF = 1.25
"""A level ends when there is so much more than began it: at the very threshold it would flap."""
_STEP_RATIO = 1 / 64
"""A change of less of the GPU is no news."""


def level_of(client: ClientReading, snapshot: Snapshot, before: str) -> str:
    """The level of the fullest GPU that the app uses; ok for one that uses none yet."""
    worst = OK
    for gpu in snapshot.gpus:
        reading = client.devices.get(gpu.identity.uuid)
        if reading is None or gpu.memory is None or not gpu.memory.total_bytes or gpu.memory.free_bytes is None:
            continue
        cached = max(0, (reading.reserved_bytes or 0) - (reading.allocated_bytes or 0))
        level = _level((gpu.memory.free_bytes + cached) / gpu.memory.total_bytes, before)
        worst = max(worst, level, key=_rank)
    return worst


def _level(left_ratio: float, before: str) -> str:
    for level, threshold in _THRESHOLDS:
        if left_ratio < threshold * (_RELIEF if _rank(before) >= _rank(level) else 1.0):
            return level
    return OK


def _rank(level: str) -> int:
    return (OK, WARNING, CRITICAL).index(level)


class Room:
    """What is free on the node, and whether that is news since it was last told to all."""

    def __init__(self) -> None:
        self._told: Mapping[str, int] = {}

    def news(self, snapshot: Snapshot) -> bool:
        """Whether a GPU has come, gone, or has noticeably more or less room. What is news once is told."""
        free = _free(snapshot)
        totals = {gpu.identity.uuid: (gpu.memory.total_bytes or 0) for gpu in snapshot.gpus if gpu.memory}
        changed = free.keys() != self._told.keys() or any(
            abs(free_bytes - self._told[uuid]) >= _STEP_RATIO * totals[uuid] for uuid, free_bytes in free.items()
        )
        if changed:
            self._told = free
        return changed


def level_message(level: str, snapshot: Snapshot) -> Message:
    """What an app is told: nothing that `nvidia-smi` would not tell it."""
    known = [gpu for gpu in snapshot.gpus if _is_known(gpu)]
    return {
        "t": "level",
        "level": level,
        "free_bytes": _free(snapshot),
        "total_bytes": {gpu.identity.uuid: gpu.memory.total_bytes for gpu in known if gpu.memory},
        "names": {gpu.identity.uuid: gpu.identity.name for gpu in known},
    }


def _is_known(gpu: GpuReading) -> bool:
    return gpu.memory is not None and gpu.memory.free_bytes is not None and bool(gpu.memory.total_bytes)


def _free(snapshot: Snapshot) -> dict[str, int]:
    return {
        gpu.identity.uuid: gpu.memory.free_bytes
        for gpu in snapshot.gpus
        if _is_known(gpu) and gpu.memory and gpu.memory.free_bytes is not None
    }
