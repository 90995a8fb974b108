"""GPUs that are full by design: it is no alarm where a server that preallocates holds one, or is about to.

Name and command line are what a process calls itself, and what one user writes must not silence an alarm for another.
So such a name counts where the process and others of its owner have the GPU to themselves. Where several owners share
one, only the systemd unit counts, which root wrote (`processes.preallocates` names it).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuagent.core.growth import MemoryKey
from gpuagent.core.hardware import HIGH_RATIO, Memory
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.process import FrameworkRecognizer, framework_of
from gpuagent.core.snapshot import ClientReading, GpuReading, ProcessReading, Snapshot

LEAST_SHARE = 0.8
"""Share of the used memory that such servers hold: with a fifth elsewhere, that is a reason too.

Beside a server there are its own CUDA contexts and the driver, which take a few percent.
"""
OTHERS_SHARE = 0.02
"""Share of the used memory that others may hold together: a display, a context of monitoring. 1.6 GiB of 80 GiB."""
_STARTS_SECONDS = 1800.0
"""A server takes its cache at once when it has loaded its weights, which takes a large model as long as this."""


class MemoryOwner(NamedTuple):
    """A user, and what keeps work of one user apart, "" where there is none of it.

    Most containers, services and jobs of root run work of somebody: each may be another's.
    """

    uid: int
    pod_uid: str
    container_id: str
    slurm_job: str
    unit: str


class _Holding(NamedTuple):
    """A process's memory on one GPU."""

    used_bytes: int | None
    owner: MemoryOwner | None
    """Owner of the process; None where /proc tells nothing of it."""
    takes: bool
    """Whether it takes most of the GPU when it starts, by design."""
    confirmed: bool
    """A unit that the configuration names says so, not the process."""


def preallocated(
    gpus: Iterable[GpuReading],
    processes: Iterable[ProcessReading],
    clients: Mapping[int, ClientReading],
    recognize: FrameworkRecognizer,
) -> Iterator[tuple[GpuReading, bool]]:
    """Yield each GPU whose processes are known, and whether it is full by design."""
    held = _holdings(processes, clients, recognize)
    for gpu in gpus:
        if gpu.processes_known and gpu.memory is not None and gpu.memory.used_bytes is not None:
            yield gpu, _by_design(held.get(MemoryKey(gpu.identity.uuid), ()), gpu.memory)


def full_by_design(snapshot: Snapshot, recognize: FrameworkRecognizer) -> dict[MemoryKey, bool]:
    """Return whether GPUs and MIG instances are high by design, of those whose memory and processes are known.

    Of an instance, its own processes alone count.
    """
    held = _holdings(snapshot.processes, snapshot.clients, recognize)
    places = [
        (MemoryKey(gpu.identity.uuid, 0, number), memory)
        for gpu in snapshot.gpus
        if gpu.processes_known
        for number, memory in (
            (NO_INSTANCE, gpu.memory),
            *((one.gpu_instance_id, one.memory) for one in gpu.mig),
        )
    ]
    return {
        key: _by_design(held.get(key, ()), memory)
        for key, memory in places
        if memory is not None and memory.used_bytes is not None
    }


def _by_design(holdings: Collection[_Holding], memory: Memory) -> bool:
    """Return whether the servers of one owner who is alone there, or confirmed ones, hold nearly all that is used."""
    used_bytes = memory.used_bytes or 0
    if _is_filled_by_others(holdings, memory):
        return False
    least_bytes = max(LEAST_SHARE * used_bytes, 1)
    if _sum(each for each in holdings if each.takes and each.confirmed) >= least_bytes:
        return True
    return any(
        _sum(each for each in holdings if each.takes and (each.confirmed or each.owner == owner)) >= least_bytes
        and _is_alone(owner, holdings, used_bytes)
        for owner in {each.owner for each in holdings if each.takes}
    )


def _is_filled_by_others(holdings: Iterable[_Holding], memory: Memory) -> bool:
    """Return whether memory that is high would not be so without what processes hold that do not preallocate."""
    taken = memory.taken_ratio
    if taken is None or taken <= HIGH_RATIO or not memory.total_bytes:
        return False
    others_bytes = _sum(each for each in holdings if not each.takes)
    if others_bytes <= OTHERS_SHARE * (memory.used_bytes or 0):
        return False
    return taken - others_bytes / memory.total_bytes <= HIGH_RATIO


def _is_alone(owner: MemoryOwner | None, holdings: Iterable[_Holding], used_bytes: int) -> bool:
    """Return whether nobody else holds memory worth mentioning; False where it is unknown how much."""
    others = [each for each in holdings if each.owner != owner and not (each.takes and each.confirmed)]
    return (
        owner is not None
        and all(each.used_bytes is not None for each in others)
        and _sum(others) <= OTHERS_SHARE * used_bytes
    )


def _holdings(
    processes: Iterable[ProcessReading], clients: Mapping[int, ClientReading], recognize: FrameworkRecognizer
) -> dict[MemoryKey, list[_Holding]]:
    """Return what each process holds, by the GPU, and once more by the MIG instance that it is in."""
    found: dict[MemoryKey, list[_Holding]] = {}
    for process in processes:
        holding = _holding(process, clients, recognize)
        for number in {NO_INSTANCE, process.gpu_instance_id}:
            found.setdefault(MemoryKey(process.gpu_uuid, 0, number), []).append(holding)
    return found


def _holding(process: ProcessReading, clients: Mapping[int, ClientReading], recognize: FrameworkRecognizer) -> _Holding:
    if process.info is None:
        return _Holding(process.used_bytes, None, takes=False, confirmed=False)
    framework = framework_of(process, clients, recognize)
    takes = framework is not None and framework.preallocates
    confirmed = framework is not None and framework.confirmed
    info = process.info
    # A user's own programs are one owner; most containers' programs are root's, whoever started them.
    apart = (info.container_id, info.slurm_job, info.unit) if info.uid == 0 else ("", "", "")
    owner = MemoryOwner(info.uid, info.pod_uid, *apart)
    return _Holding(process.used_bytes, owner, takes, confirmed)


def _sum(holdings: Iterable[_Holding]) -> int:
    return sum(each.used_bytes or 0 for each in holdings)


def _used_bytes(gpu: GpuReading) -> int | None:
    return None if gpu.memory is None else gpu.memory.used_bytes


def fast_growth_expected(snapshot: Snapshot, recognize: FrameworkRecognizer) -> Iterator[tuple[GpuReading, bool]]:
    """Yield each GPU that would be full within minutes, and whether that is a server that starts and harms nobody.

    It is where all that grows so fast are such servers, young, and of one owner who has the GPU to themselves, or
    confirmed by their units.
    """

    def starts(process: ProcessReading) -> bool:
        if process.info is None or not _holding(process, snapshot.clients, recognize).takes:
            return False
        return snapshot.time_seconds - process.info.start_time_seconds < _STARTS_SECONDS

    def grows_fast(key: MemoryKey) -> bool:
        growth = snapshot.growth.get(key)
        return growth is not None and growth.fast

    held = _holdings(snapshot.processes, snapshot.clients, recognize)
    for gpu in snapshot.gpus:
        uuid = gpu.identity.uuid
        instances = (MemoryKey(uuid, 0, each.gpu_instance_id) for each in gpu.mig)
        if any(map(grows_fast, (MemoryKey(uuid), *instances))):
            growing = [each for each in snapshot.processes if each.gpu_uuid == uuid and grows_fast(each.key)]
            starting = [_holding(each, snapshot.clients, recognize) for each in growing]
            named = {each.owner for each in starting if not each.confirmed}
            used_bytes = _used_bytes(gpu) or 0
            harmless = all(_is_alone(owner, held[MemoryKey(uuid)], used_bytes) for owner in named)
            yield gpu, bool(growing) and all(map(starts, growing)) and harmless
