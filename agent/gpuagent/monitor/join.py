"""Putting the GPUs' answers and /proc together: whose process each entry is, and where the memory went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuagent.core.hardware import Memory
from gpuagent.core.snapshot import ProcessInfo, ProcessReading, ProcessState, Reconciliation
from gpuagent.monitor.holders import LastHolders
from gpuagent.monitor.listings import KNOWN_HOLDERS, Holders
from gpuagent.nvml.collect import Collected

Infos = Mapping[int, ProcessInfo | None]
_Place = tuple[int, str]
"""Index and UUID of a GPU."""


class Joined(NamedTuple):
    """One GPU's processes, where its memory is, and what that was made of."""

    readings: list[ProcessReading]
    """Not to be changed."""
    reconciliation: Reconciliation | None
    collected: Collected
    infos: Infos
    holders: Holders


class Joiner:
    """Joins tick after tick. What has not changed since the last tick is the very same object again.

    On most nodes most processes hold what they held a second ago: all who come after this see that at a glance, and the
    history of the page costs a fifth.
    """

    def __init__(self, *, host_pid_namespace: bool, last_holders: LastHolders | None = None) -> None:
        """`last_holders` tells who dead processes were; None leaves them without a name."""
        self._host_pid_namespace = host_pid_namespace
        self._last_holders = last_holders
        self._last: dict[_Place, Joined] = {}

    def join(self, collected: Collected, infos: Infos, holders: Holders = KNOWN_HOLDERS) -> Joined:
        """Join one GPU's answer with what /proc knows.

        `holders` says which living processes only bear a number of the list, or may do no more: see
        `gpuagent.monitor.listings`. It and `infos` are the same objects for as long as nothing in them has changed.
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
            if _used_bytes(collected) == _used_bytes(last.collected):
                return last
        made = Joined(readings, reconcile(collected.reading.memory, readings), collected, infos, holders)
        self._last[place] = made
        return made


def _is_same(last: Joined, collected: Collected, infos: Infos, holders: Holders) -> bool:
    """Whether the same processes come of it."""
    before = last.collected
    return (
        before.processes is collected.processes
        and last.infos is infos
        and last.holders is holders
        and before.utilizations == collected.utilizations
    )


def _used_bytes(collected: Collected) -> int | None:
    memory = collected.reading.memory
    return None if memory is None else memory.used_bytes


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
        elif info is None:
            state = ProcessState.DEAD
        else:
            state = ProcessState.LIVE
        readings.append(
            ProcessReading(
                identity.index,
                identity.uuid,
                process.pid,
                state,
                info,
                process.used_bytes,
                process.kinds,
                None if utilizations is None else utilizations.get(process.pid),
                process.gpu_instance_id,
                process.compute_instance_id,
                holder_unproven=process.pid in holders.unproven,
            )
        )
    return readings


def reconcile(memory: Memory | None, processes: Iterable[ProcessReading]) -> Reconciliation | None:
    """Where the used memory of a GPU is; None where it is not known.

    Unattributed memory is what no process is listed for: contexts of the driver, managed memory, leftovers. Memory
    and processes are read microseconds apart, so their difference may come out below zero: it is not shown then.
    """
    if memory is None or memory.used_bytes is None:
        return None
    live = dead = 0
    for process in processes:
        if process.state is ProcessState.DEAD:
            dead += process.used_bytes or 0
        else:
            live += process.used_bytes or 0
    return Reconciliation(live, dead, max(0, memory.used_bytes - live - dead))
