"""What every format of trace becomes: rows in the order of time, and the faults that were found on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

Row = tuple[float, float | None, float | None, float | None, float | None, str]
"""Time in seconds; used, free, allocated and reserved bytes, None where there is no reading; the process.

A plain tuple: a trace has millions.
"""
Rows = Iterator[Row]

OnFault = Callable[[int, str], None]
"""Takes the line of a malformed row and what is wrong with it. It may raise `TraceError` to refuse the file."""

MOST_BYTES = 2.0**63
MOST_SECONDS = 1e12
LINE_CHARACTERS = 65_536
"""A longer line is no row: it is read in pieces, so that a file without line ends costs no memory."""


class TraceError(ValueError):
    """A file that cannot be replayed, in words for whoever named it."""


def number(cell: str, most: float = MOST_BYTES) -> float | None:
    """The number in a cell, None for an empty one. Raises ValueError for what is none, or cannot be meant."""
    if not cell or cell.isspace():
        return None
    value = float(cell)
    if not 0 <= value < most:
        raise ValueError(f"{cell.strip()} is no number of bytes or seconds")
    return value
