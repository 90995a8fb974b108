"""Rows of the store, checked as they are read: what cannot be decoded is set aside, told, and costs nothing else.

The checks are for values that come from a file or from JSON in it: each returns the value in its type, or raises
ValueError.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

LATEST_UNIX_SECONDS = 253_402_300_799.0
"""The last second of the year 9999: `datetime` has no later one, so a later one could not be told."""
LONGEST_SECONDS = 1e11
"""About 3,000 years: more than any clock of a machine has run."""
LARGEST_INTEGER = 2**53
"""The largest integer up to which JSON and floats are exact; what SQLite counts by itself stays far below."""
MOST_BYTES = 2**64
"""NVML counts memory in 64 bits without a sign; a difference has one."""
MOST_LABELS = 256


def text(value: object) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise ValueError(f"a text is {_kind(value)}")
    return value


def word(value: object) -> str:
    """Return a string that is not empty."""
    if not text(value):
        raise ValueError("a text is empty")
    return text(value)


def flag(value: object) -> bool:
    """Return a bool; 0 and 1 are none."""
    if not isinstance(value, bool):
        raise ValueError(f"true or false is {_kind(value)}")
    return value


def number(value: object, low: float, high: float) -> float:
    """Return a finite number in these bounds, as a float. Each kind of number has bounds of its own."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a number is {_kind(value)}")
    if not low <= value <= high:  # not for NaN either
        raise ValueError("a number is out of range")
    return float(value)


def integer(value: object, low: int = 0, high: int = LARGEST_INTEGER) -> int:
    """Return an integer in these bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"an integer is {_kind(value)}")
    if not low <= value <= high:
        raise ValueError("an integer is out of range")
    return value


def identifier(value: object) -> int:
    """Return an integer of up to 64 bits, with its sign."""
    return integer(value, -(2**63), 2**63 - 1)


def unix_time(value: object) -> float:
    """Return a Unix time that can be told."""
    return number(value, 0.0, LATEST_UNIX_SECONDS)


def unix_time_or_none(value: object) -> float | None:
    """Return a Unix time that can be told, or None."""
    return None if value is None else unix_time(value)


def duration(value: object) -> float:
    """Return a number of seconds that a clock may have run."""
    return number(value, 0.0, LONGEST_SECONDS)


def duration_or_none(value: object) -> float | None:
    """Return a number of seconds that a clock may have run, or None."""
    return None if value is None else duration(value)


def measured(value: object) -> float:
    """Return the value of an expression: any float; NaN and the infinities are written as text, as JSON has none."""
    if isinstance(value, str):
        if value not in {"nan", "inf", "-inf"}:
            raise ValueError("the value of an expression is a text")
        return float(value)
    return number(value, -math.inf, math.inf)


def finite(value: object) -> float:
    """Return the value of an expression where only finite ones are written: any unit, so no bound but a float's own."""
    return number(value, -sys.float_info.max, sys.float_info.max)


def byte_count(value: object) -> int:
    """Return an amount of memory in bytes, or the difference of two."""
    return integer(value, -MOST_BYTES, MOST_BYTES)


def blob(value: object) -> bytes:
    """Return bytes."""
    if not isinstance(value, bytes):
        raise ValueError(f"bytes are {_kind(value)}")
    return value


def parsed(value: object) -> object:
    """Return what a JSON text holds. Raises RecursionError for one that is nested too deeply."""
    return json.loads(text(value), parse_constant=_refuse)


def document(value: object) -> Mapping[str, Any]:
    """Return a JSON object, parsed already."""
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is {_kind(value)}")
    return value


def array(value: object) -> list[Any]:
    """Return a JSON array, parsed already."""
    if not isinstance(value, list):
        raise ValueError(f"a JSON array is {_kind(value)}")
    return value


def texts(value: object) -> dict[str, str]:
    """Return a JSON object whose values are strings."""
    return {name: text(one) for name, one in document(value).items()}


def labels(value: object) -> dict[str, str]:
    """Return a label set."""
    found = texts(value)
    if len(found) > MOST_LABELS or "" in found:
        raise ValueError("a label set is none")
    return found


def member(document: Mapping[str, object], name: str) -> object:
    """Return a field of a JSON object that has to be there."""
    if name not in document:
        raise ValueError(f"{name} is missing")
    return document[name]


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number in JSON")


def _kind(value: object) -> str:
    names = {"NoneType": "missing", "bytes": "a BLOB or no UTF-8", "str": "a text"}
    return names.get(type(value).__name__, f"of type {type(value).__name__}")


T = TypeVar("T")
Value = str | bytes | int | float | None

MOST_SET_ASIDE = 1000
"""Rows kept in the table `set_aside`; the oldest are dropped."""
_SHOWN_BYTES = 1000
"""Most bytes kept of each cell of a row that is set aside."""
_MOST_REASON = 200


class Column(NamedTuple):
    """Check and bound of what a column may hold."""

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
    """Bytes and type of each column of the key, as SQLite has them."""


class QueryResult(NamedTuple, Generic[T]):
    """Result of a query."""

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
) -> QueryResult[T]:
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
    found: QueryResult[T] = QueryResult([], [])
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
