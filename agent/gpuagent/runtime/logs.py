"""The agent's own log: lines for people, JSON for shippers, priorities for journald."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from gpuagent.runtime.journal import FIELDS, PRIORITIES, SOCKET, JournalHandler, is_journal
from gpuagent.runtime.repeats import Repeats


class _Json(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in getattr(record, FIELDS, {}).items():
            entry[name.lower()] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class _Journal(logging.Formatter):
    """Where there is no journal to speak to: it takes the priority from `<N>` before each line (man 3 sd-daemon)."""

    def format(self, record: logging.LogRecord) -> str:
        priority = PRIORITIES.get(record.levelno, 6)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


def set_up(
    level: str = "info",
    style: str = "auto",
    *,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    journal: Path = SOCKET,
    on_shortage: Callable[[], None] = lambda: None,
) -> None:
    """Configure the root logger: `style` is auto, text, json or journal.

    `journal` gets its lines with their fields where standard error is the journal's, by $JOURNAL_STREAM. `on_shortage`
    is called for each line that tells of a MemoryError, before it is written.
    """
    if style == "auto":
        style = "journal" if "JOURNAL_STREAM" in environ else "text"
    if style == "journal" and stream is None and is_journal(environ.get("JOURNAL_STREAM", "")) and journal.exists():
        _use(JournalHandler(journal), logging.Formatter("%(message)s"), level, on_shortage)
        return
    formatter: logging.Formatter
    if style == "json":
        formatter = _Json()
    elif style == "journal":
        formatter = _Journal("%(message)s")
    else:
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    _use(logging.StreamHandler(stream or sys.stderr), formatter, level, on_shortage)


def _use(handler: logging.Handler, formatter: logging.Formatter, level: str, on_shortage: Callable[[], None]) -> None:
    def without_shortage(record: logging.LogRecord) -> bool:
        """Say that memory ran out, but not where: any line may be hit, none is at fault, a traceback needs memory."""
        if record.exc_info and isinstance(record.exc_info[1], MemoryError):
            on_shortage()
            record.msg, record.args = f"{record.getMessage()}: out of memory", ()
            record.exc_info = None
        return True

    def failed(record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], MemoryError):
            on_shortage()  # and the line is lost: there was nothing to write it with
        else:
            handle_error(record)

    handle_error, handler.handleError = handler.handleError, failed  # type: ignore[method-assign]
    handler.setFormatter(formatter)
    handler.addFilter(without_shortage)
    handler.addFilter(Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A line for each job that runs is no news.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
