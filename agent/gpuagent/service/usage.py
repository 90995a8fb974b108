"""The usage ledger in the service: its settings, and the question behind `gpuagent usage`."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gpuagent.config.load import ConfigError, load_config
from gpuagent.config.models import Config
from gpuagent.core.identity import NodeIdentity, node_name
from gpuagent.driver.backend import longest_gap
from gpuagent.node import STATE_FILE, Node
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.tables import select
from gpuagent_alerts.store.usage import USAGE_DAYS
from gpuagent_alerts.usage.accounting import UsageAccounting, UsageSettings, since_day
from gpuagent_alerts.usage.summary import Document, GroupBy, Price, usage_document
from gpuagent_exporters.api.alert_routes import NotNow


def usage_settings(config: Config) -> UsageSettings:
    """Return what the configuration says of the ledger."""
    usage = config.usage
    price = None if usage.price_per_gpu_hour is None else Price(usage.price_per_gpu_hour, usage.currency)
    return UsageSettings(price, usage.idle_after, int(usage.keep // 86_400))


def usage_of(config: Config, node: Node, store: Store, where: NodeIdentity) -> UsageAccounting:
    """Return the ledger of a node; what it keeps goes to `store`."""
    return UsageAccounting(
        usage_settings(config),
        node.clock,
        store,
        longest_gap(config.poll_interval, node.clock.speed),
        node=where.node,
        simulated=node.place.simulated,
    )


class UsageCommands:
    """Answers who has used the GPUs."""

    def __init__(self, usage: UsageAccounting) -> None:
        self._usage = usage

    async def usage(self, by: str, since_seconds: float) -> Document:
        """Return the summary; `by` is one of `GroupBy`. Raises NotNow and ValueError."""
        try:
            return await self._usage.document(GroupBy(by), since_seconds)
        except StoreFailure as error:
            raise NotNow(f"the daily table of usage cannot be read: {error}") from None


class NoTable(Exception):
    """The table cannot be read, and why, in words for the person who asked."""


def read_stored_usage(path: Path | None, by: GroupBy, since_seconds: float) -> Document:
    """Return who has used the GPUs, by the configuration at `path` (None: the usual one).

    Raises:
        NoTable: there is no configuration or no table, or they cannot be read.
    """
    try:
        config: Config = load_config(path, is_root=os.geteuid() == 0)
    except ConfigError as error:
        raise NoTable(str(error)) from None
    file = config.state_dir / STATE_FILE
    now = time.time()
    first = since_day(now, since_seconds)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=2.0)) as db:
            rows = select(db, USAGE_DAYS, "WHERE day >= ? ORDER BY day", (first,)).rows
    except sqlite3.Error as error:
        raise NoTable(f"Cannot read the daily table in {file}: {error}") from None
    return usage_document(rows, by, first, now, usage_settings(config).price, node=node_name())
