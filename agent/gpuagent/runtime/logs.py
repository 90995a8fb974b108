"""The agent's own log: lines for people, JSON for shippers, priorities for journald."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TextIO

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _Json(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _Journal(logging.Formatter):
    """journald takes the priority from `<N>` at the start of each line (man 3 sd-daemon)."""

    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


def set_up(
    level: str = "info",
    style: str = "auto",
    *,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Configure the root logger: `style` is auto, text, json or journal."""
    if style == "auto":
        style = "journal" if "JOURNAL_STREAM" in environ else "text"
    formatter: logging.Formatter
    if style == "json":
        formatter = _Json()
    elif style == "journal":
        formatter = _Journal("%(message)s")
    else:
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A line for each job that runs is no news.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
