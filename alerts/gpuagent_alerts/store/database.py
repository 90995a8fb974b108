"""One SQLite database, used by all who have something to keep: short synchronous calls, from any thread.

When writing to the file fails for good (a full disk, a damaged page), everything goes on in memory, with what the file
held, and `heal` takes it back to the file once that works: alerting must not end with the disk that it may be about.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gpuagent_alerts.store.opening import configure, open_file, open_memory, reopen
from gpuagent_alerts.store.problem import StoreFailure, StoreProblem, Trouble
from gpuagent_alerts.store.schema import STEPS, Step

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
Value = str | bytes | int | float | None
T = TypeVar("T")

_LOST = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
"""After these the file is of no use for now; after others, such as SQLITE_BUSY, the next try may work."""


class Store:
    """Opens the file, or a database in memory where there is no path; `problem` says when it is not as it should be."""

    def __init__(self, path: Path | None, *, steps: Sequence[Step] = STEPS) -> None:
        self.problem: StoreProblem | None = None
        self._path = path
        self._steps = steps
        self._lock = threading.RLock()
        self._depth = 0
        self._moves = 0
        self._afterwards: list[Callable[[], None]] = []
        db = None
        if path is not None:
            db, self.problem = open_file(path, steps)
        self._db = db or open_memory(steps)
        if self.problem is not None:
            log.error("%s", self.problem)

    @property
    def changes(self) -> tuple[int, int]:
        """Another value after whatever has changed, for those who keep what they have read. It costs no query."""
        try:
            return self._moves, self._db.total_changes
        except sqlite3.Error:  # closed: reading will say so
            return self._moves, -1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is kept, or nothing. One inside another is part of it.

        Raises StoreFailure when it could not be kept.
        """
        with self._lock:
            if self._depth:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
                return
            yield from self._outermost()
            afterwards, self._afterwards = self._afterwards, []
        for call in afterwards:
            call()

    def _outermost(self) -> Iterator[None]:
        self._depth = 1
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            self._consider(error)
            raise StoreFailure(str(error)) from None
        except BaseException:
            self._undo()
            raise
        finally:
            self._depth = 0

    def _undo(self) -> None:
        self._afterwards.clear()
        with suppress(sqlite3.Error):  # there may be no transaction, or SQLite has undone it itself
            self._db.execute("ROLLBACK")

    def insist(self, work: Callable[[], T]) -> T:
        """Do it again if the store failed: what fails in the file mostly works in memory. Raises StoreFailure."""
        try:
            return work()
        except StoreFailure:
            return work()

    def execute(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Run one statement; outside of a transaction it is one by itself. Raises StoreFailure."""
        with self.transaction():
            return self._db.execute(sql, values).fetchall()

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        """Run one statement for each row of values. Raises StoreFailure."""
        with self.transaction():
            self._db.executemany(sql, rows)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call once the transaction under way is kept, and never if it is not. Only inside of one."""
        self._afterwards.append(call)

    def meta(self, key: str) -> str | None:
        """A single value by its name."""
        rows = self.execute("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        """Keep a single value under a name."""
        self.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
        )

    def heal(self) -> bool:
        """Take what is in memory back to the file, if writing failed before; returns whether that worked now."""
        if self._path is None or self.problem is None or self.problem.trouble is not Trouble.WRITES_FAIL:
            return False
        with self._lock:
            db = None
            try:
                db = reopen(self._path)
                self._db.backup(db)
                configure(db)
            except (OSError, sqlite3.Error):
                if db is not None:
                    db.close()
                return False
            self._db.close()
            self._db, self.problem = db, None
            self._moves += 1
        log.warning("the state of alerts is written to %s again", self._path)
        return True

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()

    def _consider(self, error: sqlite3.Error) -> None:
        """Go on in memory, with what the file held, if it is of no use."""
        lost = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _LOST
        if not lost or self._path is None or (self.problem is not None and self.problem.in_memory):
            return
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            self._db.backup(memory)
        except sqlite3.Error:
            memory.close()
            memory = open_memory(self._steps)
        with suppress(sqlite3.Error):
            self._db.close()
        self._db = memory
        self._moves += 1
        self.problem = StoreProblem(Trouble.WRITES_FAIL, self._path, str(error), in_memory=True)
        log.error("%s", self.problem)
