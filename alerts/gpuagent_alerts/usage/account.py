"""The accounts of one GPU: each of its seconds is split among those who hold it.

Added up over all holders, the time, the work, the memory and the energy are those of the GPU. What was not observed is
neither work nor idleness: it stays held time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuagent.core.hardware import Power
from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading
from gpuagent.core.usage import NOBODY, OTHER, UNKNOWN, UNOBSERVED, Amounts, GpuUsage, Holder, HolderKind, HolderUsage

_EVICT_SECONDS = 900.0
"""Time without the holder after which its series may make room for that of another."""


class Account:
    """What one holder has used of one GPU."""

    __slots__ = (
        "busy", "energy", "held", "holder", "idle", "idle_since", "memory", "observed", "saved", "seen_at", "shown",
        "untouched", "weight",
    )  # fmt: skip

    def __init__(self, holder: Holder, amounts: Amounts = Amounts(), *, shown: bool = True) -> None:  # noqa: B008  frozen
        self.holder = holder
        self.shown = shown
        """Whether it has series of its own; what others have used is summed up."""
        self.held, self.observed, self.busy, self.idle, self.memory, self.untouched, self.energy = amounts
        self.saved = amounts
        """Amounts that are in the daily table already."""
        self.weight = 0.0
        """Its part of the energy since the energy was read last."""
        self.seen_at = 0.0
        self.idle_since: float | None = None

    @property
    def amounts(self) -> Amounts:
        """All that it has used."""
        return Amounts(
            self.held, self.observed, self.busy, self.idle, self.memory, self.untouched, self.energy
        )  # fmt: skip


class _Share(NamedTuple):
    """Parts of a second that are one holder's, as long as the GPU's processes stay what they are."""

    account: Account
    held: float
    observed: float
    idle: float
    busy: float
    """Part of what the GPU works."""
    energy: float
    memory_bytes: int


class GpuAccounts:
    """All holders of one GPU. For one thread."""

    def __init__(self, uuid: str, most_holders: int) -> None:
        """Tell `most_holders` apart in series; the rest is summed up."""
        self.uuid = uuid
        self.index = 0
        self.seconds = 0.0
        self.busy_seconds = 0.0
        self.accounts: dict[Holder, Account] = {}
        self._most = most_holders
        self._shown = 0
        self._last_seconds: float | None = None
        self._processes: list[ProcessReading] | None = None
        self._list_known = False
        self._shares: list[_Share] = []
        self._by_pid: dict[int, Account] = {}
        self._energy: tuple[bool, float] | None = None

    def account(self, holder: Holder) -> Account:
        """Return the holder's account, a new one where it has none."""
        found = self.accounts.get(holder)
        if found is None:
            shown = holder.kind is not HolderKind.PROCESSES or self._has_room()
            self._shown += shown and holder.kind is HolderKind.PROCESSES
            found = self.accounts[holder] = Account(holder, shown=shown)
        return found

    def restore(self, holder: Holder, amounts: Amounts) -> None:
        """Go on from what the agent before has counted."""
        self._shown += holder.kind is HolderKind.PROCESSES
        self.accounts[holder] = Account(holder, amounts)

    def _has_room(self) -> bool:
        if self._shown < self._most:
            return True
        now = self._last_seconds or 0.0
        gone = [
            one
            for one in self.accounts.values()
            if one.shown and one.holder.kind is HolderKind.PROCESSES and now - one.seen_at >= _EVICT_SECONDS
        ]
        if not gone:
            return False
        oldest = min(gone, key=lambda one: one.seen_at)
        if oldest.saved != oldest.amounts:
            return False  # it is after the next time that the daily table is written
        del self.accounts[oldest.holder]
        self._shown -= 1
        return True

    def observe(
        self,
        gpu: GpuReading,
        processes: list[ProcessReading],
        now_seconds: float,
        longest_gap_seconds: float,
        holders: Mapping[int, Holder],
        untouched: Iterable[tuple[int, int]],
    ) -> None:
        """Account for the time since the last reading.

        `holders` has the holder of each of the processes by its place in the list; `untouched` has pids, and the bytes
        that their allocators never used.
        """
        self.index = gpu.identity.index
        readable = gpu.state is GpuState.OK
        now = gpu.time_seconds if readable else now_seconds
        last, self._last_seconds = self._last_seconds, max(now, self._last_seconds or now)
        seconds = 0.0 if last is None else now - last
        if seconds > 0:
            self.seconds += seconds
        if not readable:
            self._forget_processes()
        elif self._processes != processes or self._list_known is not gpu.processes_known:
            self._share_out(gpu, processes, holders, now)
        if seconds > 0:
            if readable and seconds <= longest_gap_seconds:
                self._add(gpu, seconds, now, untouched)
            else:
                free = gpu.state is GpuState.ASLEEP and seconds <= longest_gap_seconds
                self._add_whole(NOBODY if free else UNOBSERVED, seconds)
        if readable:
            self._split_energy(gpu.power)

    def _forget_processes(self) -> None:
        for share in self._shares:
            share.account.idle_since = None
        self._processes, self._shares, self._by_pid = None, [], {}

    def _share_out(
        self, gpu: GpuReading, processes: list[ProcessReading], holders: Mapping[int, Holder], now: float
    ) -> None:
        self._forget_processes()
        self._processes, self._list_known = processes, gpu.processes_known
        if not processes:
            self._shares = [
                _Share(self.account(NOBODY if gpu.processes_known else UNKNOWN), 1.0, 0.0, 0.0, 1.0, 1.0, 0)
            ]
            return
        sizes = [one.used_bytes for one in processes]
        total = sum(size or 0 for size in sizes)
        by_memory = total > 0 and None not in sizes
        sampled = sum(one.utilization.sm_ratio for one in processes if one.utilization is not None)
        sums: dict[Holder, list[float]] = {}
        rests: dict[Holder, float | None] = {}
        for place, one in enumerate(processes):
            holder = holders[place]
            held = (one.used_bytes or 0) / total if by_memory else 1 / len(processes)
            found = sums.get(holder)
            if found is None:
                found = sums[holder] = [0.0, 0.0, 0.0, 0.0, 0.0]
                rests[holder] = one.idle_since_seconds
            elif (since := rests[holder]) is not None:
                rests[holder] = None if one.idle_since_seconds is None else max(since, one.idle_since_seconds)
            found[0] += held
            found[4] += one.used_bytes or 0
            if one.utilization is not None:
                found[1] += held
                found[3] += one.utilization.sm_ratio
                if not any(one.utilization):
                    found[2] += held
        alone = len(sums) == 1
        for holder, (held, observed, idle, work, size) in sums.items():
            account = self.account(holder)
            account.seen_at, account.idle_since = now, rests[holder]
            busy = work / sampled if sampled else float(alone)
            self._shares.append(_Share(account, held, observed, idle, busy, busy if sampled else held, int(size)))
        self._by_pid = {one.pid: self.accounts[holders[place]] for place, one in enumerate(processes)}

    def _add(self, gpu: GpuReading, seconds: float, now: float, untouched: Iterable[tuple[int, int]]) -> None:
        rates = gpu.utilization
        ratio = None if rates is None else rates.gpu_ratio
        work = (ratio or 0.0) * seconds
        self.busy_seconds += work
        # The driver does not tell for whom the JPEG and the optical flow engine work: nobody is idle then.
        idle_seconds = 0.0 if rates is not None and (rates.jpeg_ratio or rates.ofa_ratio) else seconds
        assigned = 0.0
        alone = len(self._shares) == 1
        for account, held, observed, idle, busy, energy, size in self._shares:
            account.held += held * seconds
            account.observed += (held if alone and ratio is not None else observed) * seconds
            account.idle += idle * idle_seconds
            account.memory += size * seconds
            account.weight += energy * seconds
            account.seen_at = now
            if busy and account.holder is not NOBODY:
                account.busy += busy * work
                assigned += busy
        if work and assigned < 1 - 1e-9:
            self.account(UNKNOWN).busy += (1 - assigned) * work
        for pid, size in untouched:
            if (known := self._by_pid.get(pid)) is not None:
                known.untouched = (known.untouched or 0.0) + size * seconds
        self._add_rest_of_memory(gpu, seconds)

    def _add_rest_of_memory(self, gpu: GpuReading, seconds: float) -> None:
        memory, where = gpu.memory, gpu.reconciliation
        if memory is None or where is None or memory.total_bytes is None:
            return
        processes = where.processes_bytes + where.dead_processes_bytes
        if where.unattributed_bytes:
            self.account(UNKNOWN).memory += where.unattributed_bytes * seconds
        self.account(NOBODY).memory += max(0, memory.total_bytes - processes - where.unattributed_bytes) * seconds

    def _add_whole(self, holder: Holder, seconds: float) -> None:
        account = self.account(holder)
        account.held += seconds
        account.weight += seconds

    def _split_energy(self, power: Power | None) -> None:
        """Split what was used since the energy was read last; a counter that began anew is a new beginning."""
        if power is None:
            return
        counted = power.energy_joules is not None
        joules = power.energy_joules if counted else power.integrated_energy_joules
        if joules is None:
            return
        last, self._energy = self._energy, (counted, joules)
        if last == self._energy:
            return
        weighed = [one for one in self.accounts.values() if one.weight]
        total = sum(one.weight for one in weighed)
        used = joules - last[1] if last is not None and last[0] is counted else -1.0
        if total > 0 and used >= 0:
            for one in weighed:
                one.energy = (one.energy or 0.0) + used * one.weight / total
        for one in weighed:
            one.weight = 0.0

    def take_changes(self, now_seconds: float) -> list[tuple[Holder, Amounts]]:
        """Return what was used since the last call, and forget holders without series that are gone."""
        changes = []
        for account in list(self.accounts.values()):
            amounts = account.amounts
            if amounts != account.saved:
                changes.append((account.holder, amounts.minus(account.saved)))
                account.saved = amounts
            if not account.shown and now_seconds - account.seen_at >= _EVICT_SECONDS:
                rest = self.account(OTHER)
                self._fold(rest, amounts)
                del self.accounts[account.holder]
        return changes

    @staticmethod
    def _fold(rest: Account, amounts: Amounts) -> None:
        """Add to the rest what is in the daily table already."""
        total = rest.amounts.plus(amounts)
        rest.held, rest.observed, rest.busy, rest.idle, rest.memory, rest.untouched, rest.energy = total
        rest.saved = rest.saved.plus(amounts)

    def totals(self) -> GpuUsage:
        """Return the GPU's own totals."""
        return GpuUsage(self.index, self.uuid, self.seconds, self.busy_seconds)

    def usage(self) -> list[HolderUsage]:
        """Return every holder that is told apart, and the sum of the others."""
        shown, others, any_other = [], Amounts(), False
        for account in self.accounts.values():
            if account.shown and account.holder is not OTHER:
                since = account.idle_since
                idle = None if since is None or self._last_seconds is None else max(0.0, self._last_seconds - since)
                shown.append(HolderUsage(self.index, self.uuid, account.holder, account.amounts, idle))
            else:
                others, any_other = others.plus(account.amounts), True
        if any_other:
            shown.append(HolderUsage(self.index, self.uuid, OTHER, others))
        return shown
