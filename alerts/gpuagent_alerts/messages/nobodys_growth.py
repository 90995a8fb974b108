"""Memory of no process that grows, also beside an incident's own: a forecast of the GPU is of both together."""

from __future__ import annotations

from collections.abc import Iterable

from gpuagent.core.growth import GrowthState, MemoryKey, Verdict
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import Snapshot

_GROWS = frozenset({Verdict.GROWING, Verdict.LEAKING})


def nobodys_bytes_per_hour(snapshot: Snapshot | None, places: Iterable[MemoryKey]) -> float:
    """Return the pace of these GPUs and MIG instances beyond that of all processes that grow there; 0 if unknown."""
    if snapshot is None:
        return 0.0
    paces = 0.0
    for place in places:
        whole = snapshot.growth.get(place)
        if whole is None or whole.group or whole.slope is None or whole.state is not GrowthState.RISING:
            continue
        growing = [
            growth.slope.value
            for key, growth in snapshot.growth.items()
            if _is_process_in(key, place)
            and growth.verdict in _GROWS
            and growth.state is GrowthState.RISING
            and growth.slope is not None
        ]
        paces += max(0.0, whole.slope.value - sum(growing))
    return 3600 * paces


def nobodys_state(snapshot: Snapshot | None, places: Iterable[MemoryKey]) -> tuple[GrowthState | None, float]:
    """Return whether memory of no process on these GPUs still rises, and its pace in bytes an hour.

    Of memory that has stopped it is the pace that it had; 0 where none is known. The state is None where that is not.
    """
    places = tuple(places)
    if (pace := nobodys_bytes_per_hour(snapshot, places)) > 0:
        return GrowthState.RISING, pace
    found = [] if snapshot is None else [snapshot.growth.get(place) for place in places]
    known = [one for one in found if one is not None and one.verdict in _GROWS]
    if not known:
        return None, 0.0
    if any(one.state is GrowthState.RISING for one in known):  # a process beside it rises, and has the whole pace
        return GrowthState.STOPPED, 0.0
    state = next((one.state for one in known if one.state is GrowthState.FULL), known[0].state)
    return state, sum(3600 * one.slope.value for one in known if one.slope is not None)


def nobodys_instances(snapshot: Snapshot | None, uuid: str) -> list[MemoryKey]:
    """Return the MIG instances of a GPU in which memory grows and no process does."""
    growth = {} if snapshot is None else snapshot.growth
    return [
        place
        for place, whole in sorted(growth.items())
        if place.gpu_uuid == uuid and not place.pid and place.gpu_instance_id != NO_INSTANCE
        and whole.verdict in _GROWS
        and not any(_is_process_in(key, place) and one.verdict in _GROWS for key, one in growth.items())
    ]  # fmt: skip


def _is_process_in(key: MemoryKey, place: MemoryKey) -> bool:
    is_inside = place.gpu_instance_id in {NO_INSTANCE, key.gpu_instance_id}
    return bool(key.pid) and key.gpu_uuid == place.gpu_uuid and is_inside
