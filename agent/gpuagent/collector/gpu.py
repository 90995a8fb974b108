"""Follow one GPU over time: opened, read, lost, blind, and back. What is known of it outlives its handle."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from gpuagent.collector.sleep import IdleGpuTracker, RuntimePower
from gpuagent.collector.trust import TrustRegistry
from gpuagent.collector.workers import ElasticThreadPool, Worker
from gpuagent.core.clock import Clock
from gpuagent.core.hardware import Utilization
from gpuagent.core.snapshot import CollectorRun, GpuIdentity, GpuReading, GpuState
from gpuagent.core.wording import MPS_UNKNOWN, NO_PCI_ADDRESS, SHUFFLED_LIST
from gpuagent.driver.backend import LONGEST_GAP_SECONDS, Collected, Driver, DriverFailure, GpuCollector, WatchedGpu

log = logging.getLogger(__name__)

_SHARED_IDENTITY = "another GPU answered with its UUID or PCI address"
_OPENING_SECONDS = 5.0
"""Attaching to a sleeping GPU takes 1.5 s and more (https://github.com/pop-os/system76-power/issues/492)."""


_OPENS_SLOWLY = (GpuState.STARTING, GpuState.ASLEEP)


class GpuSlot:
    """The GPU at one NVML index, read by one thread at a time for as long as the agent runs.

    A collection that has not come back leaves the slot blind: it is waited for, and no second one begins. A late answer
    is used while it is younger than `fresh_seconds`, so that a slow GPU is slow and not blind.
    """

    def __init__(
        self,
        driver: Driver,
        index: int,
        clock: Clock,
        threads: ElasticThreadPool,
        known: GpuIdentity | None,
        trusts: TrustRegistry,
        address_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.index = index
        self.identity = known or GpuIdentity(index=index, uuid="")
        self.worker = Worker(threads)
        self.slow_due = True
        """The next collection reads the slow collectors too."""
        self._driver = driver
        self._clock = clock
        self._collector: GpuCollector | None = None
        self._opened_generation = 0
        self._driver_version = ""
        self._longest_gap_seconds = LONGEST_GAP_SECONDS
        self._last: Collected | None = None
        self._unsupported: tuple[tuple[str, str], ...] = ()
        self._reopen_slow_only = False
        self._measured_seconds: float | None = None
        self._state = GpuState.STARTING
        self._since = clock.now()
        self._reason = ""
        self._address_of = address_of
        self._trusts = trusts
        self._trust = trusts.for_gpu(self.identity)
        self._conflict = ""
        self._rest = IdleGpuTracker()
        self._may_sleep = False
        self._before_rest: GpuReading | None = None
        """Last reading before it was left alone."""

    def let_sleep(self, read_power: Callable[[str], RuntimePower | None]) -> bool:
        """Return whether to leave the GPU alone at this tick, so that it can power down.

        Of one that may not sleep, as on servers, the power is looked at again at the slow rate only.
        """
        if not (self._may_sleep or self.slow_due):
            return False
        power = read_power(self.identity.pci_bus_id)
        self._may_sleep = power is not None and power.may_sleep
        last = self._last
        used = last is not None and bool(last.processes or (last.reading.utilization or Utilization()).gpu_ratio)
        reading = last.reading if last is not None else self._before_rest
        if self.worker.busy:
            return False
        rests = self._rest.update(self._clock.now(), power, reading, used=used)
        if rests:
            self._before_rest = reading
            self._last = None
            self._become(GpuState.ASLEEP, self._rest.reason)
        else:
            self._before_rest = None
        return rests

    @property
    def is_identified(self) -> bool:
        """Whether the GPU has said in this session which one it is; until then it is taken for the one that it was."""
        return self._last is not None

    @property
    def watched(self) -> WatchedGpu | None:
        """The open handle, for the event thread."""
        collector = self._collector
        if collector is None:
            return None
        return WatchedGpu(self.index, self.identity.uuid, collector.handle)

    def begin(self, generation: int, driver_version: str, longest_gap_seconds: float = LONGEST_GAP_SECONDS) -> bool:
        """Start a collection; False if the last one has not come back.

        A GPU that was lost is looked for at the slow rate only: each try makes the driver probe dead hardware.
        """
        slow = self.slow_due
        if self.worker.busy or (self._reopen_slow_only and not slow and self._opened_generation == generation):
            return False
        self.slow_due = False
        self._driver_version = driver_version
        self._longest_gap_seconds = longest_gap_seconds
        return self.worker.start(lambda: self._collect(generation, slow=slow))

    def take_result(self, fresh_seconds: float) -> DriverFailure | None:
        """Take the answer of a finished collection; returns the failure if it says that the session has ended.

        An answer that is no longer fresh does not make a blind GPU a seeing one: the next collection will tell.
        """
        outcome = self.worker.take_result()
        if outcome is None:
            return None
        if outcome.error is None:
            reading = outcome.value.reading
            self._identify(reading.identity)
            self._unsupported = reading.unsupported or self._unsupported
            self._reopen_slow_only = False
            if reading.state is GpuState.OK:
                self._measured_seconds = reading.time_seconds
            fresh = self._clock.now() - reading.time_seconds <= fresh_seconds
            self._trust.observe(outcome.value.contradiction, reading.time_seconds, 2 * fresh_seconds)
            if not fresh or reading.state is not GpuState.OK:
                self._trust.interrupt()
            self._last = outcome.value if fresh else None
            if fresh:
                self._become(reading.state, reading.reason)
            return None
        self._last = None
        self._trust.interrupt()
        failure = outcome.error
        if isinstance(failure, DriverFailure) and failure.ends_session:
            self._become(GpuState.FAILED, str(failure))
            return failure
        self._reopen_slow_only = True
        lost = isinstance(failure, DriverFailure) and failure.unreachable
        self._become(GpuState.LOST if lost else GpuState.FAILED, str(failure))
        return None

    def answer(self, fresh_seconds: float) -> Collected:
        """Return what to show at this tick: the last collection if it is fresh, else a reading that says why not."""
        if self.worker.busy:
            age = None if self._last is None else self._clock.now() - self._last.reading.time_seconds
            if age is None or age > fresh_seconds:
                self._last = None
                self._trust.interrupt()
                if self._state not in _OPENS_SLOWLY or self.worker.busy_seconds > _OPENING_SECONDS:
                    self._become(GpuState.BLIND, "a call into the driver has not come back")
        if self._state is GpuState.ASLEEP:
            asleep = self.absent(GpuState.ASLEEP, self._reason)
            return Collected(dataclasses.replace(asleep, runs=()))
        last = self._last
        if last is not None:
            if self._conflict:
                last = last.withheld(self._conflict)
            reading = dataclasses.replace(
                last.reading,
                since_seconds=self._since,
                unsupported=self._unsupported,
                measured_seconds=self._measured_seconds,
                act_refusal=self._act_refusal(last),
            )
            return dataclasses.replace(last, reading=reading)
        return Collected(self.absent(self._state, self._reason))

    def set_conflict(self, reason: str) -> None:
        """Take note that another GPU answers by the same UUID or PCI address; "" if none does.

        Whose processes are whose cannot be told then.
        """
        self._conflict = reason
        if reason:
            self._trust.observe(_SHARED_IDENTITY if self.identity.uuid else reason, self._clock.now())

    def _identify(self, identity: GpuIdentity) -> None:
        before, self.identity = self.identity, identity
        if (before.uuid, before.pci_bus_id) != (identity.uuid, identity.pci_bus_id):
            self._trust = self._trusts.for_gpu(identity)

    def _act_refusal(self, last: Collected | None = None) -> str:
        """Return the first reason against acting on this GPU's processes, by what is known of it and by an answer."""
        if self._trust.refusal or last is None:  # which GPUs those are is told while it is so: numbers change
            return self._trust.refusal.replace(_SHARED_IDENTITY, self._conflict or _SHARED_IDENTITY)
        if not last.reading.processes_trusted:
            return SHUFFLED_LIST
        if not last.reading.identity.pci_bus_id:
            return NO_PCI_ADDRESS
        return MPS_UNKNOWN if last.reading.processes_known and not last.kinds_known else ""

    def absent(self, state: GpuState, reason: str) -> GpuReading:
        """Return a reading without values: the GPU is known, its figures are not."""
        return GpuReading(
            identity=self.identity,
            state=state,
            reason=reason,
            time_seconds=self._clock.now(),
            since_seconds=self._since,
            measured_seconds=self._measured_seconds,
            runs=tuple(
                CollectorRun(name, ok=False, duration_seconds=0.0, reason=reason) for name in self._driver.collectors
            ),
            unsupported=self._unsupported,
            act_refusal=self._act_refusal(),
        )

    def session_ended(self, reason: str) -> None:
        """Note that all handles are worthless; the next generation opens the GPU anew. No reason: it is about to."""
        self._last = None
        self._reopen_slow_only = False
        self._trust.interrupt()
        self._become(GpuState.FAILED if reason else GpuState.STARTING, reason, quiet=True)

    def close(self) -> None:
        """Give back what the driver allocated: in the session's worker, with this slot's worker idle."""
        collector, self._collector = self._collector, None
        if collector is not None:
            collector.close()

    def _collect(self, generation: int, *, slow: bool) -> Collected:
        """Collect, in a thread of the pool."""
        if self._collector is None or self._opened_generation != generation:
            self._collector = None
            self._opened_generation = generation
            self._collector = self._driver.open_gpu(self.index, self._clock, self._driver_version, self._address_of)
            slow = True
        try:
            return self._collector.collect(slow=slow, longest_gap_seconds=self._longest_gap_seconds)
        except DriverFailure:
            self._collector = None
            raise

    def _become(self, state: GpuState, reason: str, *, quiet: bool = False) -> None:
        if state is not self._state:
            if not quiet and (state is not GpuState.OK or self._state is not GpuState.STARTING):
                level = logging.INFO if state in (GpuState.OK, GpuState.ASLEEP) else logging.WARNING
                log.log(level, "GPU %d %s: %s%s", self.index, self.identity.uuid, state, reason and f" ({reason})")
            self._since = self._clock.now()
        self._state = state
        self._reason = reason
