"""Since when each process has done nothing on any GPU: by observations of 0 % and of the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuagent.identity import ProcessId
from gpuagent.nvml.collect import Collected
from gpuagent.nvml.process_utilization import IDLE
from gpuagent.reading import GpuReading, GpuState, ProcessReading

_Gpu = tuple[int, str]
"""Index and UUID of a GPU."""
_Place = tuple[_Gpu, int, int]
"""A GPU, and the GPU and compute instance on it."""


class _Rest(NamedTuple):
    """An idle time of one process that goes on."""

    since: float
    places: frozenset[tuple[_Place, int | None]]
    """Where every reading of this time has listed it, and with how much memory: what loads a model is at 0 %."""


class Idleness:
    """Follows every process over the whole node, reading after reading.

    A process is idle since the first of the readings that have all observed it at 0 % wherever it was listed. Any of
    these begins its time anew: work or no observation on any GPU, memory that it takes or gives back, a GPU that it
    enters or leaves, and for everybody a GPU of the node that could not be read, or whose readings are too far apart:
    anybody may have worked there.
    """

    def __init__(self) -> None:
        self._resting: dict[ProcessId, _Rest] = {}
        self._read_at: dict[_Gpu, float] = {}
        """Clock of the last reading of each GPU."""
        self._told: dict[tuple[_Place, int], tuple[ProcessReading, ProcessReading]] = {}
        """What was made of each reading of an idle process the last time: mostly it is the same again."""

    def see(
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
        everywhere = all(gpu.state is GpuState.OK and gpu.processes_known for gpu in gpus)
        seamless = read_at.keys() == self._read_at.keys() and all(
            at - self._read_at[gpu] <= longest_gap_seconds for gpu, at in read_at.items()
        )
        before = self._resting if everywhere and seamless else {}
        self._read_at = read_at
        worked_at = {
            (answer.reading.identity.index, answer.reading.identity.uuid): answer.worked_at for answer in answers
        }
        processes = list(processes)
        self._resting = _at_rest(processes, before, read_at, worked_at) if everywhere else {}
        before_told, self._told = self._told, {}
        return [self._tell(process, before_told) for process in processes]

    def _tell(
        self, process: ProcessReading, before: Mapping[tuple[_Place, int], tuple[ProcessReading, ProcessReading]]
    ) -> ProcessReading:
        rest = self._resting.get(process.info.id) if process.info is not None else None
        if rest is None:
            return process
        key = _place(process), process.pid
        last = before.get(key)
        if last is not None and last[0] is process and last[1].idle_since_seconds == rest.since:
            told = last[1]
        else:
            told = process._replace(idle_since_seconds=rest.since)
        self._told[key] = process, told
        return told


def _at_rest(
    processes: Iterable[ProcessReading],
    before: Mapping[ProcessId, _Rest],
    read_at: Mapping[_Gpu, float],
    worked_at: Mapping[_Gpu, Mapping[int, float]],
) -> dict[ProcessId, _Rest]:
    """Return who is observed at 0 % wherever it is listed, and since when."""
    listed: dict[ProcessId, list[ProcessReading]] = {}
    for process in processes:
        if process.info is not None and process.info.id.start_ticks > 0:
            listed.setdefault(process.info.id, []).append(process)
    found = {}
    for process_id, readings in listed.items():
        worked = max(worked_at.get(_gpu(each), {}).get(each.pid, 0.0) for each in readings)
        if any(each.utilization != IDLE or worked >= read_at[_gpu(each)] for each in readings):
            continue
        places = frozenset((_place(each), each.used_bytes) for each in readings)
        rest = before.get(process_id)
        if rest is None or rest.places != places or worked >= rest.since:
            rest = _Rest(max(read_at[_gpu(each)] for each in readings), places)
        found[process_id] = rest
    return found


def _gpu(process: ProcessReading) -> _Gpu:
    return process.gpu_index, process.gpu_uuid


def _place(process: ProcessReading) -> _Place:
    return _gpu(process), process.gpu_instance_id, process.compute_instance_id
