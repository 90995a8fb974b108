"""Salvage what can still be read of a damaged database, row by row, into another one."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuagent_alerts.store.tables import LARGEST_INTEGER, decode_text, keep_copy

_MOST_SECONDS = 5.0
_MOST_BYTES = 256 * 2**20
_STEPS = 100_000
"""Steps of SQLite's virtual machine between two looks at the clock."""


def salvage(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Copy every row that can be read into the tables of `new`, which are empty. Never raises for what is in `old`.

    The order of rows is kept. What a table of `new` does not take goes into `set_aside`.
    """
    until = time.monotonic() + _MOST_SECONDS
    old.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    tables = [name for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    new.execute("BEGIN IMMEDIATE")
    for table in tables:
        if not table.startswith("sqlite_"):
            _salvage_table(old, new, table)
    new.execute("COMMIT")
    with suppress(sqlite3.Error):
        old.set_progress_handler(None, 0)


def salvage_file(path: Path, new: sqlite3.Connection) -> None:
    """Salvage from a copy of a file: SQLite would write to the file itself."""
    copy = path.with_name(f"{path.name}.copy")
    try:
        for suffix in ("", "-wal"):
            part = path.with_name(path.name + suffix)
            if part.is_file() and part.stat().st_size <= _MOST_BYTES:
                shutil.copyfile(part, copy.with_name(copy.name + suffix))
        old = sqlite3.connect(str(copy), isolation_level=None)
        old.text_factory = decode_text
        try:
            salvage(old, new)
        finally:
            old.close()
    except OSError:
        return  # no room for a copy: then the old state is only kept aside
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                copy.with_name(copy.name + suffix).unlink()


def _salvage_table(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> None:
    columns = new.execute(f"PRAGMA table_info({table})").fetchall()
    names = [str(column[1]) for column in columns]
    needed = [bool(column[3] or column[5]) for column in columns]
    marks = ", ".join("?" for _ in names)
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608  names of ours
    counter = names[0] if names[0] == "seq" else ""
    for row in _readable(old, table, names, [str(column[1]) for column in columns if column[5]]):
        fault = _fault(row, needed, counted=bool(counter))
        if fault:
            keep_copy(new, table, dict(zip(names, row, strict=True)), fault)
        else:
            try:
                new.execute(insert, row)
            except sqlite3.Error as error:
                keep_copy(new, table, dict(zip(names, row, strict=True)), str(error))


def _fault(row: Sequence[Any], needed: Sequence[bool], *, counted: bool) -> str:
    if any(value is None and must for value, must in zip(row, needed, strict=True)):
        return "a value is missing"
    if counted and not (isinstance(row[0], int) and 0 <= row[0] <= LARGEST_INTEGER):
        return "its number is out of range"
    return ""


def _readable(
    old: sqlite3.Connection, table: str, names: Sequence[str], key: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows from the front to the damage, then from the back: rows in between are lost."""
    chosen = f"SELECT {', '.join(names)} FROM {table}"  # noqa: S608  names of ours
    try:
        yield from old.execute(chosen)
    except sqlite3.Error:
        order = ", ".join(f"{name} DESC" for name in key)
        with suppress(sqlite3.Error):
            yield from old.execute(f"{chosen} ORDER BY {order}")
