"""Since when the driver has listed each number on each GPU: what tells a holder of memory from a stranger.

The driver lists numbers, and a number outlives its process: memory of a process that has ended may stay listed for
hours, while the kernel gives the number to somebody else. Only a process that was already there when the driver first
listed its number can be the one that the memory is counted for. One that started later is a stranger to it, for as long
as the listing goes on. A listing ends after a minute of complete lists without the number, while its memory has come
back. A number that was first listed after a time in which nobody looked proves nothing for a process of that time: it
is unproven until it shows signs of life. The listings are kept over restarts of the agent, within one boot.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuagent.monitor.listings_file import (
    BEFORE_ALL,
    RETRY_SECONDS,
    LatestWriter,
    Stored,
    StoredListing,
    StoredTable,
    load,
    to_document,
)
from gpuagent.nvml.collect import Collected
from gpuagent.procfs.pid_space import PidSpace
from gpuagent.reading import GpuIdentity, GpuProcess, ProcessInfo

BREAK_SECONDS = 60.0
"""Time of complete lists without a number, and with its memory given back, before its listing is over."""
GAP_SECONDS = 5.0
"""Two lists less far apart than this have no gap between them, however fast lists are read otherwise."""
SAVE_SECONDS = 30.0
"""The file is written at least this often: the time of the last list in it is when a gap over a restart begins."""
GROWTH_BYTES = 16 * 1024**2
"""Memory of a dead process does not grow: this much more is the living one's."""
SAMPLE_SECONDS = 15.0
"""How long a process must have been seen before a utilization sample counts as its own: the driver's samples may be
10 s old when they are believed, and are shown for 2.5 s (`gpuagent.nvml.process_utilization`)."""
MOST_LISTINGS = 4096
"""Numbers that are remembered per table; beyond, numbers that are not listed now are forgotten."""
_LONGEST_STEP_SECONDS = 5.0
"""The most that one list without a number counts for: nobody looked between two lists, however far apart they are."""
_GAP_STEPS = 2.5
"""A gap is longer than this many usual steps."""
_USUAL_STEPS = 3
"""The smallest of this many last steps is the usual one."""
_LONGEST_USUAL = 12
"""Times the shortest gap: steps longer than this are never usual."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
TICK_SECONDS = 1 / _TICKS_PER_SECOND
"""Start times are whole ticks, rounded down (proc_pid_stat(5), field 22)."""


class Holders(NamedTuple):
    """Numbers of one GPU's list whose living processes are not known to hold the memory that is listed for them."""

    strangers: frozenset[int] = frozenset()
    """Numbers that were listed before their processes were there: the holders have ended."""
    unproven: frozenset[int] = frozenset()
    """Numbers that may have been listed before their processes were there: nobody looked."""


KNOWN_HOLDERS = Holders()
"""Every living process holds what is listed for it."""


class _Listing:
    """A number on one GPU's list."""

    __slots__ = ("absent_seconds", "proven_ticks", "since_seconds", "sure_seconds", "used_bytes")

    def __init__(self, stored: StoredListing) -> None:
        self.since_seconds, self.sure_seconds, self.used_bytes, self.proven_ticks = stored
        self.absent_seconds = 0.0

    def stored(self) -> StoredListing:
        return StoredListing(self.since_seconds, self.sure_seconds, self.used_bytes, self.proven_ticks)


class _Table:
    """The listings of one UUID or one PCI address."""

    def __init__(self, stored: StoredTable | None = None) -> None:
        self.listings = {} if stored is None else {pid: _Listing(each) for pid, each in stored.listings.items()}
        self.read_seconds = None if stored is None else stored.read_seconds
        self.forgot = stored is not None and stored.forgot
        self.inherited = stored is not None
        """The last complete list was read by an agent before this one."""
        self._steps: deque[float] = deque(maxlen=_USUAL_STEPS)

    def stored(self) -> StoredTable:
        return StoredTable(self.read_seconds, self.forgot, {pid: one.stored() for pid, one in self.listings.items()})

    def copy(self) -> _Table:
        made = _Table(self.stored())
        made.inherited, made._steps = self.inherited, self._steps.copy()
        return made

    def read(self, read_seconds: float) -> None:
        """Note a complete list."""
        if self.read_seconds is not None:
            if read_seconds <= self.read_seconds:
                return
            if not self.inherited:
                self._steps.append(read_seconds - self.read_seconds)
        self.read_seconds, self.inherited = read_seconds, False

    def sure_at(
        self, read_seconds: float, gap_seconds: float, *, ran_before: bool, may_have_wrapped: Callable[[], bool]
    ) -> float:
        """Return when a process must have started by, so that it holds a number first listed at `read_seconds`.

        After a gap a number proves nothing only if the kernel may have given it twice in that time.
        """
        last = self.read_seconds
        if self.forgot or (last is None and ran_before):
            return BEFORE_ALL
        if last is None:
            return read_seconds
        usual = min(*self._steps, _LONGEST_USUAL * gap_seconds) if len(self._steps) == _USUAL_STEPS else 0.0
        is_gap = self.inherited or read_seconds - last > max(_GAP_STEPS * usual, gap_seconds)
        if is_gap and may_have_wrapped():
            return min(last, read_seconds)
        return read_seconds

    def forget_absent(self, pids: frozenset[int]) -> None:
        """Keep the table small. What is forgotten may come back: from then on no new number proves anything."""
        if len(self.listings) > MOST_LISTINGS and (absent := self.listings.keys() - pids):
            self.forgot = True
            for pid in absent:
                del self.listings[pid]


class _Watched(NamedTuple):
    """A process that has to show signs of life."""

    start_ticks: int
    first_seconds: float
    lowest_bytes: int | None


class _Gpu:
    """A GPU by its UUID and its PCI address, and what was made of its last list."""

    def __init__(self, tables: tuple[_Table, ...]) -> None:
        self.tables = tables
        self.read_seconds: float | None = None
        self.absent = False
        """A number of a table was not on the last list."""
        self.pids: frozenset[int] | None = None
        self.processes: tuple[GpuProcess, ...] = ()
        self.infos: Mapping[int, ProcessInfo | None] | None = None
        self.holders = KNOWN_HOLDERS
        self.watched: dict[int, _Watched] = {}

    def is_unchanged(self, pids: frozenset[int], infos: Mapping[int, ProcessInfo | None]) -> bool:
        """Return whether the same comes of a list of the same numbers as last time."""
        if self.absent or self.holders != KNOWN_HOLDERS or infos is not self.infos:
            return False
        return pids is self.pids or pids == self.pids

    def remember_bytes(self) -> None:
        """Keep what each number held when it was last listed."""
        for pid, used in _bytes_by_pid(self.processes, together=True).items():
            for table in self.tables:
                if used is not None and (listing := table.listings.get(pid)) is not None:
                    listing.used_bytes = used


class Listings:
    """For one thread. All times are CLOCK_BOOTTIME in seconds."""

    def __init__(
        self,
        path: Path | None,
        boot_id: str,
        *,
        ran_before: bool = False,
        now_seconds: float = math.inf,
        margin_seconds: float = TICK_SECONDS,
        gap_seconds: float = GAP_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        pid_space: PidSpace | None = None,
    ) -> None:
        """Load what the last agent of this boot wrote to `path`; None keeps the listings in memory only.

        `ran_before` says that an agent has run in this boot: a file that is missing then was lost. A process counts as
        present at a listing if it started at least `margin_seconds` before it. Without a `pid_space` any number may
        have been given twice while nobody looked.
        """
        self._boot_id = boot_id
        self._margin_seconds = margin_seconds
        self._gap_seconds = gap_seconds
        self._gpus: dict[tuple[str, ...], _Gpu] = {}
        self._writer = None if path is None else LatestWriter(path, retry_seconds)
        self._written_seconds: float | None = None
        stored = Stored() if path is None else load(path, boot_id, now_seconds)
        self._tables = {key: _Table(table) for key, table in stored.tables.items()}
        self._ran_before = ran_before or bool(stored.tables)
        self._pid_space = pid_space
        self._forks = stored.forks if stored.tables or pid_space is None else pid_space.forks()
        """The kernel's counter of forks at the last save."""

    def classify(self, collected: Collected, infos: Mapping[int, ProcessInfo | None]) -> Holders:
        """Take in the list of one GPU, and return which living processes are not known to hold their memory.

        A list that is not complete says nothing of the numbers that it lacks. The same object as before for as long as
        nothing has changed.
        """
        gpu = self._gpu(collected.reading.identity)
        pids, at = collected.pids, collected.listed_seconds
        complete = collected.reading.processes_known
        if gpu.is_unchanged(pids, infos):
            gpu.pids, gpu.processes = pids, collected.processes
            if complete:
                gpu.read_seconds = at
                for table in gpu.tables:
                    table.read(at)
                self._save_if_due(at)
            return gpu.holders
        gpu.remember_bytes()
        newer = complete and (gpu.read_seconds is None or at > gpu.read_seconds)
        changed = False
        for table in gpu.tables:
            changed |= self._take_in(table, collected, newer=newer)
        gpu.read_seconds = at if newer else gpu.read_seconds
        gpu.pids, gpu.processes, gpu.infos = pids, collected.processes, infos
        gpu.absent = any(table.listings.keys() - pids for table in gpu.tables)
        holders = self._judge(gpu, pids, infos)
        if self._see_life(gpu, holders, collected, infos):
            changed, holders = True, self._judge(gpu, pids, infos)
        if holders != gpu.holders:
            gpu.holders = holders
        if changed:
            self._save(at)
        elif newer:
            self._save_if_due(at)
        return gpu.holders

    def _gpu(self, identity: GpuIdentity) -> _Gpu:
        names = [f"uuid:{identity.uuid}"] if identity.uuid else []
        names += [f"pci:{identity.pci_bus_id}"] if identity.pci_bus_id else []
        key = tuple(names or [f"index:{identity.index}"])
        if key not in self._gpus:
            known = next((self._tables[name] for name in key if name in self._tables), None)
            for name in key:
                if name not in self._tables:  # a new name for a GPU that is known by its other one
                    self._tables[name] = _Table() if known is None else known.copy()
            self._gpus[key] = _Gpu(tuple(self._tables[name] for name in key))
        return self._gpus[key]

    def _take_in(self, table: _Table, collected: Collected, *, newer: bool) -> bool:
        """Return whether listings have begun or ended; `newer` is a complete list that was not taken in before."""
        ended = newer and _end_listings(table, collected)
        begun = self._begin_listings(table, collected.pids, collected.listed_seconds)
        if newer:
            table.read(collected.listed_seconds)
            table.forget_absent(collected.pids)
        return ended or begun

    def _begin_listings(self, table: _Table, pids: frozenset[int], read_seconds: float) -> bool:
        for pid in pids & table.listings.keys():
            table.listings[pid].absent_seconds = 0.0
        new = pids - table.listings.keys()
        if new:
            sure = table.sure_at(
                read_seconds, self._gap_seconds,
                ran_before=self._ran_before, may_have_wrapped=self._may_have_wrapped,
            )  # fmt: skip
            for pid in new:
                table.listings[pid] = _Listing(StoredListing(read_seconds, sure, None, None))
        return bool(new)

    def _judge(self, gpu: _Gpu, pids: frozenset[int], infos: Mapping[int, ProcessInfo | None]) -> Holders:
        strangers: set[int] = set()
        unproven: set[int] = set()
        for pid in pids:
            info = infos.get(pid)
            if info is None or info.id.start_ticks <= 0:  # dead, or hidden: neither is ever acted on
                continue
            present = self._present_seconds(info)
            for table in gpu.tables:
                listing = table.listings[pid]
                if present <= listing.sure_seconds or listing.proven_ticks == info.id.start_ticks:
                    continue
                (strangers if present > listing.since_seconds else unproven).add(pid)
        return Holders(frozenset(strangers), frozenset(unproven - strangers))

    def _present_seconds(self, info: ProcessInfo) -> float:
        """Return when the process was there for certain."""
        return info.id.start_ticks / _TICKS_PER_SECOND + self._margin_seconds

    def _see_life(
        self, gpu: _Gpu, holders: Holders, collected: Collected, infos: Mapping[int, ProcessInfo | None]
    ) -> bool:
        """Note who is the holder after all, by growth or by computing; return whether anybody is.

        Only lists count that were read while this very process had the number.
        """
        reading, at = collected.reading, collected.listed_seconds
        if not reading.processes_known or not reading.processes_trusted or collected.contradiction:
            return False
        doubtful = holders.strangers | holders.unproven
        used_by_pid = _bytes_by_pid(collected.processes) if doubtful else {}
        watched, gpu.watched = gpu.watched, {}
        found = False
        for pid in doubtful:
            info = infos.get(pid)
            if info is None or at < self._present_seconds(info):
                continue
            used, before = used_by_pid.get(pid), watched.get(pid)
            if before is None or before.start_ticks != info.id.start_ticks:
                before = _Watched(info.id.start_ticks, at, used)
            lowest = before.lowest_bytes
            grew = used is not None and lowest is not None and used - lowest >= GROWTH_BYTES
            sample = (collected.utilizations or {}).get(pid)
            # Nobody but the process with the number computes under it, and a stranger may do so on its own memory.
            works = pid in holders.unproven and sample is not None and max(sample) > 0
            if grew or (works and at - before.first_seconds >= SAMPLE_SECONDS):
                found = True
                for table in gpu.tables:
                    table.listings[pid].proven_ticks = info.id.start_ticks
            elif used is not None:
                lowest = used if lowest is None else min(lowest, used)
            gpu.watched[pid] = before._replace(lowest_bytes=lowest)
        return found

    def _save_if_due(self, now_seconds: float) -> None:
        if self._written_seconds is None or now_seconds - self._written_seconds >= SAVE_SECONDS:
            self._save(now_seconds)

    def _may_have_wrapped(self) -> bool:
        return self._pid_space is None or self._pid_space.may_have_wrapped(self._forks)

    def _save(self, now_seconds: float) -> None:
        self._written_seconds = now_seconds
        if self._pid_space is not None:
            self._forks = self._pid_space.forks()
        if self._writer is not None:
            self._writer.write(self._document)

    def _document(self) -> dict[str, object]:
        for gpu in self._gpus.values():
            gpu.remember_bytes()
        return to_document(self._boot_id, {key: table.stored() for key, table in self._tables.items()}, self._forks)


def _end_listings(table: _Table, collected: Collected) -> bool:
    """Count a complete list for the numbers that it lacks; return whether a listing has ended by it."""
    gone = table.listings.keys() - collected.pids
    if not gone or table.read_seconds is None or table.inherited:
        return False
    step = min(max(collected.listed_seconds - table.read_seconds, 0.0), _LONGEST_STEP_SECONDS)
    unlisted = _unlisted_bytes(collected)
    ended = False
    for pid in gone:
        listing = table.listings[pid]
        # An empty list beside full memory says that the driver lists nothing, not that nothing is held.
        if not listing.used_bytes or unlisted is None:
            counts = bool(collected.pids)
        else:
            counts = unlisted < listing.used_bytes / 2
        if counts:
            listing.absent_seconds += step
            if listing.absent_seconds >= BREAK_SECONDS:
                del table.listings[pid]
                ended = True
    return ended


def _unlisted_bytes(collected: Collected) -> int | None:
    memory = collected.reading.memory
    listed = [process.used_bytes for process in collected.processes]
    if memory is None or memory.used_bytes is None or None in listed:
        return None
    return memory.used_bytes - sum(used or 0 for used in listed)


def _bytes_by_pid(processes: Iterable[GpuProcess], *, together: bool = False) -> dict[int, int | None]:
    """Return what each number holds; None for several entries of one number, unless they are added up.

    Which entry of several is a dead process's cannot be told, so that their sum is no sign of life.
    """
    found: dict[int, int | None] = {}
    for process in processes:
        pid, used = process.pid, process.used_bytes
        if pid not in found:
            found[pid] = used
        else:
            before = found[pid]
            found[pid] = before + used if together and before is not None and used is not None else None
    return found
