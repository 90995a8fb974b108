"""The file that the listings are kept in over restarts of the agent, within one boot."""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpuagent.procfs.pid_space import PidMark
from gpuagent.runtime.state_files import read_state, write_state

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
"""Between two attempts to write, until one succeeds."""
BEFORE_ALL = -1.0
"""A time before every process."""
_SCHEMA = 3
_LONGEST_FORGOTTEN_SECONDS = 600.0
"""A listing is over after as long without its number."""


class StoredListing(NamedTuple):
    """A number on one GPU's list. Times are CLOCK_BOOTTIME in seconds."""

    since_seconds: float
    sure_seconds: float
    used_bytes: int | None
    """On the last complete list that it was on; None where the driver did not tell."""
    highest_bytes: int
    """The most that it was listed with while its process was unproven."""
    rest_bytes: int | None
    """What others are known to hold at the least, while it is not listed; None while it is."""
    proven_ticks: int | None


class StoredTable(NamedTuple):
    """The listings of one UUID or PCI address."""

    read_seconds: float | None
    forgotten_seconds: float
    """For how long of complete lists numbers matter that were dropped before their listings were over."""
    used_bytes: int | None
    listings: Mapping[int, StoredListing]


class Stored(NamedTuple):
    """What an agent before this one has left."""

    tables: Mapping[str, StoredTable] = MappingProxyType({})
    mark: PidMark = PidMark(None, None)
    """The number space when it was written, or a little before."""


def to_document(boot_id: str, tables: Mapping[str, StoredTable], mark: PidMark) -> dict[str, object]:
    """Return what `load` reads."""
    return {
        "schema": _SCHEMA,
        "boot_id": boot_id,
        "forks": mark.forks,
        "pid_max": mark.numbers,
        "tables": {
            key: {
                "read": table.read_seconds,
                "forgot": table.forgotten_seconds,
                "used": table.used_bytes,
                "numbers": table.listings,
            }
            for key, table in tables.items()
        },
    }


def load(path: Path, boot_id: str, now_seconds: float) -> Stored:
    """Return the tables of this boot; none where the file is missing or cannot be believed.

    One time in the future (after `now_seconds`) is enough not to believe the whole file.
    """
    try:
        stored = json.loads(read_state(path))
        if stored["schema"] != _SCHEMA or stored["boot_id"] != boot_id:
            return Stored()
        tables = {str(key): _table(table, now_seconds) for key, table in stored["tables"].items()}
        return Stored(tables, PidMark(_whole(stored["forks"]), _whole(stored["pid_max"])))
    except FileNotFoundError:
        return Stored()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        log.warning("%s cannot be used: %s", path, error)
        return Stored()


def _table(stored: Mapping[str, object], now_seconds: float) -> StoredTable:
    read, numbers = stored["read"], stored["numbers"]
    if not isinstance(numbers, dict):
        raise TypeError("numbers are not an object")
    listings = {}
    for pid, (since, sure, used, highest, rest, proven) in numbers.items():
        since_seconds = _time(since, now_seconds)
        sure_seconds = BEFORE_ALL if sure == BEFORE_ALL else _time(sure, since_seconds)
        listings[int(pid)] = StoredListing(
            since_seconds, sure_seconds, _whole(used), _whole(highest) or 0, _whole(rest), _whole(proven)
        )
    read_seconds = None if read is None else _time(read, now_seconds)
    return StoredTable(read_seconds, _left(stored["forgot"]), _whole(stored["used"]), listings)


def _left(value: object) -> float:
    """Agents before wrote whether any were dropped: such a time was over after ten minutes at the most."""
    if value is True:
        return _LONGEST_FORGOTTEN_SECONDS
    return _time(value, _LONGEST_FORGOTTEN_SECONDS)


def _time(value: object, latest: float) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= latest:
        raise ValueError(f"{value!r} is no time up to {latest}")
    return float(value)


def _whole(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


class LatestWriter:
    """Write the newest document in a thread of its own: a disk that hangs holds up nothing else."""

    def __init__(
        self,
        path: Path,
        retry_seconds: float = RETRY_SECONDS,
        *,
        content: str = "the driver's listings",
        keep_old: bool = False,
    ) -> None:
        """`content` is for the log. With `keep_old` a file that cannot be replaced stays: old is better than none."""
        self._path = path
        self._retry_seconds = retry_seconds
        self._content = content
        self._keep_old = keep_old
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failing = False
        self._thread: threading.Thread | None = None

    def write(self, document: Callable[[], object]) -> None:
        """Have it written. A document that has not been begun is replaced by a newer one."""
        self._waiting.put(json.dumps(document()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._path.stem, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        text = ""
        while True:
            with suppress(queue.Empty):  # nothing newer: the one that failed is tried again
                text = self._waiting.get(timeout=self._retry_seconds if self._failing else None)
                while True:
                    text = self._waiting.get_nowait()
            self._failing = not self._written(text)

    def _written(self, text: str) -> bool:
        try:
            write_state(self._path, text)
        except OSError as error:
            if not self._failing:
                log.warning("%s cannot be saved: %s", self._content, error)
            if not self._keep_old:
                with suppress(OSError):  # a restart finds none rather than an old one; an old one tells its age
                    self._path.unlink(missing_ok=True)
            return False
        return True
