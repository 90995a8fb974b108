"""From the file into memory when it is of no use, and from memory into a file that could not be opened at first."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress

from gpuagent_alerts.store.opening import open_memory
from gpuagent_alerts.store.salvage import salvage
from gpuagent_alerts.store.schema import Step

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
    """Number rows from the time on, so that they come after those of the file, and none has the number of another."""
    start = int(time.time()) * _NUMBERS_A_SECOND
    tables = memory.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'")
    rows = [(name, start) for (name,) in tables.fetchall()]
    memory.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", rows)


def add_rows(memory: sqlite3.Connection, file: sqlite3.Connection) -> None:
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
