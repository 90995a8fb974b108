"""The agent's own log: lines for people, JSON for shippers, fields and priorities for journald.

Its native protocol is one datagram an entry: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/

A defect in what runs each second would else fill a disk with the same page before anyone has read the first.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

SOCKET = Path("/run/systemd/journal/socket")
PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
FIELDS = "fields"
"""In `extra` of a logging call: `extra={"fields": {"XID": 79}}` becomes the field GPUAGENT_XID."""


def is_journal(stream: str, descriptor: int = 2) -> bool:
    """Return whether $JOURNAL_STREAM names this descriptor: a child may have inherited the variable alone."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


class JournalHandler(logging.Handler):
    """Never waits for journald: what it has no room for is counted, and told with the next line that it takes."""

    def __init__(self, path: Path = SOCKET) -> None:
        super().__init__()
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line; a fault in it is the caller's, and costs no more than the line."""
        try:
            entry = self._entry(record)
        except Exception:  # noqa: BLE001  logging's own rule: see Handler.handleError
            self.handleError(record)
            return
        if self._lost:
            entry["GPUAGENT_LOST_LINES"] = self._lost
        try:
            self._socket.sendto(_datagram(entry), self._path)
        except OSError:
            self._lost += 1
        else:
            self._lost = 0

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
        super().close()

    def _entry(self, record: logging.LogRecord) -> dict[str, object]:
        return {
            "MESSAGE": self.format(record),
            "PRIORITY": PRIORITIES.get(record.levelno, 6),
            "SYSLOG_IDENTIFIER": "gpuagent",
            "GPUAGENT_LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": record.lineno,
            "CODE_FUNC": record.funcName,
            **{f"GPUAGENT_{name}": value for name, value in getattr(record, FIELDS, {}).items()},
        }


def _datagram(entry: Mapping[str, object]) -> bytes:
    """Return the datagram of an entry; values with a line feed have their length in front."""
    parts = []
    for name, value in entry.items():
        data = str(value).encode("utf-8", "replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


TOLD_AGAIN_SECONDS: Final = 60.0
FORGOTTEN_SECONDS: Final = 3600.0
"""After so long without it, its traceback is news again."""
_MOST_FAULTS: Final = 64


@dataclass(slots=True)
class _Fault:
    told_seconds: float
    seen_seconds: float
    untold: int = 0


class Repeats(logging.Filter):
    """For a handler; a fault is the same if its kind, its words in the log and the line that raised it are."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._faults: dict[tuple[object, ...], _Fault] = {}
        self._lock = threading.Lock()
        """A handler asks its filters before it takes its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is told; one that is told again has a count in place of its traceback."""
        if not record.exc_info or record.exc_info[1] is None:
            return True
        try:
            with self._lock:
                return self._told(record, record.exc_info[1])
        except Exception:  # noqa: BLE001  words that cannot be formatted: the handler says so, who logs is not to know
            return True

    def _told(self, record: logging.LogRecord, error: BaseException) -> bool:
        now = self._seconds()
        key = (record.name, record.getMessage(), type(error), _raised_at(error.__traceback__))
        fault = self._faults.get(key)
        if fault is None or now - fault.seen_seconds > FORGOTTEN_SECONDS:
            self._faults.pop(key, None)
            if len(self._faults) >= _MOST_FAULTS:
                del self._faults[next(iter(self._faults))]
            self._faults[key] = _Fault(now, now)
            return True
        fault.seen_seconds = now
        fault.untold += 1
        if now - fault.told_seconds < TOLD_AGAIN_SECONDS:
            return False
        again = f"{record.getMessage()}: {error!r} again, {fault.untold} times in {now - fault.told_seconds:.0f} s"
        record.msg, record.args, record.exc_info, record.exc_text = again, (), None, None
        fault.told_seconds, fault.untold = now, 0
        return True


def _raised_at(trace: TracebackType | None) -> tuple[str, int] | None:
    """Return file and line of the innermost frame."""
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


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
