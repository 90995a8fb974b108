"""Checks of what was read from the state file: each returns the value in its type, or raises ValueError.

The file may be damaged, edited by hand, or written by another version. A value that is only looked at when it is used
would fail in the middle of a run, so everything is checked when a row is read.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

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
