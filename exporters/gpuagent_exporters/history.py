"""Bounded rings of used memory, per GPU and per process: for the sparklines of `status` and the charts of the page.

Every ring has the same slots, `interval_seconds` long and counted on the boot clock, so that a slot has one place in
all of them and a browser can ask for what came after the last slot that it has.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import GpuReading, ProcessReading, Snapshot

INTERVAL_SECONDS = 10.0
LENGTH = 360
"""Slots: an hour. With `MOST_PROCESSES` and 8 GPUs less than 1 MiB."""
SPARKLINE_LENGTH = 60
"""Slots that fit into a terminal: 10 minutes."""
MOST_PROCESSES = 512
SCHEMA = 1

DAY_INTERVAL_SECONDS = 300.0
DAY_LENGTH = 288
"""Slots: a day."""

_NOTHING = math.nan

Document = dict[str, Any]


class _Ring:
    """The peak of each slot. 32-bit floats: half the memory, and to 8 KiB at 64 GiB finer than any allocation."""

    __slots__ = ("_points", "first_slot", "last_slot", "peak")

    def __init__(self, length: int, slot: int) -> None:
        self._points = array("f", [_NOTHING]) * length
        self.first_slot = slot
        self.last_slot = slot
        """The time of the newest reading."""
        self.peak = 0.0

    def note(self, slot: int, value: float) -> None:
        place = slot % len(self._points)
        before = self._points[place]
        if not before >= value:  # also where there is nothing yet: NaN compares false
            self._points[place] = value
            self.peak = max(self.peak, value)
        self.last_slot = slot

    def clear(self, slots: range) -> None:
        for slot in slots:
            self._points[slot % len(self._points)] = _NOTHING

    def read(self, first: int, last: int) -> Iterator[float | None]:
        for slot in range(first, last + 1):
            value = self._points[slot % len(self._points)]
            yield None if math.isnan(value) else value


@dataclass(slots=True)
class _Gpu:
    index: int
    used: _Ring
    busy: _Ring
    held: _Ring
    """What its processes hold together, those that have ended included."""
    total: int | None = None
    """Its memory, as it was last read: a lost GPU tells none."""
    processes: dict[_ProcessKey, _Process] = field(default_factory=dict)


@dataclass(slots=True)
class _Process:
    name: str
    used: _Ring


_ProcessKey = tuple[MemoryKey, ProcessId | None]
"""A pid that is used again is another line."""


class History:
    """The last `length` slots of each GPU and process.

    A point is the highest reading of its slot, because a peak is what runs into the wall. None stands for a slot
    without a reading.
    """

    def __init__(
        self,
        interval_seconds: float = INTERVAL_SECONDS,
        length: int = LENGTH,
        most_processes: int = MOST_PROCESSES,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._length = length
        self._most_processes = most_processes
        self._run = ""
        self._begun_slot = 0
        self._slot = 0
        self._full_slot = -1
        self._time_seconds = 0.0
        self._gpus: dict[str, _Gpu] = {}
        self._noted: Sequence[ProcessReading] = ()
        """In this slot, last."""

    def add(self, snapshot: Snapshot) -> None:
        """Note a tick."""
        slot = int(snapshot.clock_seconds // self.interval_seconds)
        if not self._run:  # when the agent began: a browser that knows another one has to begin again
            self._run = f"{snapshot.time_seconds * 1000:.0f}"
            self._begun_slot = self._slot = slot
        has_begun = slot != self._slot or not self._noted
        self._advance(slot)
        self._time_seconds = snapshot.time_seconds
        for gpu in snapshot.gpus:
            self._add_gpu(gpu)
        for process in snapshot.processes if has_begun else self._changed(snapshot.processes):
            self._add_process(process)
        self._noted = snapshot.processes

    def _changed(self, processes: Sequence[ProcessReading]) -> Sequence[ProcessReading]:
        """Return the processes that are not as they were noted in this slot already.

        The monitor gives the same reading again while nothing about a process changes. To look each one up at every
        tick took 0.57 of 12 ms of CPU time a second with 512 processes; now it is one tick in ten that does.
        """
        if len(processes) != len(self._noted):
            return processes
        return [new for old, new in zip(self._noted, processes, strict=True) if new is not old]

    def points(self) -> dict[str, Sequence[float | None]]:
        """Return used bytes per GPU UUID for the sparklines, oldest first, the last one still growing."""
        oldest = self._slot - min(SPARKLINE_LENGTH, self._length) + 1
        return {
            uuid: tuple(_bytes(gpu.used, max(oldest, gpu.used.first_slot), self._slot))
            for uuid, gpu in self._gpus.items()
        }

    @property
    def known_seconds(self) -> float:
        """Time that the slots reach back."""
        return min(self._slot - self._begun_slot + 1, self._length) * self.interval_seconds if self._run else 0.0

    @property
    def time_seconds(self) -> float:
        """Unix time of the last reading."""
        return self._time_seconds

    def lines(self, seconds: float, most_points: int, top: int, first: Collection[MemoryKey]) -> dict[str, GpuLines]:
        """Return what each GPU and its processes have held, by UUID: the last `seconds`, in at most `most_points`.

        There are lines of the `top` processes that held most, those in `first` before all others.
        """
        oldest = max(
            self._begun_slot, self._slot - self._length + 1, self._slot - int(seconds // self.interval_seconds)
        )
        slots = _Slots(oldest, self._slot, max(1, math.ceil((self._slot - oldest + 1) / most_points)))
        return {uuid: _lines(gpu, slots, top, first) for uuid, gpu in self._gpus.items()}

    def processes(self) -> set[tuple[int, ProcessId | None]]:
        """Return the pid and the identity of each process that has a line."""
        return {(memory.pid, who) for gpu in self._gpus.values() for memory, who in gpu.processes}

    def document(self, since: str = "", top: int = 6) -> Document:
        """Return what the charts draw, JSON-ready: all of it, or from the slot of an earlier answer's `cursor` on.

        The last point of every line is still growing, so it comes again with the next answer. `whole` says that the
        answer stands alone: the cursor was none, or of an earlier agent, or of a time that is gone. Lines are in
        bytes, null where nothing was read, and of each GPU there are those of the `top` processes that held most.

        Raises:
            ValueError: `since` is no cursor.
        """
        run, wanted = _parse_cursor(since) if since else ("", 0)
        oldest = max(self._begun_slot, self._slot - self._length + 1)
        whole = not since or run != self._run or not oldest <= wanted <= self._slot
        first = oldest if whole else wanted
        return {
            "schema": SCHEMA,
            "cursor": f"{self._run}-{self._slot}" if self._run else "",
            "whole": whole,
            "interval_seconds": self.interval_seconds,
            "length": self._length,
            "first_slot": first,
            "last_slot": self._slot,
            "time_seconds": self._time_seconds if self._run else None,
            "gpus": [self._gpu_document(uuid, gpu, first, top) for uuid, gpu in self._gpus.items()],
        }

    def _gpu_document(self, uuid: str, gpu: _Gpu, first: int, top: int) -> Document:
        largest = heapq.nlargest(top, gpu.processes.items(), key=lambda item: item[1].used.peak)
        return {
            "gpu": gpu.index,
            "gpu_uuid": uuid,
            "memory_used_bytes": _bytes(gpu.used, first, self._slot),
            "utilization_ratio": _ratios(gpu.busy, first, self._slot),
            "processes": [
                {
                    "pid": memory.pid,
                    "gpu_instance_id": memory.gpu_instance_id,
                    "process": process.name,
                    "first_slot": process.used.first_slot,
                    "memory_used_bytes": _bytes(process.used, first, self._slot),
                }
                for (memory, _), process in largest
            ],
            "processes_left_out": len(gpu.processes) - len(largest),
        }

    def _advance(self, slot: int) -> None:
        """Empty the slots that have begun, and forget whoever has no point left."""
        begun = range(max(self._slot + 1, slot - self._length + 1), slot + 1)
        if not begun:
            return
        self._slot = slot
        oldest = slot - self._length + 1
        for uuid, gpu in list(self._gpus.items()):
            if gpu.used.last_slot < oldest:
                del self._gpus[uuid]
                continue
            gpu.used.clear(begun)
            gpu.busy.clear(begun)
            gpu.held.clear(begun)
            for key, process in list(gpu.processes.items()):
                if process.used.last_slot < oldest:
                    del gpu.processes[key]
                else:
                    process.used.clear(begun)

    def _add_gpu(self, reading: GpuReading) -> None:
        used = reading.memory.used_bytes if reading.memory else None
        if used is None:
            return
        identity = reading.identity
        gpu = self._gpus.get(identity.uuid)
        if gpu is None:
            gpu = self._gpus[identity.uuid] = _Gpu(identity.index, self._ring(), self._ring(), self._ring())
        gpu.index = identity.index
        if reading.memory is not None and reading.memory.total_bytes:
            gpu.total = reading.memory.total_bytes
        gpu.used.note(self._slot, used)
        busy = reading.utilization.gpu_ratio if reading.utilization else None
        if busy is not None:
            gpu.busy.note(self._slot, busy)
        if (split := reading.reconciliation) is not None:
            gpu.held.note(self._slot, split.processes_bytes + split.dead_processes_bytes)

    def _add_process(self, reading: ProcessReading) -> None:
        gpu = self._gpus.get(reading.gpu_uuid)
        if gpu is None or reading.used_bytes is None:
            return
        who = reading.info or reading.former
        key = (reading.key, who.id if who else None)
        process = gpu.processes.get(key)
        if process is None:
            if not self._has_room():
                return
            process = gpu.processes[key] = _Process(who.name if who else "", self._ring())
        process.used.note(self._slot, reading.used_bytes)

    def _has_room(self) -> bool:
        """Whoever ended longest ago makes room; nobody who still runs. A process without room has no line."""
        if sum(len(gpu.processes) for gpu in self._gpus.values()) < self._most_processes:
            return True
        if self._full_slot == self._slot:  # looked once in this slot: that is enough for a crowd
            return False
        lines = [
            (process.used.last_slot, gpu, key) for gpu in self._gpus.values() for key, process in gpu.processes.items()
        ]
        last_slot, gpu, key = min(lines, key=lambda line: line[0])
        if last_slot >= self._slot - 1:
            self._full_slot = self._slot
            return False
        del gpu.processes[key]
        return True

    def _ring(self) -> _Ring:
        return _Ring(self._length, self._slot)


class _Slots(NamedTuple):
    first: int
    last: int
    step: int
    """Slots of one point."""


class ProcessLine(NamedTuple):
    """A process on a GPU over time, in bytes; None where nothing was read."""

    memory: MemoryKey
    who: ProcessId | None
    name: str
    values: list[float | None]


class GpuLines(NamedTuple):
    """A GPU over time, oldest first, each point the highest reading of its time; None where nothing was read."""

    step_slots: int
    used: list[float | None]
    """In bytes."""
    held: list[float | None]
    """What its processes hold together, in bytes."""
    busy: list[float | None]
    """From 0 to 1."""
    processes: list[ProcessLine]
    left_out: int
    """Number of processes that have no line here."""
    total: int | None = None
    """Memory of the GPU in bytes, as it was last read."""


def _lines(gpu: _Gpu, slots: _Slots, top: int, first: Collection[MemoryKey]) -> GpuLines:
    present = [item for item in gpu.processes.items() if item[1].used.last_slot >= slots.first]
    chosen = heapq.nlargest(top, present, key=lambda item: (item[0][0] in first, item[1].used.peak))
    lines = [ProcessLine(memory, who, one.name, _peaks(one.used, slots)) for (memory, who), one in chosen]
    used, held, busy = (_peaks(ring, slots) for ring in (gpu.used, gpu.held, gpu.busy))
    return GpuLines(slots.step, used, held, busy, lines, len(present) - len(lines), gpu.total)


def _peaks(ring: _Ring, slots: _Slots) -> list[float | None]:
    """Return the highest of each `step` slots. They are the same slots each time: a point stays what it was."""
    values = list(ring.read(slots.first, slots.last))
    if slots.step == 1:
        return values
    begin = -slots.first % slots.step
    parts = [values[:begin]] if begin else []
    parts += [values[place : place + slots.step] for place in range(begin, len(values), slots.step)]
    return [max((value for value in part if value is not None), default=None) for part in parts]


def _bytes(ring: _Ring, first: int, last: int) -> list[float | None]:
    return [None if value is None else int(value) for value in ring.read(first, last)]


def _ratios(ring: _Ring, first: int, last: int) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in ring.read(first, last)]


def _parse_cursor(text: str) -> tuple[str, int]:
    """Parse a cursor into the agent's run and the slot. Raise ValueError in words for whoever sent it."""
    run, dash, slot = text.partition("-")
    plain = len(text) <= 40 and text.isascii()
    if not (plain and dash and run.isdigit() and slot.isdigit()):
        raise ValueError("since must be the cursor of an earlier answer")
    return run, int(slot)
