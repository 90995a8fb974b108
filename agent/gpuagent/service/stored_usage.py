"""The daily table of usage, read from the state file of an agent that is not running. The file is never written."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gpuagent.config.load import ConfigError, load_config
from gpuagent.config.models import Config
from gpuagent.core.identity import node_name
from gpuagent.node import STATE_FILE
from gpuagent.service.usage import usage_settings
from gpuagent_alerts.store.tables import select
from gpuagent_alerts.store.usage import USAGE_DAYS
from gpuagent_alerts.usage.accounting import since_day
from gpuagent_alerts.usage.summary import Document, GroupBy, usage_document


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
