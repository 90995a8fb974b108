"""Opening the file: its mode, its checks, its version. Beside `database` the only module that knows SQLite."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuagent_alerts.store.problem import StoreProblem, Trouble
from gpuagent_alerts.store.schema import APPLICATION_ID, Step

BUSY_MILLISECONDS = 2000
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_COMPANIONS = ("", "-wal", "-shm")


class _Refused(Exception):
    def __init__(self, trouble: Trouble, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


def open_memory(steps: Sequence[Step]) -> sqlite3.Connection:
    """A database that is lost with the process."""
    db = _connect(":memory:")
    _migrate(db, steps)
    return db


def open_file(path: Path, steps: Sequence[Step]) -> tuple[sqlite3.Connection | None, StoreProblem | None]:
    """The database of a file, which is made where there is none.

    A damaged file is moved aside and a new one begun. None where the file cannot or must not be used.
    """
    try:
        return _open(path, steps), None
    except _Refused as refused:
        if refused.trouble is not Trouble.CORRUPT:
            return None, StoreProblem(refused.trouble, path, str(refused), in_memory=True)
        damage = str(refused)
    except OSError as error:
        return None, StoreProblem(Trouble.UNUSABLE, path, error.strerror or "an error", in_memory=True)
    try:
        aside = _move_aside(path)
        db = _open(path, steps)
    except (OSError, _Refused):
        return None, StoreProblem(Trouble.CORRUPT, path, damage, in_memory=True)
    return db, StoreProblem(Trouble.CORRUPT, path, damage, in_memory=False, moved_to=aside)


def reopen(path: Path) -> sqlite3.Connection:
    """The database of a file that is about to be overwritten whole. Raises OSError or sqlite3.Error."""
    _make(path)
    return _connect(str(path))


def configure(db: sqlite3.Connection) -> None:
    """What has to be set anew in every connection to a file.

    WAL with synchronous=FULL loses no committed transaction at a power cut; with NORMAL it may lose the last ones
    (https://www.sqlite.org/pragma.html#pragma_synchronous). SQLite keeps pages of the file in memory, 2 MiB of them by
    itself: a file that grows by a day's messages would let the agent grow as much. Half a MiB serves as well: what it
    lacks, the kernel has (https://www.sqlite.org/pragma.html#pragma_cache_size, negative for KiB).
    """
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA journal_size_limit = 4194304")
    db.execute("PRAGMA cache_size = -512")


def _open(path: Path, steps: Sequence[Step]) -> sqlite3.Connection:
    _make(path)
    db = _connect(str(path))
    try:
        _examine(db, len(steps))
        configure(db)
        _migrate(db, steps)
    except sqlite3.Error as error:
        db.close()
        damaged = (error.sqlite_errorcode & 0xFF) in _DAMAGE
        raise _Refused(Trouble.CORRUPT if damaged else Trouble.UNUSABLE, str(error)) from None
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


def _connect(name: str) -> sqlite3.Connection:
    # Transactions are ours to begin and to end; one lock keeps the threads apart.
    return sqlite3.connect(name, isolation_level=None, check_same_thread=False, timeout=BUSY_MILLISECONDS / 1000)


def _examine(db: sqlite3.Connection, known: int) -> None:
    version, owner = _number(db, "user_version"), _number(db, "application_id")
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner != APPLICATION_ID and (owner or version or tables):
        raise _Refused(Trouble.FOREIGN, f"its application id is {owner}")
    if version > known:
        raise _Refused(Trouble.NEWER, f"its version is {version}, this program knows {known}")
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _Refused(Trouble.CORRUPT, str(found).replace("\n", " ")[:200])


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


def _move_aside(path: Path) -> Path:
    """Only the last damaged file is kept: they may be large, and nobody may ever look."""
    aside = path.with_name(f"{path.name}.corrupt")
    for suffix in _COMPANIONS:
        old = path.with_name(path.name + suffix)
        kept = aside.with_name(aside.name + suffix)
        kept.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            old.rename(kept)
    return aside
