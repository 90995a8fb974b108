"""One traceback for one fault: what fails the same way at each tick is a line a minute, and how often it did.

A defect in what runs each second would else fill a disk with the same page before anyone has read the first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

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
        """Whether the record is told; one that is told again has a count in place of its traceback."""
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
    """File and line of the innermost frame."""
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
