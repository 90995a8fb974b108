"""How rows become values: the one place that decodes what a table holds, and sets aside what cannot be decoded."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from gpuagent_alerts.store.checks import text

T = TypeVar("T")
Value = str | bytes | int | float | None

MOST_SET_ASIDE = 1000
"""Rows kept in the table `set_aside`; the oldest are dropped."""
_SHOWN_BYTES = 1000
"""Of each cell of a row that is set aside."""
_MOST_REASON = 200


class Column(NamedTuple):
    """What a column may hold."""

    check: Callable[[object], object] = text
    """Returns the value in its type. Raises ValueError."""
    most_bytes: int = 1024


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """A table, and how its rows are read."""

    name: str
    key: tuple[str, ...]
    """Columns that tell one row from another."""
    columns: Mapping[str, Column]
    decode: Callable[..., T]
    """Makes a value from the checked cells, in the order of `columns`. Whatever it raises means a damaged row."""
    append_only: bool = False
    """Damaged rows stay where they are, and are skipped."""


class DamagedRow(NamedTuple):
    """A row that could not be read."""

    cells: Mapping[str, object]
    """Raw values by column; what is too long is cut."""
    reason: str
    address: tuple[Value, ...]
    """For each column of the key its bytes and its type, as SQLite has them."""


class Reading(NamedTuple, Generic[T]):
    """What a query gave."""

    rows: list[T]
    damaged: list[DamagedRow]


def decode_text(raw: bytes) -> str | bytes:
    """Return a cell of type TEXT; what is no UTF-8 stays bytes, which no check takes for a text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def select(
    db: sqlite3.Connection, table: Table[T], rest: str = "", values: Sequence[Value] = (), *, keep: bool = True
) -> Reading[T]:
    """Read rows, one after another. `rest` is SQL that follows the name of the table.

    With `keep` false only the damaged rows are returned: a table may be larger than the memory that is to be spent.
    """
    lengths = {name: f"ifnull(length(CAST({name} AS BLOB)), 0)" for name in table.columns}
    too_long = " OR ".join(f"{lengths[name]} > {column.most_bytes}" for name, column in table.columns.items())
    cells = [
        f"iif({lengths[name]} > {max(column.most_bytes, _SHOWN_BYTES)},"
        f" substr(CAST({name} AS BLOB), 1, {_SHOWN_BYTES}), {name})"
        for name, column in table.columns.items()
    ]
    address = [f"CAST({name} AS BLOB), typeof({name})" for name in table.key]
    sql = f"SELECT {', '.join((*cells, too_long, *address))} FROM {table.name} {rest}"  # noqa: S608  names of ours
    found: Reading[T] = Reading([], [])
    width = len(table.columns)
    for row in db.execute(sql, values):
        raw, is_long = row[:width], row[width]
        try:
            if is_long:
                raise ValueError("a value is too long")
            made = table.decode(*_checked(table, raw))
        except Exception as error:  # noqa: BLE001  whatever a decoder raises for what nobody foresaw: the row is at fault
            cells_by_name = dict(zip(table.columns, raw, strict=True))
            found.damaged.append(DamagedRow(cells_by_name, _words(error), tuple(row[width + 1 :])))
        else:
            if keep:
                found.rows.append(made)
    return found


def _checked(table: Table[Any], raw: Iterable[object]) -> Iterable[object]:
    for (name, column), value in zip(table.columns.items(), raw, strict=True):
        try:
            checked = column.check(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        yield checked


def set_aside(db: sqlite3.Connection, table: Table[Any], damaged: Iterable[DamagedRow]) -> None:
    """Move rows into the table `set_aside`, as part of the transaction under way."""
    where = " AND ".join(f"CAST({name} AS BLOB) IS ? AND typeof({name}) = ?" for name in table.key)
    for row in damaged:
        keep_copy(db, table.name, row.cells, row.reason)
        db.execute(f"DELETE FROM {table.name} WHERE {where}", row.address)  # noqa: S608  names of ours


def keep_copy(db: sqlite3.Connection, table: str, cells: Mapping[str, object], reason: str) -> None:
    """Write a row down in the table `set_aside`, bounded in size, and drop the oldest that are too many."""
    shown = {name: _shown(value) for name, value in cells.items()}
    db.execute("INSERT INTO set_aside (table_name, row, reason) VALUES (?, ?, ?)", (table, json.dumps(shown), reason))
    db.execute("DELETE FROM set_aside WHERE seq <= (SELECT max(seq) FROM set_aside) - ?", (MOST_SET_ASIDE,))


def _shown(value: object) -> str:
    return repr(value[:_SHOWN_BYTES] if isinstance(value, str | bytes) else value)[: 2 * _SHOWN_BYTES]


def _words(error: Exception) -> str:
    said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return said.encode("utf-8", "replace").decode().replace("\n", " ")[:_MOST_REASON]
