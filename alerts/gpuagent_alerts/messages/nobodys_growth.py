"""Memory of no process that grows beside an incident's own: a forecast of the GPU is of both together."""

from __future__ import annotations

from collections.abc import Iterable

from gpuagent.core.growth import GrowthState, MemoryKey, Verdict
from gpuagent.core.snapshot import Snapshot

_GROWS = frozenset({Verdict.GROWING, Verdict.LEAKING})


def nobodys_bytes_per_hour(snapshot: Snapshot | None, uuids: Iterable[str]) -> float:
    """Return the pace of these GPUs beyond that of all processes that grow there; 0 where none is known."""
    if snapshot is None:
        return 0.0
    paces = 0.0
    for uuid in uuids:
        whole = snapshot.growth.get(MemoryKey(uuid))
        if whole is None or whole.slope is None or whole.state is not GrowthState.RISING:
            continue
        growing = [
            growth.slope.value
            for key, growth in snapshot.growth.items()
            if key.gpu_uuid == uuid
            and key.pid
            and growth.verdict in _GROWS
            and growth.state is GrowthState.RISING
            and growth.slope is not None
        ]
        paces += max(0.0, whole.slope.value - sum(growing))
    return 3600 * paces
