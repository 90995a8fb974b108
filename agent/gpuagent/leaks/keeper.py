"""Takes histories over a restart: a leak that needs a day to be seen must not be forgotten at every upgrade."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gpuagent.core.clock import Clock
from gpuagent.leaks.registry import Histories
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.leaks import LeakHistories, LeakHistory, LeakKey
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

KEEP_SECONDS = 15.0
MOST_AT_A_TIME = 32
"""About 128 KiB, and a millisecond of the event loop. With more histories each is written less often: they are worth
hours, and some minutes more are no loss."""


class Keeper:
    """Writes them down now and then, in a thread, and all of them at the end. For one event loop."""

    def __init__(self, histories: Histories, store: Store, clock: Clock, boot_id: str) -> None:
        self._histories = histories
        self._kept = LeakHistories(store)
        self._clock = clock
        self._boot_id = boot_id
        self._failing = False

    def open(self) -> None:
        """Go on with what the agent before has kept, in this boot."""
        self._histories.restore(self._kept.load(self._boot_id), self._clock.now())

    async def keep(self, most: int | None = MOST_AT_A_TIME) -> None:
        """Write down those that were written down longest ago. To be called every `KEEP_SECONDS`."""
        rows = self._histories.to_keep(self._clock.now(), most)
        gone = self._histories.take_gone()
        broken = self._histories.take_broken()
        try:
            await asyncio.to_thread(self._save, rows, gone, broken)
        except StoreFailure as error:
            if not self._failing:
                log.warning("what the leak detector remembers cannot be kept: %s", error)
            self._failing = True
        else:
            self._failing = False

    def _save(self, rows: list[LeakHistory], gone: set[LeakKey], broken: Mapping[LeakKey, str]) -> None:
        for key, reason in broken.items():
            self._kept.set_aside(key, reason)
        self._kept.save(rows, gone)

    async def close(self) -> None:
        """Write all of them down."""
        await self.keep(most=None)
