"""The leak detector on a node: fed with every snapshot, reloaded, and kept over a restart.

A leak that needs a day to be seen must not be forgotten at every upgrade.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuagent.core.clock import CLOCK_STEP_SECONDS, Clock
from gpuagent.core.growth import Growth, MemoryKey, shifted
from gpuagent.core.metrics.growth import DETECTOR_FAMILIES
from gpuagent.core.metrics.series import ExtraFamilies
from gpuagent.core.snapshot import ProcessReading, Snapshot
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.device import is_readable
from gpuagent_alerts.leak.gpu_sensor import GpuSensor, GrowthChanges
from gpuagent_alerts.leak.histories import Histories
from gpuagent_alerts.leak.lives import ServiceRow
from gpuagent_alerts.leak.overrides import Override
from gpuagent_alerts.leak.settings import Sensitivity
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.leaks import LeakHistories, LeakHistory, LeakKey
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

KEEP_SECONDS = 15.0
MOST_AT_A_TIME = 32
"""About 128 KiB, and a millisecond of the event loop. With more histories each is written less often: they are worth
hours, and some minutes more are no loss."""
_SWEEP_SECONDS = 15.0


class LeakSensor:
    """Fed with every snapshot, in order. For one thread."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._gpus: dict[str, GpuSensor] = {}
        self._growth: Mapping[MemoryKey, Growth] = {}
        self._swept_seconds = 0.0
        self._to_unix: float | None = None
        """Leads from CLOCK_BOOTTIME to the Unix times of what was said."""

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what is said of it. What could not be read has no growth, and its history waits."""
        now = snapshot.clock_seconds
        to_unix = self._follow_wall_clock(snapshot.time_seconds - now)
        by_gpu: dict[str, list[ProcessReading]] = defaultdict(list)
        for process in snapshot.processes:
            by_gpu[process.gpu_uuid].append(process)
        sweep = now - self._swept_seconds >= _SWEEP_SECONDS
        chooses = self._histories.take_chosen_anew(sweep=sweep)
        changes: GrowthChanges = {}
        for reading in snapshot.gpus:
            uuid = reading.identity.uuid
            if not uuid:
                continue
            gpu = self._gpus.get(uuid)
            if gpu is None:
                gpu = self._gpus[uuid] = GpuSensor(uuid, self._histories, snapshot.node.boot_id)
            if chooses:
                gpu.choose(by_gpu[uuid], snapshot.clients, now)
            if not is_readable(reading):
                gpu.hide(changes)
            elif gpu.is_new(reading):
                gpu.observe(reading, by_gpu[uuid], snapshot.clients, now, to_unix, changes)
                if sweep:
                    gpu.sweep(now)
        if sweep:
            self._swept_seconds = now
            self._histories.sweep(now)
        self._hide_gone(snapshot, changes)
        self._apply(changes)
        return replace(snapshot, growth=self._growth)

    def _follow_wall_clock(self, to_unix: float) -> float:
        """Return what leads to Unix times. A wall clock that is set changes nothing of how long ago growth began."""
        before = self._to_unix
        if before is not None and abs(to_unix - before) <= CLOCK_STEP_SECONDS:
            return before
        self._to_unix = to_unix
        if before is not None:
            for gpu in self._gpus.values():
                gpu.shift_wall_clock(to_unix - before)
            self._growth = {key: shifted(growth, to_unix - before) for key, growth in self._growth.items()}
        return to_unix

    def _hide_gone(self, snapshot: Snapshot, changes: GrowthChanges) -> None:
        """Hide GPUs that are gone: the driver was reloaded, or a GPU has another name now."""
        seen = {reading.identity.uuid for reading in snapshot.gpus}
        for uuid in self._gpus.keys() - seen:
            self._gpus[uuid].hide(changes)

    def _apply(self, changes: GrowthChanges) -> None:
        """Apply changes to a new mapping: what was handed out is never changed, and stays while nothing is new."""
        changed = {key: growth for key, growth in changes.items() if self._growth.get(key) is not growth}
        if changed:
            merged = {**self._growth, **changed}
            self._growth = {key: growth for key, growth in merged.items() if growth is not None}


class LeakDetection:
    """The leak detector as the service sees it: one object to feed, to reload, to keep and to stop. For one event loop.

    Without a `store` nothing is remembered over a restart: a simulated node begins its story anew with every agent.
    """

    keep_interval_seconds = KEEP_SECONDS

    def __init__(
        self,
        sensitivity: Sensitivity,
        clock: Clock,
        *,
        store: Store | None = None,
        boot_id: str = "",
        detector_type: type[MemoryLeakDetector] = MemoryLeakDetector,
        overrides: Sequence[Override] = (),
    ) -> None:
        self._histories = Histories(sensitivity, detector_type=detector_type)
        self._histories.use(sensitivity, overrides)
        self._sensor = LeakSensor(self._histories)
        self._stored = None if store is None else LeakHistories(store)
        self._clock = clock
        self._boot_id = boot_id
        self._observing_fails = False
        self.snapshot: Snapshot | None = None
        """The last one, with what is said of it."""
        self._keeping_fails = False

    def open(self) -> None:
        """Go on with what the agent before has kept, in this boot."""
        if self._stored is not None:
            self._histories.restore(self._stored.load(self._boot_id), self._clock.now())
            self._histories.lives.restore(self._stored.load_services())

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the detector's verdicts; without, should it fail: the tick is worth more."""
        try:
            observed = self._sensor.observe(snapshot)
        except Exception:
            if not self._observing_fails:
                log.exception("the leak detector failed: nothing is said of leaks until it works again")
            self._observing_fails = True
            return snapshot
        self._observing_fails = False
        self.snapshot = observed
        return observed

    def use(self, sensitivity: Sensitivity, overrides: Sequence[Override] = ()) -> None:
        """Judge by another sensitivity from now on, for the node or for some processes; every history stays."""
        self._histories.use(sensitivity, overrides)

    @property
    def histories(self) -> Histories:
        """All that is remembered."""
        return self._histories

    async def keep(self, most: int | None = MOST_AT_A_TIME) -> None:
        """Write down, in a thread, what was written down longest ago. To be called every `keep_interval_seconds`."""
        if self._stored is None:
            return
        rows = self._histories.to_keep(self._clock.now(), most)
        gone = self._histories.take_gone()
        broken = self._histories.take_broken()
        services = self._histories.lives.take_changed()
        try:
            await asyncio.to_thread(_save, self._stored, (rows, gone, broken), services)
        except StoreFailure as error:
            if services is not None:
                self._histories.lives.keep_again()
            if not self._keeping_fails:
                log.warning("what the leak detector remembers cannot be kept: %s", error)
            self._keeping_fails = True
        else:
            self._keeping_fails = False

    async def close(self) -> None:
        """Write all histories down, before the store is closed."""
        self._histories.note_lives()
        await self.keep(most=None)

    def further(self) -> ExtraFamilies:
        """Return the series of the detector itself."""
        return DETECTOR_FAMILIES, self._histories.watching


def _save(
    stored: LeakHistories,
    histories: tuple[list[LeakHistory], set[LeakKey], Mapping[LeakKey, str]],
    services: list[ServiceRow] | None,
) -> None:
    rows, gone, broken = histories
    for key, reason in broken.items():
        stored.set_aside(key, reason)
    stored.save(rows, gone)
    if services is not None:
        stored.save_services(services)
