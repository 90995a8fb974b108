"""The leak detector as the service sees it: one object to feed, to reload, and to stop."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuagent.catalogue.growth import WATCHING_FAMILIES
from gpuagent.catalogue.series import Further
from gpuagent.clock import Clock
from gpuagent.leaks.detectors import MakeDetectors, MemoryLeakDetectors
from gpuagent.leaks.keeper import KEEP_SECONDS, Keeper
from gpuagent.leaks.overrides import Override
from gpuagent.leaks.registry import Histories
from gpuagent.leaks.sensor import LeakSensor
from gpuagent.reading import Snapshot
from gpuagent_alerts.leak.settings import Sensitivity
from gpuagent_alerts.store.database import Store

log = logging.getLogger(__name__)


class Leaks:
    """For one event loop.

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
        make: MakeDetectors = MemoryLeakDetectors,
        overrides: Sequence[Override] = (),
    ) -> None:
        self._histories = Histories(make, sensitivity)
        self._histories.use(sensitivity, overrides)
        self._sensor = LeakSensor(self._histories)
        self._failing = False
        self.snapshot: Snapshot | None = None
        """The last one, with what is said of it."""
        self._keeper = None if store is None else Keeper(self._histories, store, clock, boot_id)

    def open(self) -> None:
        """Go on where the last agent stopped."""
        if self._keeper is not None:
            self._keeper.open()

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what the detector says of it; without, should it fail: the tick is worth more."""
        try:
            observed = self._sensor.observe(snapshot)
        except Exception:
            if not self._failing:
                log.exception("the leak detector failed: nothing is said of leaks until it works again")
            self._failing = True
            return snapshot
        self._failing = False
        self.snapshot = observed
        return observed

    def use(self, sensitivity: Sensitivity, overrides: Sequence[Override] = ()) -> None:
        """Another sensitivity from now on, for the node or for some processes; every history stays."""
        self._histories.use(sensitivity, overrides)

    @property
    def histories(self) -> Histories:
        """All that is remembered."""
        return self._histories

    async def keep(self) -> None:
        """Every `keep_interval_seconds`: write down what must not be lost."""
        if self._keeper is not None:
            await self._keeper.keep()

    async def close(self) -> None:
        """Write all of it down, before the store is closed."""
        if self._keeper is not None:
            await self._keeper.close()

    def further(self) -> Further:
        """Series of the detector itself."""
        return WATCHING_FAMILIES, self._histories.watching
