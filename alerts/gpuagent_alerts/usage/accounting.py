"""The usage ledger as the service sees it: fed with every snapshot, kept in the daily table, asked for a summary.

Counters go on from where they were only after an orderly end. After a crash they begin at zero, as those of any program
do: what was exported last may be more than what was written, and a counter that falls to any other value than zero
would be counted twice. The daily table then lacks what was used since it was written last.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpuagent.core.clock import Clock
from gpuagent.core.metrics.series import ExtraFamilies
from gpuagent.core.metrics.usage import USAGE_FAMILIES
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.usage import UsageFigures
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.usage import UsageDays
from gpuagent_alerts.usage.ledger import Ledger, UsageChange
from gpuagent_alerts.usage.summary import Document, GroupBy, Price, usage_document

log = logging.getLogger(__name__)

SAVE_SECONDS = 60.0
_COUNTERS_KEY = "usage_counters"
_MOST_COUNTER_BYTES = 2**20
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class UsageSettings:
    """What the configuration says of the ledger."""

    price: Price | None = None
    idle_limit_seconds: float | None = None
    keep_days: int = 35


class UsageAccounting:
    """The ledger, its table and its figures. For one event loop."""

    save_interval_seconds = SAVE_SECONDS

    def __init__(
        self,
        settings: UsageSettings,
        clock: Clock,
        store: Store,
        longest_gap_seconds: float,
        *,
        node: str = "",
        simulated: str = "",
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._days = UsageDays(store)
        self._ledger = Ledger(longest_gap_seconds)
        self._node = node
        self._simulated = simulated
        self._figures: UsageFigures | None = None
        self._pending: list[tuple[str, list[UsageChange]]] = []
        """What is still to be written, by day."""
        self._saving = asyncio.Lock()
        self._fails = False
        self._observing_fails = False

    def reconfigure(self, settings: UsageSettings) -> None:
        """Go by other settings from now on; nothing that was counted changes."""
        self._settings, self._figures = settings, None

    def open(self) -> None:
        """Go on from the counters of an orderly end, and from none else: they are taken out of the store."""
        self._store.at_start(self._days.check, None)
        if self._simulated:
            return
        text = self._store.meta_at_start(_COUNTERS_KEY, str)
        self._store.at_start(lambda: self._store.execute("DELETE FROM meta WHERE key = ?", (_COUNTERS_KEY,)), None)
        if text:
            try:
                self._ledger.restore(text)
            except ValueError as error:
                log.warning("%s; they begin at zero", error)

    def observe(self, snapshot: Snapshot) -> None:
        """Account for a snapshot. Should that fail, it is logged once: the tick is worth more."""
        try:
            self._ledger.observe(snapshot)
        except Exception:
            if not self._observing_fails:
                log.exception("the usage ledger failed: time is missing in it until it works again")
            self._observing_fails = True
        else:
            self._observing_fails = False
        self._figures = None

    def further(self) -> ExtraFamilies:
        """Return the series of the ledger."""
        return USAGE_FAMILIES, self.figures()

    def figures(self) -> UsageFigures:
        """Return the ledger as it is, the same object until something is new."""
        if self._figures is None:
            price = self._settings.price
            self._figures = UsageFigures(
                self._ledger.usage(),
                self._ledger.totals(),
                None if price is None else price.per_gpu_hour,
                "" if price is None else price.currency,
                self._settings.idle_limit_seconds,
            )
        return self._figures

    async def save(self) -> None:
        """Write what was used since the last time to the daily table, in a thread."""
        async with self._saving:
            today = self._today()
            if changes := self._ledger.take_changes(self._clock.now()):
                self._pending.append((today, changes))
            try:
                await asyncio.to_thread(self._write, today)
            except StoreFailure as error:
                if not self._fails:
                    log.warning("the daily table of the usage ledger cannot be written: %s", error)
                self._fails = True
            else:
                self._fails = False
            del self._pending[: -24 * 60]  # a day of failures

    def _write(self, today: str) -> None:
        oldest = _day_before(today, self._settings.keep_days - 1)
        while self._pending:
            day, changes = self._pending[0]
            self._days.add(day, oldest, changes)
            self._pending.pop(0)

    async def close(self) -> None:
        """Write everything down, the counters too, before the store is closed."""
        await self.save()
        if self._simulated or self._pending:
            return
        text = self._ledger.dump()
        if len(text) < _MOST_COUNTER_BYTES:
            try:
                await asyncio.to_thread(self._store.set_meta, _COUNTERS_KEY, text)
            except StoreFailure as error:
                log.warning("the counters of the usage ledger cannot be kept, they begin at zero: %s", error)

    async def document(self, by: GroupBy, since_seconds: float) -> Document:
        """Return who has used the GPUs in the last `since_seconds`, by whole days (UTC). Raises StoreFailure."""
        await self.save()
        first = since_day(self._clock.wall(), since_seconds)
        first = max(first, _day_before(self._today(), self._settings.keep_days - 1))
        rows = await asyncio.to_thread(self._days.read, first)
        return usage_document(
            rows, by, first, self._clock.wall(), self._settings.price, node=self._node, simulated=self._simulated
        )

    async def document_of(self, by: GroupBy, first_day: str, last_day: str) -> Document:
        """Return who has used the GPUs from one day to another, both included. Raises StoreFailure."""
        await self.save()
        rows = [row for row in await asyncio.to_thread(self._days.read, first_day) if row.day <= last_day]
        return usage_document(
            rows, by, first_day, self._clock.wall(), self._settings.price, node=self._node, simulated=self._simulated
        )

    def _today(self) -> str:
        return since_day(self._clock.wall(), 0.0)


def since_day(wall_seconds: float, since_seconds: float) -> str:
    """Return the day (UTC) on which a period that ends now began; a period of whole days begins the day after that.

    >>> since_day(1764300000.0, 0), since_day(1764300000.0, 86400), since_day(1764300000.0, 7 * 86400)
    ('2025-11-28', '2025-11-28', '2025-11-22')
    """
    whole_days = since_seconds >= _DAY and not since_seconds % _DAY
    begin = wall_seconds - since_seconds + (_DAY if whole_days else 0.0)
    return f"{datetime.fromtimestamp(begin, UTC):%Y-%m-%d}"


def _day_before(day: str, days: int) -> str:
    return f"{datetime.fromisoformat(day) - timedelta(days=days):%Y-%m-%d}"
