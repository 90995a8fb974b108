"""Signs of life: what shows that an unproven process holds the memory that is listed for its number.

Only a process that the number may have been listed for from the start is asked for them. What is listed for a stranger,
which came after its number was listed, is a dead process's memory, and no figure changes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from gpuagent.core.snapshot import GpuProcess, ProcessUtilization

GROWTH_BYTES = 16 * 1024**2
"""Memory of a dead process does not grow: this much more than ever is the living one's."""
GROWN_LISTS = 3
"""Growth is there on so many lists, one after the other."""
SETTLE_SECONDS = 60.0
"""What a process was listed with in this time after it was first seen with its entries is what it began with: a list
may be late, and tell what a dead process did before its end."""
SAMPLE_SECONDS = 15.0
"""How long a process must have been seen before a utilization sample counts as its own: the driver's samples may be
10 s old when they are believed, and are shown for 2.5 s (`gpuagent.nvml.process_utilization`)."""

Entries = frozenset[tuple[str, int, int]]
"""Lines of the driver's list by type and MIG instances."""


class Watched(NamedTuple):
    """An unproven process, as far as it was seen."""

    start_ticks: int
    first_seconds: float
    entries: Entries = frozenset()
    since_seconds: float | None = None
    """Clock of the first list with these entries since which the amount was known."""
    begin_bytes: int = 0
    """The most that its number was ever listed with, until it had settled."""
    settled: bool = False
    grown_lists: int = 0

    def see(self, entries: Entries, used_bytes: int | None, highest_bytes: int, at: float) -> Watched:
        """Take in a list; `highest_bytes` is the most that its number was ever listed with, this list included.

        Where the entries change, growth is looked for anew: one that was dropped and is listed again has not grown.
        """
        if entries != self.entries:
            return Watched(self.start_ticks, self.first_seconds, entries).see(entries, used_bytes, highest_bytes, at)
        if used_bytes is None:
            return self._replace(since_seconds=None, grown_lists=0)
        if not self.settled:
            since = at if self.since_seconds is None else self.since_seconds
            return self._replace(
                since_seconds=since, begin_bytes=highest_bytes, settled=at - since >= SETTLE_SECONDS
            )  # fmt: skip
        grew = used_bytes >= self.begin_bytes + GROWTH_BYTES
        return self._replace(grown_lists=self.grown_lists + 1 if grew else 0)

    def is_alive(self, sample: ProcessUtilization | None, at: float) -> bool:
        """Return whether it has grown, or computes: nobody but the process with the number computes under it."""
        works = sample is not None and max(sample) > 0 and at - self.first_seconds >= SAMPLE_SECONDS
        return works or self.grown_lists >= GROWN_LISTS


def sum_bytes(processes: Iterable[GpuProcess]) -> dict[int, int | None]:
    """Return what each number holds over all of its entries; None where the driver does not tell it of one of them."""
    found: dict[int, int | None] = {}
    for process in processes:
        pid, used = process.pid, process.used_bytes
        before = found.get(pid, 0)
        found[pid] = None if before is None or used is None else before + used
    return found


def entries_by_pid(processes: Iterable[GpuProcess], pids: frozenset[int]) -> Mapping[int, Entries]:
    """Return the entries of each of the numbers."""
    found: dict[int, Entries] = {}
    for process in processes:
        if process.pid in pids:
            entry = process.kinds, process.gpu_instance_id, process.compute_instance_id
            before = found.get(process.pid)
            found[process.pid] = _one(*entry) if before is None else before | {entry}
    return found


@lru_cache(maxsize=64)
def _one(kinds: str, gpu_instance_id: int, compute_instance_id: int) -> Entries:
    """Most processes have one entry, and it is the same one: a set costs 216 bytes."""
    return frozenset(((kinds, gpu_instance_id, compute_instance_id),))
