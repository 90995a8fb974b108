"""Tell holders of memory from strangers, by since when the driver has listed each pid on each GPU.

The driver lists pids, and a pid outlives its process: memory of a process that has ended may stay listed for
hours, while the kernel gives the pid to somebody else. Only a process that was already there when the driver first
listed its pid can be the one that the memory is counted for. One that started later is a stranger to it, for as long
as the listing goes on, whatever the figures do (`listings_table` says when it is over).

A driver may take its time to answer. The list was made at some moment between the question and the answer, so a
process that started in between may hold the memory or not. The same goes for a pid that was first listed after a time
in which nobody looked: it proves nothing for a process of that time. Such a process is unproven until it shows signs of
life. Only a process that the pid may have been listed for from the start is asked
for them. What is listed for a stranger is a dead process's memory, and no figure changes that. The listings are kept
over restarts of the agent, within one boot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gpuagent.collector.listings_table import ListingTable, Stored, load, to_document
from gpuagent.collector.saved_state import RETRY_SECONDS, LatestWriter
from gpuagent.core.identity import TICKS_PER_SECOND
from gpuagent.core.snapshot import GpuIdentity, GpuProcess, ProcessInfo, ProcessUtilization
from gpuagent.driver.backend import Collected
from gpuagent.procfs.machine import SINCE_BOOT, PidSpace

GROWTH_BYTES = 16 * 1024**2
"""Memory of a dead process does not grow: this much more than ever is the living one's."""
GROWN_LISTS = 3
"""Growth is there on so many lists, one after the other."""
INITIAL_SECONDS = 60.0
"""What a process was listed with in this time after it was first seen with its entries is what it began with: a list
may be late, and tell what a dead process did before its end."""
SAMPLE_SECONDS = 15.0
"""Seconds for which a process must have been seen before a utilization sample counts as its own: samples may
be 10 s old when they are believed, and are shown for 2.5 s (`gpuagent.driver.nvml.utilization`)."""

Entries = frozenset[tuple[str, int, int]]
"""Lines of the driver's list by type and MIG instances."""


class UnprovenProcess(NamedTuple):
    """An unproven process, as far as it was seen."""

    start_ticks: int
    first_seconds: float
    entries: Entries = frozenset()
    since_seconds: float | None = None
    """Clock of the first list with these entries since which the amount was known."""
    begin_bytes: int = 0
    """The most that its pid was ever listed with, until it had settled."""
    settled: bool = False
    grown_lists: int = 0

    def observe(self, entries: Entries, used_bytes: int | None, highest_bytes: int, at: float) -> UnprovenProcess:
        """Take in a list; `highest_bytes` is the most that its pid was ever listed with, this list included.

        Where the entries change, growth is looked for anew: one that was dropped and is listed again has not grown.
        """
        if entries != self.entries:
            return UnprovenProcess(self.start_ticks, self.first_seconds, entries).observe(
                entries, used_bytes, highest_bytes, at
            )
        if used_bytes is None:
            return self._replace(since_seconds=None, grown_lists=0)
        if not self.settled:
            since = at if self.since_seconds is None else self.since_seconds
            return self._replace(
                since_seconds=since, begin_bytes=highest_bytes, settled=at - since >= INITIAL_SECONDS
            )  # fmt: skip
        grew = used_bytes >= self.begin_bytes + GROWTH_BYTES
        return self._replace(grown_lists=self.grown_lists + 1 if grew else 0)

    def is_alive(self, sample: ProcessUtilization | None, at: float) -> bool:
        """Return whether it has grown, or computes: nobody but the process with the pid computes under it."""
        works = sample is not None and max(sample) > 0 and at - self.first_seconds >= SAMPLE_SECONDS
        return works or self.grown_lists >= GROWN_LISTS


def sum_bytes(processes: Iterable[GpuProcess]) -> dict[int, int | None]:
    """Return what each pid holds over all of its entries; None where the driver does not report one of them."""
    found: dict[int, int | None] = {}
    for process in processes:
        pid, used = process.pid, process.used_bytes
        before = found.get(pid, 0)
        found[pid] = None if before is None or used is None else before + used
    return found


def entries_by_pid(processes: Iterable[GpuProcess], pids: frozenset[int]) -> Mapping[int, Entries]:
    """Return the entries of each of the pids."""
    found: dict[int, Entries] = {}
    for process in processes:
        if process.pid in pids:
            entry = process.kinds, process.gpu_instance_id, process.compute_instance_id
            before = found.get(process.pid)
            found[process.pid] = _one(*entry) if before is None else before | {entry}
    return found


@lru_cache(maxsize=64)
def _one(kinds: str, gpu_instance_id: int, compute_instance_id: int) -> Entries:
    """Return the set of one entry, the same for most processes: a set costs 216 bytes."""
    return frozenset(((kinds, gpu_instance_id, compute_instance_id),))


GAP_SECONDS = 5.0
"""Two lists less far apart than this have no gap between them, however fast lists are read otherwise."""
SAVE_SECONDS = 30.0
"""The file is written at least this often: the time of the last list in it is when a gap over a restart begins."""
TICK_SECONDS = 1 / TICKS_PER_SECOND
"""Start times are whole ticks, rounded down (proc_pid_stat(5), field 22)."""


class Holders(NamedTuple):
    """Pids of one GPU's list whose living processes are not known to hold the memory that is listed for them."""

    strangers: frozenset[int] = frozenset()
    """Pids that were listed before their processes were there: the holders have ended."""
    unproven: frozenset[int] = frozenset()
    """Pids that may have been listed before their processes were there: nobody looked."""


KNOWN_HOLDERS = Holders()
"""Every living process holds what is listed for it."""


class _Gpu:
    """A GPU by its UUID and its PCI address, and what was made of its last list."""

    def __init__(self, tables: tuple[ListingTable, ...]) -> None:
        self.tables = tables
        self.absent = False
        """A pid of a table was not on the last list."""
        self.pids: frozenset[int] | None = None
        self.complete: Collected | None = None
        """The last complete list."""
        self.infos: Mapping[int, ProcessInfo | None] | None = None
        self.holders = KNOWN_HOLDERS
        self.watched: dict[int, UnprovenProcess] = {}

    def is_unchanged(self, pids: frozenset[int], infos: Mapping[int, ProcessInfo | None]) -> bool:
        """Return whether the same comes of a list of the same pids as last time."""
        if self.absent or self.holders != KNOWN_HOLDERS or infos is not self.infos:
            return False
        return pids is self.pids or pids == self.pids

    def remember_bytes(self) -> None:
        """Keep what each pid held on the last complete list, where no other was taken in since."""
        last = self.complete
        if last is not None:
            held = sum_bytes(last.processes)
            for table in self.tables:
                if table.read_seconds == last.listed_seconds:
                    table.remember_bytes(held, last.used_bytes)


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
        on_first_list: Callable[[], None] = lambda: None,
    ) -> None:
        """Load what the last agent of this boot wrote to `path`; None keeps the listings in memory only.

        `ran_before` says that an agent has run in this boot: a file that is missing then was lost. Where none has, a
        first list is believed while the pids of `pid_space` cannot have come round since the boot. A process counts
        as present at a listing if it started at least `margin_seconds` before it. Without a `pid_space` (a scenario) a
        first list is believed, and any pid may have been given twice while nobody looked. `on_first_list` is called
        once, when a list has been taken in.
        """
        self._boot_id = boot_id
        self._margin_seconds = margin_seconds
        self._gap_seconds = gap_seconds
        self._gpus: dict[tuple[str, ...], _Gpu] = {}
        self._writer = None if path is None else LatestWriter(path, retry_seconds)
        self._written_seconds: float | None = None
        self._on_first_list = on_first_list
        stored = Stored() if path is None else load(path, boot_id, now_seconds)
        self._tables = {key: ListingTable(table) for key, table in stored.tables.items()}
        self._ran_before = ran_before or bool(stored.tables)
        self._pid_space = pid_space
        self._mark = stored.mark if stored.tables or pid_space is None else pid_space.mark()
        """The pid space at the last save."""

    def classify(self, collected: Collected, infos: Mapping[int, ProcessInfo | None]) -> Holders:
        """Take in the list of one GPU, and return which living processes are not known to hold their memory.

        A list that is not complete says nothing of the pids that it lacks. The same object as before for as long as
        nothing has changed.
        """
        gpu = self._gpu(collected.reading.identity)
        pids, at = collected.pids, collected.listed_seconds
        complete = collected.reading.processes_known
        if gpu.is_unchanged(pids, infos):
            gpu.pids = pids
            if complete:
                for table in gpu.tables:
                    table.read(at)
                gpu.complete = collected
                self._save_if_due(at)
            return gpu.holders
        gpu.remember_bytes()
        newer = complete and (gpu.complete is None or at > gpu.complete.listed_seconds)
        changed = False
        for table in gpu.tables:
            changed |= self._take_in(table, collected, infos, newer=newer)
        gpu.complete = collected if newer else gpu.complete
        gpu.pids, gpu.infos = pids, infos
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
                    self._tables[name] = ListingTable() if known is None else known.copy()
            self._gpus[key] = _Gpu(tuple(self._tables[name] for name in key))
        return self._gpus[key]

    def _take_in(
        self, table: ListingTable, collected: Collected, infos: Mapping[int, ProcessInfo | None], *, newer: bool
    ) -> bool:
        """Return whether listings have begun or ended; `newer` is a complete list that was not taken in before."""
        at, ended = collected.listed_seconds, False
        if newer:
            held = sum_bytes(collected.processes)
            ended = table.end_listings(held, collected.used_bytes, at)
        begun = self._begin_listings(table, collected, infos)
        if newer:
            table.read(at)
            table.remember_bytes(held, collected.used_bytes)
            table.drop_absent(collected.pids)
        return ended or begun

    def _begin_listings(
        self, table: ListingTable, collected: Collected, infos: Mapping[int, ProcessInfo | None]
    ) -> bool:
        pids, asked = collected.pids, collected.listed_seconds
        for pid in pids & table.listings.keys():
            table.listings[pid].be_listed()
        new = pids - table.listings.keys()
        if new:
            sure = table.sure_at(
                asked, self._gap_seconds,
                believe_first=self._believe_first, may_have_wrapped=self._may_have_wrapped,
            )  # fmt: skip
            for pid in new:
                info = infos.get(pid)
                uid = None if info is None else info.uid
                table.begin(pid, max(asked, collected.answered_seconds), sure, uid)
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
                (strangers if self._came_after(info, listing.since_seconds) else unproven).add(pid)
        return Holders(frozenset(strangers), frozenset(unproven - strangers))

    def _present_seconds(self, info: ProcessInfo) -> float:
        """Return when the process was there for certain."""
        return info.id.start_ticks / TICKS_PER_SECOND + self._margin_seconds

    def _came_after(self, info: ProcessInfo, seconds: float) -> bool:
        """Return whether the process cannot have been there yet; its start time is rounded down."""
        start = info.id.start_ticks / TICKS_PER_SECOND
        return start >= seconds and start + self._margin_seconds > seconds

    def _see_life(
        self, gpu: _Gpu, holders: Holders, collected: Collected, infos: Mapping[int, ProcessInfo | None]
    ) -> bool:
        """Note who is the holder after all, by growth or by computing; return whether anybody is.

        Only lists count that were read while this very process had the pid, and what any list has said withholds.
        """
        watched, gpu.watched = gpu.watched, {}
        if not holders.unproven:
            return False
        reading, at = collected.reading, collected.listed_seconds
        used_by_pid = sum_bytes(collected.processes)
        entries = entries_by_pid(collected.processes, holders.unproven)
        believed = reading.processes_known and reading.processes_trusted and not collected.contradiction
        found = False
        for pid in holders.unproven:
            listings = [table.listings[pid] for table in gpu.tables]
            used = used_by_pid.get(pid)
            for listing in listings:
                listing.highest_bytes = max(listing.highest_bytes, used or 0)
            info = infos.get(pid)
            if info is None or at < self._present_seconds(info):
                continue
            one = watched.get(pid)
            if one is None or one.start_ticks != info.id.start_ticks:
                one = UnprovenProcess(info.id.start_ticks, at)
            if believed:
                one = one.observe(entries[pid], used, max(listing.highest_bytes for listing in listings), at)
                if one.is_alive((collected.utilizations or {}).get(pid), at):
                    found = True
                    for listing in listings:
                        listing.proven_ticks = info.id.start_ticks
            gpu.watched[pid] = one
        return found

    def _save_if_due(self, now_seconds: float) -> None:
        if self._written_seconds is None or now_seconds - self._written_seconds >= SAVE_SECONDS:
            self._save(now_seconds)

    def _may_have_wrapped(self) -> bool:
        return self._pid_space is None or self._pid_space.may_have_wrapped(self._mark)

    def _believe_first(self) -> bool:
        """Return whether the first list of a GPU proves anything: a holder may have ended before it otherwise."""
        if self._ran_before:
            return False
        return self._pid_space is None or not self._pid_space.may_have_wrapped(SINCE_BOOT)

    def _save(self, now_seconds: float) -> None:
        if self._written_seconds is None:
            self._on_first_list()
        self._written_seconds = now_seconds
        if self._pid_space is not None:
            self._mark = self._pid_space.mark()
        if self._writer is not None:
            self._writer.write(self._document)

    def _document(self) -> dict[str, object]:
        for gpu in self._gpus.values():
            gpu.remember_bytes()
        return to_document(self._boot_id, {key: table.stored() for key, table in self._tables.items()}, self._mark)
