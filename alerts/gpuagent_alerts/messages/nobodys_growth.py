"""Memory of no process that grows, also beside an incident's own: a forecast of the GPU is of both together."""

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


def nobodys_state(snapshot: Snapshot | None, uuids: Iterable[str]) -> tuple[GrowthState | None, float]:
    """Return whether memory of no process on these GPUs still rises, and its pace in bytes an hour.

    Of memory that has stopped it is the pace that it had; 0 where none is known. The state is None where that is not.
    """
    uuids = tuple(uuids)
    if (pace := nobodys_bytes_per_hour(snapshot, uuids)) > 0:
        return GrowthState.RISING, pace
    found = [] if snapshot is None else [snapshot.growth.get(MemoryKey(uuid)) for uuid in uuids]
    known = [one for one in found if one is not None and one.verdict in _GROWS]
    if not known:
        return None, 0.0
    if any(one.state is GrowthState.RISING for one in known):  # a process beside it rises, and has the whole pace
        return GrowthState.STOPPED, 0.0
    state = next((one.state for one in known if one.state is GrowthState.FULL), known[0].state)
    return state, sum(3600 * one.slope.value for one in known if one.slope is not None)
