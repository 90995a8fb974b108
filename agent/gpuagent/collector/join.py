"""Join the GPUs' answers with /proc: whose process each entry is, where the memory went, and who has been idle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuagent.collector.holders import LastHolders
from gpuagent.collector.listings import KNOWN_HOLDERS, Holders
from gpuagent.core.hardware import Memory
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import GpuReading, ProcessInfo, ProcessReading, ProcessState, Reconciliation
from gpuagent.driver.backend import IDLE, Collected

Infos = Mapping[int, ProcessInfo | None]
_GpuKey = tuple[int, str]
"""Index and UUID of a GPU."""


class Joined(NamedTuple):
    """One GPU's processes, where its memory is, and what that was made of."""

    readings: list[ProcessReading]
    """Processes of the GPU; not to be changed."""
    reconciliation: Reconciliation | None
    collected: Collected
    infos: Infos
    holders: Holders


class Joiner:
    """Join tick after tick. What has not changed since the last tick is the very same object again.

    On most nodes most processes hold what they held a second ago: all who come after this see that at a glance, and the
    history of the page costs a fifth.
    """

    def __init__(self, *, host_pid_namespace: bool, last_holders: LastHolders | None = None) -> None:
        """Take names of dead processes from `last_holders`; None leaves them without a name."""
        self._host_pid_namespace = host_pid_namespace
        self._last_holders = last_holders
        self._last: dict[_GpuKey, Joined] = {}

    def join(self, collected: Collected, infos: Infos, holders: Holders = KNOWN_HOLDERS) -> Joined:
        """Join one GPU's answer with what /proc knows.

        `holders` says which living processes only bear a number of the list, or may do no more: see
        `gpuagent.collector.listings`. It and `infos` are the same objects for as long as nothing in them has changed.
        """
        reading = collected.reading
        place = reading.identity.index, reading.identity.uuid
        last = self._last.get(place)
        if last is None or not _is_same(last, collected, infos, holders):
            readings = join_processes(collected, infos, host_pid_namespace=self._host_pid_namespace, holders=holders)
            if self._last_holders is not None:
                readings = self._last_holders.name(place[1], readings, complete=reading.processes_known)
            if last is not None and len(readings) == len(last.readings):
                pairs = zip(last.readings, readings, strict=True)
                readings = [old if old == new else new for old, new in pairs]
        else:
            readings = last.readings
            if collected.used_bytes == last.collected.used_bytes:
                return last
        gpu = collected.reading
        reconciliation = reconcile(gpu.memory, readings, shared=gpu.identity.shares_memory)
        made = Joined(readings, reconciliation, collected, infos, holders)
        self._last[place] = made
        return made


def _is_same(last: Joined, collected: Collected, infos: Infos, holders: Holders) -> bool:
    """Return whether the same processes come of it."""
    before = last.collected
    return (
        before.processes is collected.processes
        and last.infos is infos
        and last.holders is holders
        and before.utilizations == collected.utilizations
    )


def join_processes(
    collected: Collected, infos: Infos, *, host_pid_namespace: bool, holders: Holders = KNOWN_HOLDERS
) -> list[ProcessReading]:
    """Return the processes of one GPU.

    A stranger to the memory is not shown in the place of its holder, which has ended. In a pid namespace of our own a
    pid of the driver may be anybody's here: such processes stay unresolved even where the number exists
    (https://github.com/NVIDIA/nvidia-docker/issues/1483).
    """
    identity = collected.reading.identity
    utilizations = collected.utilizations
    readings = []
    for process in collected.processes:
        info = infos.get(process.pid) if host_pid_namespace and process.pid not in holders.strangers else None
        if not host_pid_namespace:
            state = ProcessState.UNRESOLVED
        elif info is None or info.is_zombie:
            state = ProcessState.DEAD
        else:
            state = ProcessState.LIVE
        readings.append(
            ProcessReading(
                identity.index,
                identity.uuid,
                process.pid,
                state,
                None if state is ProcessState.DEAD else info,
                process.used_bytes,
                process.kinds,
                None if utilizations is None else utilizations.get(process.pid),
                process.gpu_instance_id,
                process.compute_instance_id,
                holder_unproven=process.pid in holders.unproven,
                former=info if state is ProcessState.DEAD else None,
            )
        )
    return readings


def reconcile(
    memory: Memory | None, processes: Iterable[ProcessReading], *, shared: bool = False
) -> Reconciliation | None:
    """Return where the used memory of a GPU is; None where it is not known.

    Unattributed memory is what no process is listed for: contexts of the driver, managed memory, leftovers. Memory
    and processes are read microseconds apart, so their difference may come out below zero: it is not shown then.
    Where the kernel gives the memory out too, the rest is what is used beside the GPU's processes.
    """
    if memory is None or memory.used_bytes is None:
        return None
    live = dead = 0
    for process in processes:
        if process.state is ProcessState.DEAD:
            dead += process.used_bytes or 0
        else:
            live += process.used_bytes or 0
    rest = max(0, memory.used_bytes - live - dead)
    return Reconciliation(live, dead, 0, rest) if shared else Reconciliation(live, dead, rest)


_Place = tuple[_GpuKey, int, int]
"""A GPU, and the GPU and compute instance on it."""


class _IdlePeriod(NamedTuple):
    """An idle time of one process that goes on."""

    since: float
    places: frozenset[tuple[_Place, int | None]]
    """Places where every reading of this period listed it, and with how much memory: what loads a model is at 0 %."""


class Idleness:
    """Follow every process over the whole node, reading after reading, and since when it has been idle.

    A process is idle since the first of the readings that have all observed it at 0 % wherever it was listed. Any of
    these begins its time anew: work or no observation on any GPU, work of a GPU's JPEG or optical flow engine, as the
    driver does not tell whose it is, memory that it takes or gives back, a GPU that it enters or leaves, and for
    everybody a GPU of the node that could not be read, or whose readings are too far apart: anybody may have worked
    there.
    """

    def __init__(self) -> None:
        self._resting: dict[ProcessId, _IdlePeriod] = {}
        self._read_at: dict[_GpuKey, float] = {}
        """Clock of the last reading of each GPU."""
        self._last_results: dict[tuple[_Place, int], tuple[ProcessReading, ProcessReading]] = {}
        """Last result for each reading of an idle process: mostly it is the same again."""

    def observe(
        self,
        gpus: Sequence[GpuReading],
        answers: Iterable[Collected],
        processes: Iterable[ProcessReading],
        longest_gap_seconds: float,
    ) -> list[ProcessReading]:
        """Take note of one tick; return the processes with `idle_since_seconds`.

        A process is the same one only with the same start time: one whose start time is unknown is never idle.
        """
        read_at = {(gpu.identity.index, gpu.identity.uuid): gpu.time_seconds for gpu in gpus}
        everywhere = all(gpu.processes_read for gpu in gpus)
        seamless = read_at.keys() == self._read_at.keys() and all(
            at - self._read_at[gpu] <= longest_gap_seconds for gpu, at in read_at.items()
        )
        before = self._resting if everywhere and seamless else {}
        self._read_at = read_at
        worked_at = {
            (answer.reading.identity.index, answer.reading.identity.uuid): answer.worked_at for answer in answers
        }
        unnamed = {(gpu.identity.index, gpu.identity.uuid) for gpu in gpus if _works_for_somebody(gpu)}
        processes = list(processes)
        self._resting = _at_rest(processes, before, read_at, worked_at, unnamed) if everywhere else {}
        before_told, self._last_results = self._last_results, {}
        return [self._with_idle_time(process, before_told) for process in processes]

    def _with_idle_time(
        self, process: ProcessReading, before: Mapping[tuple[_Place, int], tuple[ProcessReading, ProcessReading]]
    ) -> ProcessReading:
        rest = self._resting.get(process.info.id) if process.info is not None else None
        if rest is None:
            return process
        key = _place(process), process.pid
        last = before.get(key)
        if last is not None and last[0] is process and last[1].idle_since_seconds == rest.since:
            updated = last[1]
        else:
            updated = process._replace(idle_since_seconds=rest.since)
        self._last_results[key] = process, updated
        return updated


def _at_rest(
    processes: Iterable[ProcessReading],
    before: Mapping[ProcessId, _IdlePeriod],
    read_at: Mapping[_GpuKey, float],
    worked_at: Mapping[_GpuKey, Mapping[int, float]],
    unnamed: Collection[_GpuKey],
) -> dict[ProcessId, _IdlePeriod]:
    """Return who is observed at 0 % wherever it is listed, and since when; nobody on a GPU of `unnamed`."""
    listed: dict[ProcessId, list[ProcessReading]] = {}
    for process in processes:
        if process.info is not None and process.info.id.start_ticks > 0:
            listed.setdefault(process.info.id, []).append(process)
    found = {}
    for process_id, readings in listed.items():
        worked = max(worked_at.get(_gpu(each), {}).get(each.pid, 0.0) for each in readings)
        if any(each.utilization != IDLE or worked >= read_at[_gpu(each)] for each in readings):
            continue
        if unnamed and any(_gpu(each) in unnamed for each in readings):
            continue
        places = frozenset((_place(each), each.used_bytes) for each in readings)
        rest = before.get(process_id)
        if rest is None or rest.places != places or worked >= rest.since:
            rest = _IdlePeriod(max(read_at[_gpu(each)] for each in readings), places)
        found[process_id] = rest
    return found


def _works_for_somebody(gpu: GpuReading) -> bool:
    """Return whether the JPEG or the optical flow engine works: the driver does not tell for which process."""
    busy = gpu.utilization
    return busy is not None and bool(busy.jpeg_ratio or busy.ofa_ratio)


def _gpu(process: ProcessReading) -> _GpuKey:
    return process.gpu_index, process.gpu_uuid


def _place(process: ProcessReading) -> _Place:
    return _gpu(process), process.gpu_instance_id, process.compute_instance_id
