"""Runs that an agent which has ended left open in the record: closed at the start and with each other file."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.manager import Remedies
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)


class OpenRuns:
    """For one event loop."""

    def __init__(self, audit: Audit, store: Store, remedies: Remedies) -> None:
        self._audit = audit
        self._store = store
        self._remedies = remedies
        self._moves: int | None = None

    @property
    def has_moved(self) -> bool:
        """Whether the store has gone to another file or to memory: the record may hold what was not seen before."""
        return self._store.changes[0] != self._moves

    async def close(self) -> None:
        """Close them, repeat nothing, and read whose end is waited for. Raises StoreFailure."""
        self._moves = self._store.changes[0]
        for run in await asyncio.to_thread(self._audit.close_open):
            log.warning("remedy %s was interrupted by the end of the agent; it is not repeated", run)
        await self._remedies.recall()

    async def close_again(self) -> None:
        """As `close`, of a file that could not be used before."""
        with suppress(StoreFailure):
            await self.close()
