"""Open the file: its mode, its checks, its version; copy it into memory and back.

Beside `database` and `salvage` the only module that knows SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuagent_alerts.store.files import (
    COMPANIONS,
    copy_companion_aside,
    damage_in_log,
    move_aside,
    move_companion_aside,
    salvage,
    salvage_file,
)
from gpuagent_alerts.store.problem import StateOwner, StoreProblem, StoreProblemKind, owner_of
from gpuagent_alerts.store.schema import APPLICATION_ID, Step
from gpuagent_alerts.store.tables import LARGEST_INTEGER, decode_text

BUSY_MILLISECONDS = 2000
CHECK_SECONDS = 5.0
"""A file so large that the check of it takes longer is used without the rest of the check."""
LOSS_KEY = "begun_anew"
"""Key in `meta`: something that was written here has been lost, until a person has looked."""
DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
LOST = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
"""Errors after which the file is of no use for now; after others, such as SQLITE_BUSY, the next try may work."""
_STEPS = 100_000
"""Steps of SQLite's virtual machine between two looks at the clock."""


class Opened(NamedTuple):
    """Result of opening a file."""

    db: sqlite3.Connection | None
    """Connection; None where the file cannot or must not be used."""
    problem: StoreProblem | None = None
    notices: tuple[str, ...] = ()
    """Losses although the file can be used, in words."""


class _Refused(Exception):
    def __init__(self, trouble: StoreProblemKind, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


class _AnotherScenario(_Refused):
    """Made-up state of another scenario, which nobody needs any more."""


def open_memory(steps: Sequence[Step]) -> sqlite3.Connection:
    """Return a database that is lost with the process."""
    db = connect(":memory:")
    _migrate(db, steps)
    return db


def open_file(path: Path, steps: Sequence[Step], owner: StateOwner) -> Opened:
    """Return the database of a file, which is made where there is none.

    A damaged file is moved aside and a new one begun, with the rows that can still be read; another node's is moved
    aside by a real node, and left alone by a simulated one. That of another scenario is removed: it is made up.
    """
    notices: tuple[str, ...] = ()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        notices = tuple(_tend_companions(path))
        try:
            db = _open(path, steps, owner)
        except _AnotherScenario:
            for name in (path, *(path.with_name(path.name + suffix) for suffix in COMPANIONS)):
                name.unlink(missing_ok=True)
            db = _open(path, steps, owner)
    except _Refused as refused:
        if refused.trouble is StoreProblemKind.OTHER_NODE and not owner.simulated:
            return _begin_anew(path, steps, owner, refused, notices)
        if refused.trouble is not StoreProblemKind.CORRUPT:
            return Opened(None, StoreProblem(refused.trouble, path, str(refused), in_memory=True), notices)
        damage = refused
    except OSError as error:
        detail = error.strerror or "an error"
        return Opened(None, StoreProblem(StoreProblemKind.UNUSABLE, path, detail, in_memory=True), notices)
    else:
        if notices:
            note_loss(db, notices[0])
        return Opened(db, None, notices)
    return _begin_anew(path, steps, owner, damage, notices)


def rewrite(path: Path, source: sqlite3.Connection) -> sqlite3.Connection:
    """Overwrite a file with a whole database, and return it opened. Raises OSError or sqlite3.Error."""
    _make(path)
    db = connect(str(path))
    try:
        source.backup(db)
        configure(db)
    except sqlite3.Error:
        db.close()
        raise
    return db


def connect(name: str) -> sqlite3.Connection:
    """Return a connection as everybody here needs it. Transactions are ours to begin; one lock keeps threads apart."""
    db = sqlite3.connect(name, isolation_level=None, check_same_thread=False, timeout=BUSY_MILLISECONDS / 1000)
    db.text_factory = decode_text
    return db


def configure(db: sqlite3.Connection) -> None:
    """Set what has to be set anew in every connection to a file.

    WAL with synchronous=FULL loses no committed transaction at a power cut; with NORMAL it may lose the last ones
    (https://www.sqlite.org/pragma.html#pragma_synchronous). SQLite keeps pages of the file in memory, 2 MiB of them by
    itself: a file that grows by a day's messages would let the agent grow as much. Half a MiB serves as well: what it
    lacks, the kernel has (https://www.sqlite.org/pragma.html#pragma_cache_size, negative for KiB).
    """
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA journal_size_limit = 4194304")
    db.execute("PRAGMA cache_size = -512")


def checkpoint(db: sqlite3.Connection) -> bool:
    """Move the write-ahead log into the database, synced, and cut it to nothing; return whether somebody kept it so.

    Raises sqlite3.Error. See https://www.sqlite.org/pragma.html#pragma_wal_checkpoint.
    """
    return bool(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])


def note_loss(db: sqlite3.Connection, detail: str) -> None:
    """Write down that something was lost: what counts on the whole of it must know."""
    with suppress(sqlite3.Error):  # a disk that is full: the problem is told all the same
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (LOSS_KEY, detail))
        checkpoint(db)


def _begin_anew(
    path: Path, steps: Sequence[Step], owner: StateOwner, refused: _Refused, notices: tuple[str, ...]
) -> Opened:
    problem = StoreProblem(refused.trouble, path, str(refused), in_memory=True)
    try:
        aside = move_aside(path, "corrupt" if refused.trouble is StoreProblemKind.CORRUPT else "other-node")
        db = _open(path, steps, owner)
    except (OSError, _Refused):
        return Opened(None, problem, notices)
    if refused.trouble is StoreProblemKind.CORRUPT:
        with suppress(sqlite3.Error):  # a disk that is full: the next write will say so
            salvage_file(aside, db)
        if db.in_transaction:
            db.execute("ROLLBACK")
    note_loss(db, str(refused))
    return Opened(db, replace(problem, in_memory=False, moved_to=aside), notices)


def _tend_companions(path: Path) -> Iterator[str]:
    """Move aside what SQLite could not open, and say what it would pass over in silence. Raises OSError."""
    for suffix in COMPANIONS:
        companion = path.with_name(path.name + suffix)
        with suppress(FileNotFoundError):
            mode = companion.lstat().st_mode
            if not stat.S_ISREG(mode) or not os.access(companion, os.R_OK | os.W_OK):
                kept = move_companion_aside(path, suffix)
                yield f"{companion} cannot be used; it was moved to {kept}"
    log = path.with_name(f"{path.name}-wal")
    with suppress(FileNotFoundError):
        damage = damage_in_log(log)
        if damage:
            kept = copy_companion_aside(path, "-wal")
            yield f"{log} is damaged ({damage}): the last changes are lost; a copy of it is {kept}"
        elif log.stat().st_size and (not path.exists() or not path.stat().st_size):
            kept = move_companion_aside(path, "-wal")
            yield f"{log} has no database: what was in it is lost; it was moved to {kept}"


def _open(path: Path, steps: Sequence[Step], owner: StateOwner) -> sqlite3.Connection:
    _make(path)
    db = connect(str(path))
    try:
        _examine(db, len(steps), owner)
        configure(db)
        _migrate(db, steps)
        _compare(db, steps)
    except sqlite3.Error as error:
        db.close()
        damaged = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in DAMAGE
        raise _Refused(StoreProblemKind.CORRUPT if damaged else StoreProblemKind.UNUSABLE, str(error)) from None
    except _Refused:
        db.close()
        raise
    return db


def _make(path: Path) -> None:
    """Let there be a file that only its owner reads. SQLite gives its companions the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not an ordinary file")
        if stat.S_IMODE(status.st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _examine(db: sqlite3.Connection, known: int, owner: StateOwner) -> None:
    version, application = _number(db, "user_version"), _number(db, "application_id")
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (application or version or tables):
        raise _Refused(StoreProblemKind.FOREIGN, f"its application id is {application}")
    if version > known:
        raise _Refused(StoreProblemKind.NEWER, f"its version is {version}, this program knows {known}")
    if version < 0 or (tables and not version):
        raise _Refused(StoreProblemKind.CORRUPT, f"its version is {version}, and it has {tables} tables")
    found = _check(db)
    if found != "ok":
        raise _Refused(StoreProblemKind.CORRUPT, found.replace("\n", " ")[:200])
    writer = owner_of(db) if version else None
    if writer is not None and (difference := owner.differs(writer)):
        raise _Refused(StoreProblemKind.OTHER_NODE, difference)
    if writer is not None and owner.is_another_story(writer):
        raise _AnotherScenario(StoreProblemKind.OTHER_NODE, f"of the scenario {writer.scenario}")


def _check(db: sqlite3.Connection) -> str:
    """Return what SQLite finds. It compares indexes with tables: by one that lacks rows, limits forget actions."""
    until = time.monotonic() + CHECK_SECONDS
    db.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    try:
        return str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return "ok"
        raise
    finally:
        db.set_progress_handler(None, 0)


def _compare(db: sqlite3.Connection, steps: Sequence[Step]) -> None:
    """See whether the tables are those of this version, and whether rows can still be numbered."""
    ours = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    memory = open_memory(steps)
    expected = set(memory.execute(ours))
    memory.close()
    lacking = sorted(str(name) for _, name, _ in expected - set(db.execute(ours)))
    if lacking:
        raise _Refused(StoreProblemKind.CORRUPT, f"it is not as it was made: {', '.join(lacking)}"[:200])
    numbered = [name for _, name, sql in expected if "AUTOINCREMENT" in str(sql)]
    for name in numbered:
        rows = db.execute(
            f"SELECT typeof(seq), seq FROM sqlite_sequence WHERE name = ? UNION ALL SELECT 'integer', max(seq) FROM {name}",  # noqa: S608, E501  names of ours
            (name,),
        )
        for kind, number in rows.fetchall():
            if number is not None and (kind != "integer" or not -1 <= number <= LARGEST_INTEGER):
                raise _Refused(StoreProblemKind.CORRUPT, f"the rows of {name} have come to number {number!r}"[:200])


def _number(db: sqlite3.Connection, pragma: str) -> int:
    return int(db.execute(f"PRAGMA {pragma}").fetchone()[0])


def _migrate(db: sqlite3.Connection, steps: Sequence[Step]) -> None:
    for version, step in enumerate(steps[_number(db, "user_version") :], start=_number(db, "user_version") + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in step:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {version}")
            db.execute("COMMIT")
        except sqlite3.Error:
            with suppress(sqlite3.Error):  # it may have been rolled back by SQLite itself
                db.execute("ROLLBACK")
            raise


_NUMBERS_A_SECOND = 2**20


def copy_to_memory(db: sqlite3.Connection, steps: Sequence[Step], *, damaged: bool) -> tuple[sqlite3.Connection, bool]:
    """Return a database in memory with what can be read of `db`, and whether that is all of it."""
    memory = open_memory(steps)
    if not damaged:  # it copies pages as they are, damaged ones too
        with suppress(sqlite3.Error):
            db.backup(memory)
            return memory, True
    memory.close()
    memory = open_memory(steps)
    with suppress(sqlite3.Error):
        salvage(db, memory)
    if memory.in_transaction:
        memory.execute("ROLLBACK")
    return memory, False


def number_from_now(memory: sqlite3.Connection) -> None:
    """Start row ids at the current time, so that they come after those of the file and none is used twice."""
    start = int(time.time()) * _NUMBERS_A_SECOND
    tables = memory.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'")
    rows = [(name, start) for (name,) in tables.fetchall()]
    memory.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", rows)


def merge_rows(memory: sqlite3.Connection, file: sqlite3.Connection) -> None:
    """Copy every row of `memory` into `file`, which has the same tables: all of them, or none.

    A row with the key of another replaces it, being newer; of rows that are only ever appended, both are kept.
    Raises sqlite3.Error.
    """
    tables = [name for (name,) in memory.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    file.execute("BEGIN IMMEDIATE")
    try:
        for table in tables:
            if table.startswith("sqlite_"):
                continue
            rows = memory.execute(f"SELECT * FROM {table}")  # noqa: S608  names of ours
            columns = [str(column[0]) for column in rows.description]
            verb = "IGNORE" if columns[0] == "seq" else "REPLACE"
            marks = ", ".join("?" for _ in columns)
            file.executemany(
                f"INSERT OR {verb} INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608  names of ours
                rows,
            )
        file.execute("COMMIT")
    except sqlite3.Error:
        with suppress(sqlite3.Error):  # SQLite may have undone it itself
            file.execute("ROLLBACK")
        raise
