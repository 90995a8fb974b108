"""One GPU's processes, nobody's memory, and the GPU as a whole, put to the detector at every reading."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from gpuagent.core.growth import Growth, MemoryKey, Verdict, shifted
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.snapshot import ClientReading, GpuReading, ProcessReading, ProcessState
from gpuagent_alerts.leak.blocks import PAGE_BYTES
from gpuagent_alerts.leak.detector import LEAST_BYTES
from gpuagent_alerts.leak.device import (
    FreeMemory,
    GrowingPart,
    MemoryPool,
    memory_pools,
    sum_up_device,
    unowned_by_instance,
)
from gpuagent_alerts.leak.groups import GroupWatch
from gpuagent_alerts.leak.histories import BLOCK_TICKS, Beginning, Histories, History

FORGET_SECONDS = 600.0
"""A process may give all its memory back and take some again; after this long without, its history is over."""
LEAST_MEASURED_BYTES = LEAST_BYTES + PAGE_BYTES
"""The least that the detector takes for a measurement."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_GROWS = frozenset({Verdict.GROWING, Verdict.LEAKING})

GrowthChanges = dict[MemoryKey, Growth | None]
"""What has changed; None: nothing is said of it any more."""
Clients = Mapping[int, ClientReading]
_Slot = int | tuple[int, int]
"""A process on a GPU: its pid, under MIG with its GPU instance."""


class GpuSensor:
    """Observe one GPU. With `boot_id`, memory without an owner is not taken for that of another boot."""

    def __init__(self, uuid: str, histories: Histories, boot_id: str) -> None:
        self._uuid = uuid
        self._key = MemoryKey(uuid)
        self._instances: set[MemoryKey] = set()
        """MIG instances of which something is said."""
        self._all = histories
        self._boot_id = boot_id
        self._processes: dict[_Slot, History] = {}
        self._unowned: dict[int, History] = {}
        """Memory of no process, by GPU instance id."""
        self._growing: dict[MemoryKey, GrowingPart] = {}
        self._groups = GroupWatch()
        self._groups_growing: list[GrowingPart] = []
        self._free: dict[int, FreeMemory] = {}
        """By GPU instance id."""
        self._changed = False
        self._settled = False
        self._listed: tuple[Sequence[ProcessReading], Mapping[int, MemoryPool]] = (), {}
        self._all_known = False
        """Each process that was listed has a history."""
        self._was_hidden = False
        """Who has left the GPU meanwhile is not known yet."""
        self._stood_still = False
        """Nothing had changed at the last reading, and so it was not noted in each history."""
        self._time_seconds: float | None = None
        """Monotonic time of the last reading that was taken."""

    def is_new(self, reading: GpuReading) -> bool:
        """Return a reading that is shown again, because the GPU was late, is taken once."""
        return not reading.time_seconds or reading.time_seconds != self._time_seconds

    def observe(
        self, reading: GpuReading, processes: Sequence[ProcessReading], clients: Clients,
        now_seconds: float, to_unix_seconds: float, changes: GrowthChanges,
    ) -> None:  # fmt: skip
        """Take in a reading whose processes are known. `to_unix_seconds` leads from CLOCK_BOOTTIME to Unix time."""
        pools = memory_pools(reading)
        time = reading.time_seconds or now_seconds
        pool = pools.get(NO_INSTANCE)
        self._note_free(pools, time)
        if pool is not None:
            self._observe_unowned(unowned_by_instance(reading, processes, pools), pools, time, to_unix_seconds)
        stands_still = self._all_known and not clients and (processes, pools) == self._listed
        if stands_still:
            self._observe_unchanged(processes, time, to_unix_seconds, changes)
        else:
            self._note_seen()
            self._all_known = self._observe_processes(processes, pools, clients, (time, to_unix_seconds), changes)
            self._listed = processes, pools
            for history in self._processes.values():
                if history.seen_seconds == time:
                    continue
                if history.shown:
                    self._hide(history, changes)
                elif not self._was_hidden:
                    continue
                self._all.leave(history)
            self._was_hidden = False
        self._stood_still = stands_still
        self._time_seconds = time
        groups = self._groups.observe(processes, pool, self._growing.keys(), time, to_unix_seconds)
        if groups != self._groups_growing:
            self._groups_growing, self._changed = groups, True
        if self._changed:
            self._changed = False
            unowned = self._quiet_unowned()
            growing = [*self._growing.values(), *self._groups_growing]
            free = None if pool is None else pool.free_bytes
            fall = self._fall(NO_INSTANCE, free, time)
            changes[self._key] = sum_up_device(unowned, growing, free, settled=self._settled, fall=fall)
            self._sum_up_instances(pools, time, changes)

    def shift_wall_clock(self, seconds: float) -> None:
        """Move the begin of all that grows with the wall clock, which was set forward by so many seconds."""
        for history in (*self._processes.values(), *self._unowned.values()):
            if history.growth is not None:
                history.growth = shifted(history.growth, seconds)
        self._growing = {
            key: part._replace(growth=shifted(part.growth, seconds)) for key, part in self._growing.items()
        }

    def choose(self, processes: Iterable[ProcessReading], clients: Clients, now_seconds: float) -> None:
        """Judge each process by the sensitivity that holds for it."""
        for process in processes:
            pid, instance = process.pid, process.gpu_instance_id
            history = self._processes.get(pid if instance == NO_INSTANCE else (pid, instance))
            if history is not None and process.info is not None and process.info.id == history.id:
                self._all.choose(history, process.info, clients.get(pid), now_seconds)

    def hide(self, changes: GrowthChanges) -> None:
        """Nothing is known in this tick: nothing is said, and every history waits."""
        self._note_seen()
        self._all_known, self._was_hidden = False, True
        for history in self._processes.values():
            if history.shown:
                self._hide(history, changes)
        for history in self._unowned.values():
            if history.shown:
                history.hide()
                self._growing.pop(history.key, None)
        changes[self._key] = None
        changes.update(dict.fromkeys(self._instances))
        self._instances.clear()
        self._changed = True

    def _note_free(self, pools: Mapping[int, MemoryPool], time: float) -> None:
        self._free = {instance: self._free.get(instance) or FreeMemory() for instance in pools}
        for instance, pool in pools.items():
            if pool.free_bytes is not None:
                self._free[instance].add(time, pool.free_bytes)

    def _fall(self, instance: int, free_bytes: int | None, time: float) -> float | None:
        """Return bytes a second by which the free memory falls; None where that is not known."""
        known = self._free.get(instance)
        return None if known is None or free_bytes is None else known.fastest_fall(time, free_bytes)

    def _sum_up_instances(self, pools: Mapping[int, MemoryPool], time: float, changes: GrowthChanges) -> None:
        """Sum up growth by MIG instance: it grows into that instance's own memory."""
        instances = {MemoryKey(self._uuid, 0, instance): pool for instance, pool in pools.items() if instance >= 0}
        changes.update(dict.fromkeys(self._instances - instances.keys()))
        self._instances = set(instances)
        for key, pool in instances.items():
            parts = [
                part._replace(shares_free=True)
                for whose, part in self._growing.items()
                if whose.gpu_instance_id == key.gpu_instance_id
            ]
            fall = self._fall(key.gpu_instance_id, pool.free_bytes, time)
            known = self._unowned.get(key.gpu_instance_id)
            unowned = None if known is None else known.growth
            changes[key] = sum_up_device(unowned, parts, pool.free_bytes, settled=self._settled, fall=fall)

    def sweep(self, now_seconds: float) -> None:
        """Forget processes that have long been gone; only after a tick in which they would have been seen."""
        self._note_seen()
        ended = [
            slot
            for slot, history in self._processes.items()
            if history.seen_seconds != self._time_seconds
            and (not history.id.boot_id or now_seconds - history.seen_seconds > FORGET_SECONDS)
        ]
        for slot in ended:
            self._all.end(self._processes.pop(slot))

    def _observe_unchanged(
        self, processes: Iterable[ProcessReading], time: float, to_unix: float, changes: GrowthChanges
    ) -> None:
        """Take the short way for unchanged processes and free memory: the usual case on most GPUs."""
        for history in [each for each in self._processes.values() if each.again_seconds <= time and each.shown]:
            said = history.update(time, history.used_bytes, history.free_bytes)
            if said is not history.detected:
                growth = changes[history.key] = history.publish(said, to_unix)
                self._note_growth(history.key, growth, next(each for each in processes if each.key == history.key))

    def _note_seen(self) -> None:
        """Make up for what was not noted while all stood still: when each was seen last."""
        if self._stood_still and self._time_seconds is not None:
            self._stood_still = False
            for history in self._processes.values():
                if history.shown:
                    history.seen_seconds = self._time_seconds

    def _observe_processes(
        self, processes: Iterable[ProcessReading], pools: Mapping[int, MemoryPool], clients: Clients,
        times: tuple[float, float], changes: GrowthChanges,
    ) -> bool:  # fmt: skip
        """Observe all processes as soon as one has changed. Return whether each has a history."""
        time, to_unix = times
        known, all_known = self._processes, True
        for process in processes:
            pid, instance, info = process.pid, process.gpu_instance_id, process.info
            pool = pools.get(instance)
            if pool is None or process.state is ProcessState.DEAD:
                continue
            history = known.get(pid if instance == NO_INSTANCE else (pid, instance))
            if history is None or history.over or (info is not None and info.id != history.id):
                history = self._begin(process, pool, history)
                if history is None:
                    all_known = False
                    continue
                if self._all.overrides:
                    self._all.choose(history, info, clients.get(pid), time)
            client = clients.get(pid) if clients else None
            used, free = process.used_bytes, pool.free_bytes
            if client is not None:
                said = history.update(time, used, free, _client_figures(process, client, pool))
            elif time < history.again_seconds and used == history.used_bytes and free == history.free_bytes:
                history.seen_seconds = time
                continue
            else:
                said = history.update(time, used, free)
            if said is not history.detected or not history.shown:
                growth = changes[history.key] = history.publish(said, to_unix)
                history.process = process
                if history.service is None and info is not None:  # a container's name comes later than its process
                    self._all.belongs_to(history, info)
                self._note_growth(history.key, growth, process)
        return all_known

    def _quiet_unowned(self) -> Growth | None:
        """Return what is said of memory of no process where nothing grows: of an instance's that it has levelled off.

        None before the first reading.
        """
        said = [history.growth for _, history in sorted(self._unowned.items()) if history.growth is not None]
        over = (growth for growth in said if growth.verdict is Verdict.LEVELLED_OFF)
        return next(over, said[0] if said else None)

    def _observe_unowned(
        self, used_by: Mapping[int, int | None], pools: Mapping[int, MemoryPool], time: float, to_unix: float
    ) -> None:
        for instance in self._unowned.keys() - used_by.keys():
            history = self._unowned[instance]
            history.hide()
            self._forget_growth(history.key)
            if instance not in pools:
                self._all.end(self._unowned.pop(instance))
        for instance, used in used_by.items():
            if (pool := pools.get(instance)) is not None:
                self._observe_unowned_of(instance, used, pool, time, to_unix)

    def _observe_unowned_of(
        self, instance: int, used: int | None, pool: MemoryPool, time: float, to_unix: float
    ) -> None:
        known = self._unowned.get(instance)
        if known is None or known.over:
            beginning = Beginning(pool.total_bytes, None, crc32(self._uuid.encode()) % BLOCK_TICKS)
            key = MemoryKey(self._uuid, 0, instance)
            known = self._all.begin(ProcessId(self._boot_id, 0, 0), key, beginning)
            if known is None:
                return
            self._unowned[instance] = known
        if used is not None and known.growth is not None and known.growth.verdict is not Verdict.LEARNING:
            # Of a process, next to nothing is a process that comes or goes. Nobody's memory is measured also at 0.
            used = max(used, LEAST_MEASURED_BYTES)
        said = known.update(time, used, pool.free_bytes)
        if said is not known.detected or not known.shown:
            self._note_growth(known.key, known.publish(said, to_unix), None)
            self._changed = True

    def _begin(self, process: ProcessReading, pool: MemoryPool, before: History | None) -> History | None:
        """Begin the history of a process that is new here; `before` had its pid."""
        pid, instance, info = process.pid, process.gpu_instance_id, process.info
        slot: _Slot = pid if instance == NO_INSTANCE else (pid, instance)
        if before is not None:
            self._all.end(self._processes.pop(slot))
            self._forget_growth(before.key)
        # Without a pid namespace that both share, only the number is known: it is never kept over a restart.
        who = ProcessId("", pid, 0) if info is None else info.id
        started = None if info is None else info.id.start_ticks / _TICKS_PER_SECOND
        beginning = Beginning(pool.total_bytes, started, pid % BLOCK_TICKS)
        history = self._all.begin(who, process.key, beginning)
        if history is not None:
            self._processes[slot] = history
            history.process = process
            self._all.belongs_to(history, info)
        return history

    def _hide(self, history: History, changes: GrowthChanges) -> None:
        history.hide()
        changes[history.key] = None
        self._forget_growth(history.key)

    def _note_growth(self, key: MemoryKey, growth: Growth, process: ProcessReading | None) -> None:
        """Whether it is part of what grows on this GPU."""
        if not self._settled and growth.verdict is not Verdict.LEARNING:
            self._settled = self._changed = True
        if growth.verdict in _GROWS or growth.fast:
            self._growing[key] = GrowingPart(
                _describe_owner(process), growth, shares_free=key.gpu_instance_id == NO_INSTANCE
            )
            self._changed = True
        else:
            self._forget_growth(key)

    def _forget_growth(self, key: MemoryKey) -> None:
        if self._growing.pop(key, None) is not None:
            self._changed = True


def _describe_owner(process: ProcessReading | None) -> str:
    if process is None:
        return "memory of no process"
    return f"{process.info.name} (pid {process.pid})" if process.info else f"pid {process.pid}"


def _client_figures(
    process: ProcessReading, client: ClientReading, pool: MemoryPool
) -> tuple[int | None, int | None, int | None]:
    """Allocated, reserved and declared bytes; nothing of a client that is not this process: a pid may be used again."""
    if process.info is None or client.id != process.info.id:
        return None, None, None
    uuid = pool.device_uuids.get(process.compute_instance_id)
    reading = client.devices.get(uuid) if uuid is not None else None
    if reading is None:
        return None, None, client.declared_typical_bytes
    return reading.allocated_bytes, reading.reserved_bytes, client.declared_typical_bytes
