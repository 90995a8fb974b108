"""Measure once per tick: ask every GPU in threads, join what came back in time, and name the rest as missing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpuagent.collector.fall_reports import FallReports
from gpuagent.collector.gpu import GpuSlot
from gpuagent.collector.holders import LastHolders
from gpuagent.collector.inventory import IndexRegistry, Inventory, find_conflicts
from gpuagent.collector.join import Idleness, Joiner
from gpuagent.collector.listings import GAP_SECONDS, TICK_SECONDS, Listings
from gpuagent.collector.memory_watch import MemoryWatch
from gpuagent.collector.repairs import DriverSession, FaultTracker
from gpuagent.collector.session import NvmlSession
from gpuagent.collector.sleep import RuntimePower
from gpuagent.collector.trust import TrustRegistry
from gpuagent.collector.workers import ElasticThreadPool, Worker
from gpuagent.core.clock import Backoff, Clock
from gpuagent.core.hardware import HostMemory, MemoryKind, MemoryPressure, StallRisk
from gpuagent.core.snapshot import (
    CollectorRun,
    GpuReading,
    GpuState,
    NodeReading,
    Pause,
    ProcessInfo,
    ProcessReading,
    Snapshot,
)
from gpuagent.driver.backend import LONGEST_GAP_SECONDS, Collected, Driver
from gpuagent.procfs.kernel_log import Address

_RENEW_FIRST_SECONDS = 60.0
_RENEW_LONGEST_SECONDS = 3600.0
_LEAVE_SECONDS = 2.0
_PATIENCE_SECONDS = 0.05
"""A GPU that has not been asked after this gets a thread of its own: one before it may never answer."""
_MOST_GPUS = 1024


class ProcessResolver(Protocol):
    """What the monitor needs of /proc; `gpuagent.procfs.table.ProcessTable` is one."""

    host_pid_namespace: bool
    processes_seen: int

    def resolve(self, pids: Iterable[int]) -> Mapping[int, ProcessInfo | None]:
        """Return every pid, with what /proc knows of it; None for one that /proc does not know.

        The same object for as long as nothing has changed.
        """
        ...

    def refresh(self) -> None:
        """Read again what changes while a process lives."""
        ...

    def runs(self) -> Iterable[CollectorRun]:
        """Return how those fared that are asked what /proc does not report."""
        ...


@dataclass(frozen=True, slots=True)
class TickTimeouts:
    """How long to wait for the driver."""

    fresh_seconds: float = 2.0
    """A late answer younger than this, by the agent's clock, still counts for the present tick."""
    deadline_seconds: float = 0.8
    """A tick is published at the latest after this, by the machine's clock, without those that have not answered."""
    longest_gap_seconds: float = LONGEST_GAP_SECONDS
    """Two readings that are further apart, by the agent's clock, say nothing of the time between them."""


@dataclass(frozen=True, slots=True)
class MonitorContext:
    """Where the monitor runs."""

    boot_id: str = ""
    simulated: str = ""
    inventory: Inventory | None = None
    indices: IndexRegistry | None = None
    trusts: TrustRegistry | None = None
    pci_gpus: Callable[[], int | None] = lambda: None
    listings: Listings | None = None
    repairs: FaultTracker | None = None
    holders: LastHolders | None = None
    power: Callable[[str], RuntimePower | None] = lambda _: None
    """Runtime power of the GPU at a PCI address."""
    host_memory: Callable[[], HostMemory | None] = lambda: None
    memory_pressure: Callable[[], MemoryPressure | None] = lambda: None
    fallen: Callable[[], Iterable[Address]] = tuple
    """GPUs that have fallen off the bus since it was asked last, by what NVML does not report."""


class Monitor:
    """Measure the node once per tick. All methods belong to the event loop's thread."""

    def __init__(
        self,
        driver: Driver,
        processes: ProcessResolver,
        clock: Clock,
        pace: TickTimeouts | None = None,
        place: MonitorContext | None = None,
    ) -> None:
        self.pace = pace or TickTimeouts()
        self.snapshot: Snapshot | None = None
        self._place = place or MonitorContext()
        self._inventory = self._place.inventory or Inventory(None, self._place.boot_id)
        self._indices = self._place.indices or IndexRegistry()
        # A made-up process is on its GPU from its first moment on.
        margin = 0.0 if self._place.simulated else TICK_SECONDS
        self._listings = self._place.listings or Listings(
            None, self._place.boot_id, margin_seconds=margin, gap_seconds=GAP_SECONDS * clock.speed
        )
        self._driver = driver
        self._processes = processes
        holders = self._place.holders or LastHolders(clock)
        self._joiner = Joiner(host_pid_namespace=processes.host_pid_namespace, last_holders=holders)
        self._fall_reports = FallReports()
        self._idleness = Idleness()
        self._memory_watch = MemoryWatch()
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = asyncio.Event()
        self._threads = ElasticThreadPool("nvml-gpus", self._notify)
        self._session_threads = ElasticThreadPool("nvml-session", self._notify)
        self._nvml = Worker(self._session_threads)
        self.session = NvmlSession(driver, clock, self._nvml)
        self._pool: dict[int, GpuSlot] = {}
        self._trusts = self._place.trusts or TrustRegistry()
        self._repairs = self._place.repairs or FaultTracker(clock)
        self._slots: list[GpuSlot] = []
        self._generation = 0
        self._xids = driver.watch_events(clock)
        self._watched: tuple[object, ...] = ()
        self._pids: dict[str, frozenset[int]] = {}
        self._listed: tuple[list[frozenset[int]], frozenset[int]] = [], frozenset()
        """Listed pids by GPU, and of all GPUs."""
        self._renewal = Backoff(_RENEW_FIRST_SECONDS, _RENEW_LONGEST_SECONDS)
        self._slow_due = True
        self._pci_count: int | None = None
        self._measured_seconds: float | None = None
        self._ticks = 0
        self._ticks_late = 0

    def request_slow(self) -> None:
        """Have the next tick read the slow collectors too."""
        self._slow_due = True

    def tick_skipped(self) -> None:
        """Note a tick that could not begin in time."""
        self._ticks_late += 1

    async def tick(self) -> Snapshot:
        """Measure once. Takes no longer than the deadline, whatever the driver does; raises nothing of the driver's."""
        self._loop = asyncio.get_running_loop()
        deadline = time.monotonic() + self.pace.deadline_seconds
        if self._slow_due:
            self._slow_due = False
            self._check_surroundings()
        self.session.advance(leave=self._leave)
        # Twice, if what the worker was at was something else: a new session costs no tick unless it takes too long.
        while self.session.beginning and self._nvml.busy and time.monotonic() < deadline:
            await self._wait([self._nvml], deadline)
            self.session.advance(leave=self._leave)
        self._take_results()
        if self.session.ready:
            self._follow_session()
            driver = self.session.versions.driver
            gap = self.pace.longest_gap_seconds
            awake = [slot for slot in self._slots if not slot.let_sleep(self._place.power)]
            begun = [slot for slot in awake if slot.begin(self.session.generation, driver, gap)]
            await self._wait([slot.worker for slot in begun], deadline)
            self._take_results()
        self._watch_events()
        self.snapshot = self._assemble()
        return self.snapshot

    def pause(self, why: str = "", asked: Pause | None = None) -> None:
        """Give everything back to the driver until `resume`: it can be unloaded, a GPU reset, MIG changed."""
        self.session.pause(why, asked)

    def resume(self) -> None:
        """Measure again after `pause`."""
        self.session.resume()
        self._slow_due = True

    async def close(self, timeout_seconds: float = 2.5) -> None:
        """Leave the driver. A stuck call is left behind: its thread is a daemon and ends with the process."""
        self._loop = asyncio.get_running_loop()
        self.session.pause()
        deadline = time.monotonic() + timeout_seconds
        while not self.session.released and time.monotonic() < deadline:
            self.session.advance(leave=self._leave)
            await self._wait([self._nvml], deadline)
        self._session_threads.stop()
        self._threads.stop()

    def _notify(self) -> None:
        """Wake the loop, from a thread of the pool."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(self._answered.set)

    async def _wait(self, workers: list[Worker], deadline: float) -> None:
        """Wait until none of the workers is running, or until the deadline."""
        patience = min(_PATIENCE_SECONDS, self.pace.deadline_seconds / 2)
        while any(worker.busy and not worker.finished for worker in workers):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            self._answered.clear()
            if any(worker.busy and not worker.finished for worker in workers):
                try:
                    async with asyncio.timeout(min(remaining, patience)):
                        await self._answered.wait()
                except TimeoutError:
                    self._threads.add_threads()
                    patience = remaining

    def _take_results(self) -> None:
        """Take what the GPUs' threads have answered. One that says the session has ended ends it for all."""
        for slot in self._slots:
            failure = slot.take_result(self.pace.fresh_seconds)
            if failure is not None:
                self.session.failed_with(failure)
        conflicts = find_conflicts(
            (slot.identity for slot in self._slots if slot.watched),
            unidentified={slot.index for slot in self._slots if not slot.is_identified},
        )
        for slot in self._slots:
            slot.set_conflict(conflicts.get(slot.index, ""))
        # One that is open and has not answered yet is taken for the GPU that it was: it may be another one by now.
        answering = [slot.identity for slot in self._slots if slot.is_identified]
        self._inventory.observe(answering)
        self._indices.observe(answering)
        self._trusts.save()

    def _follow_session(self) -> None:
        """Make one slot for each index that is enumerated now, after an initialization.

        A slot is never made twice, so that a call stuck in the driver is not joined by a second one.
        """
        if self._generation == self.session.generation:
            return
        self._generation = self.session.generation
        indices = range(min(self.session.gpu_count, _MOST_GPUS))
        for index in indices:
            if index not in self._pool:
                known = self._inventory.at(index)
                address_of = self._inventory.address_of
                slot = GpuSlot(self._driver, index, self._clock, self._threads, known, self._trusts, address_of)
                self._pool[index] = slot
        self._slots = [self._pool[index] for index in indices]
        for slot in self._slots:
            slot.session_ended("")

    def _check_surroundings(self) -> None:
        """Look, at the slow rate, at what may have changed outside of what is read anyway."""
        self._pci_count = self._place.pci_gpus() if self._processes.host_pid_namespace else None
        self._processes.refresh()
        for slot in self._slots:
            slot.slow_due = True
        self._renew_if_missing()
        self.session.count()

    def _renew_if_missing(self) -> None:
        """Renew the session where a GPU is missing: NVML shows one that came back, and proves it, only after that."""
        snapshot = self.snapshot
        now = self._clock.now()
        missing = snapshot is not None and (not snapshot.gpus or self._repairs.proof_wanted)
        if not self.session.ready or not missing:
            if not missing:
                self._renewal.succeeded()
            return
        if self._renewal.due_at is None:
            self._renewal.failed(now)
        elif self._renewal.due(now) and not any(slot.worker.busy for slot in self._slots):
            self._renewal.failed(now)
            self.session.renew("looking for missing GPUs")

    def _leave(self) -> bool:
        """Wait, in the session's worker, until no other thread is inside the library."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        if not self._xids.close(_LEAVE_SECONDS):
            return False
        self._watched = ()
        slots = list(self._pool.values())
        while any(slot.worker.busy and not slot.worker.finished for slot in slots):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        for slot in slots:
            slot.close()
        return True

    def _watch_events(self) -> None:
        if not self.session.ready:
            return
        gpus = [watched for slot in self._slots if (watched := slot.watched) is not None]
        key = (self.session.generation, *((gpu.index, gpu.uuid) for gpu in gpus))
        if key != self._watched:
            self._watched = key
            self._xids.watch(gpus)

    def _note_fallen(self, gpus: Sequence[GpuReading]) -> None:
        for gpu in self._fall_reports.confirm(self._place.fallen(), gpus, self._clock.now()):
            self._xids.note_fallen_off(gpu.index, gpu.uuid)

    def _assemble(self) -> Snapshot:
        now = self._clock.now()
        answers = self._answers()
        started = time.perf_counter()
        infos = self._processes.resolve(self._listed_pids(answers))
        proc_seconds = time.perf_counter() - started
        gpus: list[GpuReading] = []
        processes: list[ProcessReading] = []
        for answer in answers:
            joined = self._joiner.join(answer, infos, self._listings.classify(answer, infos))
            processes += joined.readings
            reading = answer.reading
            if reading.processes_known:
                reading = replace(reading, reconciliation=joined.reconciliation)
            if replaced := self._inventory.replaced_by(reading.identity.uuid):
                reading = replace(reading, replaces=replaced)
            gpus.append(reading)
        processes = self._idleness.observe(gpus, answers, processes, self.pace.longest_gap_seconds)
        self._note_fallen(gpus)
        driver = DriverSession(self.session.generation, self.session.driver_loads, self.session.versions.driver)
        gpus, xids = self._repairs.observe(self._xids.with_runs(gpus), self._xids.counts(), driver)
        if any(gpu.state in (GpuState.OK, GpuState.ASLEEP) for gpu in gpus) or (self.session.ready and not gpus):
            self._measured_seconds = now
        self._ticks += 1
        node = self._node(gpus, now)
        return Snapshot(
            time_seconds=self._clock.wall(),
            clock_seconds=now,
            node=node,
            gpus=tuple(_with_outlook(gpu, node) for gpu in gpus),
            processes=tuple(processes),
            xids=xids,
            measured_seconds=self._measured_seconds,
            runs=(
                CollectorRun("nvml", self.session.ready, 0.0, self.session.why_unread),
                CollectorRun("procfs", ok=True, duration_seconds=proc_seconds),
                *self._processes.runs(),
                CollectorRun("xid_events", not self._xids.problem, 0.0, self._xids.problem),
            ),
            simulated=self._place.simulated,
            ticks=self._ticks,
            ticks_late=self._ticks_late,
            processes_seen=self._processes.processes_seen,
        )

    def _listed_pids(self, answers: list[Collected]) -> frozenset[int]:
        """Return all pids that the driver lists, as far as known: a list that could not be read has not become empty.

        A pid that drops out is forgotten, and one that comes back may be another process by then.
        """
        for answer in answers:
            if answer.reading.processes_known:
                self._pids[answer.reading.identity.uuid] = answer.pids
        lists = [*(answer.pids for answer in answers), *self._pids.values()]
        if lists != self._listed[0]:  # the same objects mostly, which is seen at a glance
            self._listed = lists, frozenset[int]().union(*lists)
        return self._listed[1]

    def _answers(self) -> list[Collected]:
        """Return one answer for each GPU there is or should be."""
        if not self.session.ready:
            reason = self.session.why_unread
            for slot in self._slots:
                slot.session_ended(reason)
        answers = self._inventory.identify([slot.answer(self.pace.fresh_seconds) for slot in self._slots])
        present = {answer.reading.identity.uuid for answer in answers}
        opening = any(answer.reading.state is GpuState.STARTING for answer in answers)
        for gpu in self._inventory.known:
            if gpu.uuid not in present and not opening:
                state = GpuState.GONE if self.session.ready else GpuState.FAILED
                reason = "no longer enumerated by the driver" if self.session.ready else self.session.why_unread
                answers.append(Collected(GpuReading(gpu, state, reason, time_seconds=self._clock.now())))
        return answers

    def _node(self, gpus: Sequence[GpuReading], now_seconds: float) -> NodeReading:
        shares = any(gpu.identity.memory_kind is not MemoryKind.DEDICATED for gpu in gpus)
        memory = self._place.host_memory() if shares else None
        pressure = self._place.memory_pressure() if shares else None
        unified = any(gpu.identity.unified_memory for gpu in gpus)
        versions = self.session.versions
        return NodeReading(
            nvml_state=self.session.state,
            nvml_reason=self.session.reason,
            driver_version=versions.driver,
            nvml_version=versions.nvml,
            cuda_version=versions.cuda,
            boot_id=self._place.boot_id,
            host_pid_namespace=self._processes.host_pid_namespace,
            gpus_expected=max(len(self._inventory.known), self.session.gpu_count, self._pci_count or 0),
            gpus_doubt=self._indices.uncertainty,
            pci_gpus=self._pci_count,
            nvml_initializations=self._driver.initializations,
            host_memory=memory,
            memory_pressure=pressure,
            memory_outlook=self._memory_watch.observe(now_seconds, memory, pressure) if unified else None,
            pause=self.session.asked,
        )


def _with_outlook(gpu: GpuReading, node: NodeReading) -> GpuReading:
    if not gpu.identity.unified_memory or node.memory_outlook is None or gpu.state is GpuState.GONE:
        return gpu
    return replace(gpu, stall_imminent=node.memory_outlook.risk is StallRisk.IMMINENT)
