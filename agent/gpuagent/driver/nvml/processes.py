"""Read which processes hold memory on a GPU: the compute, graphics and MPS lists, merged.

The lists are read with a buffer of our own instead of pynvml's wrapper, which asks the driver twice, gives up when
the list grows in between, and trusts the entries. Some 535 drivers put 32-byte entries where 24 are documented
(https://github.com/XuehaiPan/nvitop/issues/88), and 550.127.08 was seen with 16 (https://github.com/XuehaiPan/nvitop/pull/226):
read as 24 they shuffle pids and memory. So the buffer has room for the longer ones, how long they are is measured by
what the driver writes, and a list that cannot be true is not believed. Processes of a list with other entries than
documented are shown, and never acted on.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import partial
from itertools import chain
from struct import Struct
from typing import NamedTuple

from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import GpuProcess
from gpuagent.core.wording import WITHHELD
from gpuagent.driver.nvml.device import NO_INSTANCE_U32, NOT_AVAILABLE_U64, NvmlDevice
from gpuagent.driver.nvml.library import IMPOSSIBLE, INSUFFICIENT_SIZE, NO_PERMISSION, SUCCESS, Handle, NvmlFailure

_ENTRY = Struct("<IxxxxQII")  # nvmlProcessInfo_v2_t: pid, usedGpuMemory, gpuInstanceId, computeInstanceId
_LAYOUTS = {
    16: Struct("<IxxxxQ"),  # nvmlProcessInfo_v1_t: no instances
    _ENTRY.size: _ENTRY,
    32: Struct("<IxxxxQIIxxxxxxxx"),  # with usedGpuCcProtectedMemory
}
_UNWRITTEN = 0xAA
"""Byte in the buffer where the driver has written nothing. No entry ends with one: its last part is an instance, a size
below 2**48, or padding."""
_ROOM_PER_ENTRY = 32
_FIRST_CAPACITY = 128
_MAX_CAPACITY = 65536
_SHUFFLED_DRIVERS = re.compile(r"535\.(4[3-9]|[5-8]\d|9[0-8])(\.|$)")

_LISTS = (
    ("C", "nvmlDeviceGetComputeRunningProcesses"),
    ("G", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("M", "nvmlDeviceGetMPSComputeRunningProcesses"),
)

Entry = tuple[int, int, int, int]


class _Answer(NamedTuple):
    """An answer of the driver, byte by byte, and what it says."""

    raw: bytes
    entries: list[Entry]
    plausible: bool


@dataclass(frozen=True, slots=True)
class ProcessList:
    """What `collect` found. `trusted` is False where the driver is known to shuffle the list."""

    processes: tuple[GpuProcess, ...]
    known: bool
    trusted: bool
    implausible: bool = False
    """The driver gave a list that cannot be true, even if another call gave one that can."""
    kinds_known: bool = True
    """False where the MPS list may not be read: a process that is not in it may be a client of MPS."""


class _Buffer:
    """Kept between two calls, so that a tick allocates next to nothing.

    `quiet` lists were empty when last asked; `settled` are the numbers for which they have been asked often enough. The
    rest is what was told last, and what it came to: mostly nothing has
    changed, and then the very same processes are given again. That halves the cost of a tick, and spares everybody
    after this from comparing them.
    """

    def __init__(self) -> None:
        self.capacity = _FIRST_CAPACITY
        self.memory = (ctypes.c_char * (self.capacity * _ROOM_PER_ENTRY))()
        self.quiet: set[str] = set()
        self.settled: frozenset[int] = frozenset()
        self.computing: frozenset[int] = frozenset()
        """Numbers of the last compute list."""
        self.suspect = False
        self.layouts: dict[str, Struct] = {}
        """Form of the entries by function, measured at the first list that is not empty."""
        self.answers: dict[str, _Answer] = {}
        self.lists: list[tuple[str, list[Entry]]] = []
        self.merged: tuple[GpuProcess, ...] = ()

    def grow(self, at_least: int) -> None:
        self.capacity = min(max(at_least + at_least // 2, self.capacity * 2), _MAX_CAPACITY)
        self.memory = (ctypes.c_char * (self.capacity * _ROOM_PER_ENTRY))()


def collect(device: NvmlDevice, *, slow: bool = True, mig_handles: tuple[Handle, ...] = ()) -> ProcessList:
    """Read every process on the GPU, once per (pid, GPU instance).

    A graphics or MPS list that was empty is asked again only at the slow rate, and at the first two readings whose
    compute list holds a new number: a client of MPS must be known for one before anybody acts on it. Each of these
    calls walks all clients of the node under the driver's lock (4.5 ms on a laptop:
    https://github.com/flightlessmango/MangoHud/issues/2104).
    """
    buffer = device.state(_Buffer)
    shuffled = bool(_SHUFFLED_DRIVERS.match(device.driver_version))
    buffer.suspect = False
    lists: list[tuple[str, list[Entry]]] = []
    computing: frozenset[int] = frozenset()
    known = kinds_known = asked = True
    every = slow
    for kind, function in _LISTS:
        if kind != "C" and not every and function in buffer.quiet:
            asked = False
            continue
        entries, complete = _entries(device, buffer, function, mig_handles)
        if kind == "C":
            computing = frozenset(entry[0] for entry in entries)
            every = every or not computing <= buffer.settled
        if not complete and (kind == "C" or device.supports(function)):
            known = False
        if kind == "M" and not complete and not device.supports(function) and not device.lacks(function):
            kinds_known = False
        if not complete and not entries:
            continue
        (buffer.quiet.discard if entries else buffer.quiet.add)(function)
        if entries:
            lists.append((kind, entries))
    buffer.settled = buffer.computing & computing if asked and known else buffer.settled & computing
    buffer.computing = computing
    if lists != buffer.lists:
        buffer.merged = _merged(lists, buffer.merged)
        buffer.lists = lists
    odd = any(layout is not _ENTRY for layout in buffer.layouts.values())
    return ProcessList(buffer.merged, known, not (shuffled or odd or buffer.suspect), buffer.suspect, kinds_known)


def _merged(lists: list[tuple[str, list[Entry]]], before: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    """Return every process once; one that is as it was `before` is the same object."""
    merged: dict[tuple[int, int], GpuProcess] = {}
    for kind, entries in lists:
        for entry in entries:
            _merge(merged, entry, kind)
    found = tuple(merged.values())
    if len(found) != len(before):
        return found
    return tuple([old if old == new else new for old, new in zip(before, found, strict=True)])


def _merge(merged: dict[tuple[int, int], GpuProcess], entry: Entry, kind: str) -> None:
    """Merge an entry: a process may be in several lists, its memory is one, its kinds add up (all-smi#123)."""
    pid, used, gpu_instance, compute_instance = entry
    used_bytes = None if used == NOT_AVAILABLE_U64 else used
    gpu_instance = NO_INSTANCE if gpu_instance == NO_INSTANCE_U32 else gpu_instance
    compute_instance = NO_INSTANCE if compute_instance == NO_INSTANCE_U32 else compute_instance
    key = (pid, gpu_instance)
    seen = merged.get(key)
    if seen is None:
        merged[key] = GpuProcess(pid, used_bytes, kind, gpu_instance, compute_instance)
        return
    if seen.used_bytes is not None:
        used_bytes = max(seen.used_bytes, used_bytes or 0)
    kinds = seen.kinds if kind in seen.kinds else seen.kinds + kind
    merged[key] = seen._replace(used_bytes=used_bytes, kinds=kinds)


def _entries(
    device: NvmlDevice, buffer: _Buffer, function: str, mig_handles: tuple[Handle, ...]
) -> tuple[list[Entry], bool]:
    """Read one list, and whether that is all of it: not if the GPU has none, or it failed.

    Without permission for the whole GPU its MIG instances are asked one by one, and some may refuse.
    """
    entries = device.attempt(function, partial(_read_any_version, device, buffer, device.handle, function))
    if entries is not None:
        return entries, True
    if device.supports(function):
        return [], False
    parts = [_instance_entries(device, buffer, handle, function) for handle in mig_handles]
    known = [part for part in parts if part is not None]
    return list(chain.from_iterable(known)), bool(parts) and len(known) == len(parts)


def _instance_entries(device: NvmlDevice, buffer: _Buffer, handle: Handle, function: str) -> list[Entry] | None:
    """Read one list of one MIG instance; None if it is refused or failed."""
    try:
        return _read_any_version(device, buffer, handle, function)
    except NvmlFailure as failure:
        if failure.lost or failure.ends_session:
            raise
        if not failure.absent:
            device.failures.append(failure)
        return None


def _read_any_version(device: NvmlDevice, buffer: _Buffer, handle: Handle, function: str) -> list[Entry]:
    """Read version 3, or 2 where the driver lacks 3 or where it cannot be true (2 is 24 bytes by definition)."""
    problem: NvmlFailure | None = None
    for version in ("_v3", "_v2"):
        try:
            answer = _read(device, buffer, handle, function + version)
        except NvmlFailure as failure:
            if not failure.absent or failure.code == NO_PERMISSION:
                raise
            problem = problem or failure
            continue
        if answer.plausible:
            return answer.entries
        buffer.suspect = True
        problem = NvmlFailure(function, IMPOSSIBLE, f"the driver's process list {WITHHELD}")
    raise problem or NvmlFailure(function, -1, "no answer")


def _read(device: NvmlDevice, buffer: _Buffer, handle: Handle, function: str) -> _Answer:
    """Call with the kept buffer; again with a larger one for as long as the list outgrows it."""
    count = ctypes.c_uint()
    while True:
        count.value = buffer.capacity
        if function not in buffer.layouts:
            ctypes.memset(buffer.memory, _UNWRITTEN, ctypes.sizeof(buffer.memory))
        code = device.library.raw(function, handle, ctypes.byref(count), buffer.memory)
        if code == SUCCESS:
            number = min(count.value, buffer.capacity)
            if number and function not in buffer.layouts:
                buffer.layouts[function] = _measure(buffer.memory, number)
            layout = buffer.layouts.get(function, _ENTRY)
            raw = ctypes.string_at(buffer.memory, number * layout.size)
            answer = buffer.answers.get(function)
            if answer is None or answer.raw != raw:
                entries = [_entry(values) for values in layout.iter_unpack(raw)]
                answer = buffer.answers[function] = _Answer(raw, entries, _plausible(device, entries))
            return answer
        if code != INSUFFICIENT_SIZE or buffer.capacity == _MAX_CAPACITY:
            raise NvmlFailure(function, code)
        buffer.grow(count.value)


def _measure(memory: ctypes.Array[ctypes.c_char], number: int) -> Struct:
    """Return the form of so many entries by the bytes that were written; the documented one where none fits."""
    written = len(memory.raw.rstrip(bytes([_UNWRITTEN])))
    return _LAYOUTS.get(written // number if written % number == 0 else 0, _ENTRY)


def _entry(values: tuple[int, ...]) -> Entry:
    """Return pid, memory and instances; without instances in the entry it is the whole GPU."""
    pid, used, gpu_instance, compute_instance = (*values, NO_INSTANCE_U32, NO_INSTANCE_U32)[:4]
    return pid, used, gpu_instance, compute_instance


def _plausible(device: NvmlDevice, entries: list[Entry]) -> bool:
    """Return whether every pid is possible and no memory larger than any GPU has: shuffled entries are not."""
    max_pid = device.library.max_pid
    return all(0 < pid <= max_pid and (used == NOT_AVAILABLE_U64 or used < 2**48) for pid, used, _, _ in entries)
