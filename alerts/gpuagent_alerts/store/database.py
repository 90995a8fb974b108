"""One SQLite database, used by all who have something to keep: short synchronous calls, from any thread.

When writing to the file fails for good (a full disk, a damaged page), everything goes on in memory, with what the file
held, and `heal` takes it back to the file once that works: alerting must not end with the disk that it may be about.
The same goes for a file that was removed or replaced while it was open, which each transaction looks for.

Rows are read by `read`, `load` and `check` alone: what cannot be decoded is set aside there, told, and costs nothing
else.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpuagent_alerts.store.files import OpenedFiles, move_aside, move_if_any
from gpuagent_alerts.store.opening import (
    DAMAGE,
    LOSS_KEY,
    LOST,
    Opened,
    checkpoint,
    copy_to_memory,
    merge_rows,
    note_loss,
    number_from_now,
    open_file,
    open_memory,
    rewrite,
)
from gpuagent_alerts.store.problem import ANY_OWNER, OWNER_KEY, StateOwner, StoreFailure, StoreProblem, StoreProblemKind
from gpuagent_alerts.store.schema import STEPS, Step
from gpuagent_alerts.store.tables import Column, DamagedRow, QueryResult, Table, Value, select, set_aside, text

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
T = TypeVar("T")

_META: Table[str] = Table(
    "meta", ("key",), {"key": Column(), "value": Column(text, 2**20)}, lambda _, value: str(value)
)
_MOST_OWED = 1000
_PASSING = {StoreProblemKind.CORRUPT, StoreProblemKind.DAMAGED, StoreProblemKind.WRITES_FAIL, StoreProblemKind.MISSING}
"""Problems after which the file, or a new one in its place, may be written again."""


class Store:
    """Opens the file, or a database in memory where there is no path; `problem` says what is wrong with it."""

    def __init__(
        self, path: Path | None, *, steps: Sequence[Step] = STEPS, owner: StateOwner = ANY_OWNER, lost: str = ""
    ) -> None:
        """Open it. `lost` says what was here before and is gone: remedies stop until a person has looked."""
        self.problem: StoreProblem | None
        self._path = path
        self._steps = steps
        self._owner = owner
        self._lock = threading.RLock()
        self._one_heals = threading.Lock()
        self._depth = 0
        self._moves = 0
        self._afterwards: list[Callable[[], None]] = []
        self._owed: deque[Callable[[], object]] = deque(maxlen=_MOST_OWED)
        self._paying = False
        self._set_aside: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._skipped: set[tuple[str, tuple[Value, ...]]] = set()  # damaged rows that stay, and have been told of
        db, self.problem, self._notices = open_file(path, steps, owner) if path is not None else Opened(None)
        self._file_is_unread = self.problem is not None and self.problem.trouble is StoreProblemKind.CORRUPT
        """What the file holds is not all here: it is moved aside before something is written in its place."""
        self._open_files = OpenedFiles(path) if db is not None and path is not None else None  # None: all in memory
        self._db = db or open_memory(steps)
        if db is None and path is not None:
            number_from_now(self._db)
        self.remarks = [lost] if lost else []
        """Other things that are wrong with the state, in words, found by others."""
        _log(self.problem, *self._notices, *self.remarks)
        with suppress(StoreFailure):  # said again, and told, at the next write
            if self.meta_at_start(OWNER_KEY, StateOwner.load) != owner:
                self.set_meta(OWNER_KEY, owner.dump())
            if lost:
                self.set_meta(LOSS_KEY, lost)

    @property
    def set_aside_rows(self) -> Mapping[str, int]:
        """Number of rows of each table that could not be read since the start."""
        return dict(self._set_aside)

    @property
    def problem_text(self) -> str:
        """Everything that is wrong with the state, in words; "" where nothing is."""
        said = [] if self.problem is None else [str(self.problem)]
        said += (*self._notices, *self.remarks)
        if self._set_aside:
            tables = ", ".join(f"{n} of {name} ({self._reasons[name]})" for name, n in sorted(self._set_aside.items()))
            said.append(f"rows of the state could not be read and were set aside: {tables}")
        return "; ".join(said)

    @property
    def has_lost_rows(self) -> bool:
        """Whether something that was written here may be lost, as far as nobody has looked (`forget_loss`)."""
        return bool(self.execute("SELECT 1 FROM meta WHERE key = ?", (LOSS_KEY,)))

    def forget_loss(self) -> None:
        """Forget the loss: a person has looked. Raises StoreFailure."""
        self.execute("DELETE FROM meta WHERE key = ?", (LOSS_KEY,))

    @property
    def changes(self) -> tuple[int, int]:
        """Another value after whatever has changed, for those who keep what they have read. It costs no query."""
        try:
            return self._moves, self._db.total_changes
        except sqlite3.Error:  # closed: reading will say so
            return self._moves, -1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep everything inside, or nothing. One inside another is part of it.

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
        self.pay()

    def _outermost(self) -> Iterator[None]:
        self._notice_missing_file()
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

    def checkpoint(self) -> None:
        """Move what was committed into the database itself: a write-ahead log that is lost later costs none of it.

        Outside of transactions. Raises StoreFailure when it could not be done.
        """
        with self._lock:
            self._notice_missing_file()
            try:
                busy = checkpoint(self._db)
            except sqlite3.Error as error:
                self._consider(error)
                raise StoreFailure(str(error)) from None
        if busy:
            raise StoreFailure("another program is using the state file")

    def insist(self, work: Callable[[], T]) -> T:
        """Repeat it if the store failed: what fails in the file mostly works in memory. Raises StoreFailure."""
        try:
            return work()
        except StoreFailure:
            return work()

    def at_start(self, work: Callable[[], T], otherwise: T) -> T:
        """Run it, whatever is wrong with the file: in memory where that is of no use. An agent starts in any case."""
        try:
            return self.insist(work)
        except StoreFailure as error:
            with self._lock:
                self._go_to_memory(str(error), damaged=False)
        try:
            return work()
        except StoreFailure as error:
            log.error("a part of the state cannot be used, and begins anew: %s", error)  # noqa: TRY400
            return otherwise

    def owe(self, work: Callable[[], object]) -> None:
        """Keep work that failed, until the store can be written: it is tried after each transaction, in order."""
        self._owed.append(work)

    def pay(self) -> bool:
        """Try what is owed; returns whether nothing is owed any more."""
        with self._lock:
            if self._paying or self._depth:
                return not self._owed
            self._paying = True
            try:
                while self._owed:
                    self._owed[0]()
                    self._owed.popleft()
            except StoreFailure:
                return False
            finally:
                self._paying = False
        return True

    def read(self, table: Table[T], rest: str = "", values: Sequence[Value] = ()) -> list[T]:
        """Return the rows of a query, decoded. `rest` is SQL after the name of the table. Raises StoreFailure.

        Those that cannot be decoded are set aside, or skipped where a table is only ever appended to.
        """
        with self.transaction():
            return self._sort_out(table, select(self._db, table, rest, values)).rows

    def check(self, table: Table[T], rest: str = "", values: Sequence[Value] = ()) -> list[DamagedRow]:
        """Read every row as `read` does, and keep only what is damaged. Raises StoreFailure."""
        with self.transaction():
            return self._sort_out(table, select(self._db, table, rest, values, keep=False)).damaged

    def load(self, table: Table[T], rest: str = "") -> list[T]:
        """Return the rows of a table at a start, decoded. Never raises: see `at_start`."""
        return self.at_start(lambda: self.read(table, rest), [])

    def set_aside(self, table: Table[T], rest: str, values: Sequence[Value], reason: str) -> None:
        """Set rows aside that turned out to be of no use after they were decoded. Raises StoreFailure."""

        def refuse(*_: object) -> T:
            raise ValueError(reason)

        self.check(replace(table, decode=refuse), rest, values)

    def _sort_out(self, table: Table[T], found: QueryResult[T]) -> QueryResult[T]:
        damaged = found.damaged
        if table.append_only:
            damaged = [row for row in damaged if (table.name, row.address) not in self._skipped]
        elif damaged:
            set_aside(self._db, table, damaged)
        if damaged:
            self.after_commit(lambda: self._tell(table, damaged))
        return found

    def _tell(self, table: Table[Any], damaged: Collection[DamagedRow]) -> None:
        self._set_aside[table.name] += len(damaged)
        reason = self._reasons[table.name] = next(iter(damaged)).reason
        if table.append_only:
            self._skipped |= {(table.name, row.address) for row in damaged}
        log.error(
            "%d of the rows of %s in the state cannot be read and were %s: %s", len(damaged), table.name,
            "passed over" if table.append_only else "set aside", reason,
        )  # fmt: skip

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
        """Return a single value by its name. Raises StoreFailure."""
        rows = self.read(_META, "WHERE key = ?", (key,))
        return rows[0] if rows else None

    def meta_at_start(self, key: str, decode: Callable[[str], T]) -> T | None:
        """Return a single value by its name, decoded; None where there is none that can be read. Never raises."""
        table = Table(_META.name, _META.key, _META.columns, lambda _, value: decode(str(value)))
        nothing: list[T] = []
        found = self.at_start(lambda: self.read(table, "WHERE key = ?", (key,)), nothing)
        return found[0] if found else None

    def set_meta(self, key: str, value: str) -> None:
        """Keep a single value under a name."""
        self.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
        )

    def heal(self) -> bool:
        """Take what is in memory back to the file, if that failed before; returns whether it worked now.

        A file of which not everything is in memory is moved aside, or, where it could not be opened at the start, gets
        what has come since: it is never overwritten.
        """
        with self._one_heals:
            with self._lock:
                if not self._depth:
                    self._notice_missing_file()
                problem = self.problem
            if self._path is None or problem is None or not problem.in_memory:
                return False
            if problem.trouble is StoreProblemKind.UNUSABLE:
                healed = self._open_again(self._path)
            else:
                healed = problem.trouble in _PASSING and self._write_anew(self._path, problem)
        if healed:
            log.warning("the state of alerts is written to %s again", self._path)
        return healed

    def _write_anew(self, path: Path, problem: StoreProblem) -> bool:
        with self._lock:
            try:
                if problem.trouble is StoreProblemKind.MISSING:
                    move_if_any(path, "replaced")
                    problem = replace(problem, trouble=StoreProblemKind.WRITES_FAIL)
                elif self._file_is_unread and problem.moved_to is None:
                    problem = replace(problem, moved_to=move_aside(path))
                self.problem = problem
                db = rewrite(path, self._db)
            except (OSError, sqlite3.Error):
                return False
            self._file_is_unread = False
            in_its_place = replace(problem, trouble=StoreProblemKind.CORRUPT, in_memory=False)
            self._use(path, db, None if problem.moved_to is None else in_its_place)
        return True

    def _open_again(self, path: Path) -> bool:
        """Try what failed at the start; what has come since is newer than what the file holds."""
        db, problem, notices = open_file(path, self._steps, self._owner)  # not under the lock: it checks the whole file
        with self._lock:
            self._notices = (*self._notices, *notices)[:8]
            if db is None:
                self.problem = problem
                return False
            try:
                merge_rows(self._db, db)
            except sqlite3.Error:
                db.close()
                return False
            if self._notices:
                note_loss(db, self._notices[0])
            self._use(path, db, problem)
            _log(problem, *notices)
        return True

    def _use(self, path: Path, db: sqlite3.Connection, problem: StoreProblem | None) -> None:
        self._db.close()
        self._db, self.problem = db, problem
        self._open_files = OpenedFiles(path)
        self._moves += 1

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
            self._open_files = None

    def _notice_missing_file(self) -> None:
        """Go on in memory where the file is not the one at its path: what is written into it would be lost."""
        files = self._open_files
        if files is not None and (detail := files.difference()):
            self._go_to_memory(detail, damaged=False, trouble=StoreProblemKind.MISSING)
            files.remove_log()

    def _consider(self, error: sqlite3.Error) -> None:
        """Go on in memory, with what the file held, if it is of no use."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        in_memory = self.problem is not None and self.problem.in_memory
        if code in DAMAGE or (code in LOST and not in_memory):
            self._go_to_memory(str(error), damaged=code in DAMAGE)

    def _go_to_memory(self, detail: str, *, damaged: bool, trouble: StoreProblemKind | None = None) -> None:
        if self._path is None:
            return
        memory, whole = copy_to_memory(self._db, self._steps, damaged=damaged)
        if not whole:
            note_loss(memory, detail)
            self._file_is_unread = True
        with suppress(sqlite3.Error):
            self._db.close()
        self._db, self._open_files = memory, None
        self._moves += 1
        trouble = trouble or (StoreProblemKind.DAMAGED if damaged else StoreProblemKind.WRITES_FAIL)
        self.problem = StoreProblem(trouble, self._path, detail, in_memory=True)
        log.error("%s", self.problem)


def _log(*told: object) -> None:
    for one in filter(None, told):
        log.error("%s", one)
