"""What every format of trace becomes: rows in the order of time, and the faults that were found on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

Row = tuple[float, float | None, float | None, float | None, float | None, str]
"""Time in seconds; used, free, allocated and reserved bytes, None where there is no reading; the process.

A plain tuple: a trace has millions.
"""
Rows = Iterator[Row]


class ProcessFacts(NamedTuple):
    """What a trace of the agent's own tells once of a process, so that a replay judges as the agent did."""

    total_bytes: int
    """Memory of the GPU."""
    started_seconds: float | None
    """When it started; None: with its first row."""


OnFault = Callable[[int, str], None]
"""Takes the line of a malformed row and what is wrong with it. It may raise `TraceError` to refuse the file."""

MOST_BYTES = 2.0**63
MOST_SECONDS = 1e12
KEPT_SECONDS: Final = 60.0
"""A process without a reading for so long holds nothing: its last one no longer counts against what is free."""
LINE_CHARACTERS = 65_536
"""A longer line is no row: it is read in pieces, so that a file without line ends costs no memory."""


class TraceError(ValueError):
    """A file that cannot be replayed, in words for whoever named it."""


def number(cell: str, most: float = MOST_BYTES) -> float | None:
    """Return the number in a cell, None for an empty one. Raises ValueError for what is none, or cannot be meant."""
    if not cell or cell.isspace():
        return None
    value = float(cell)
    if not 0 <= value < most:
        raise ValueError(f"{cell.strip()} is no number of bytes or seconds")
    return value


class EstimatedFreeMemory:
    """What is free on a GPU of which a trace tells the size alone: what its processes leave."""

    def __init__(self, total_bytes: float) -> None:
        self._total_bytes = total_bytes
        self._held: dict[str, tuple[float, float]] = {}

    def after(self, seconds: float, process: str, used: float | None) -> float:
        """Return bytes that are free once this reading of a process is known; None tells nothing new."""
        if used is not None:
            self._held[process] = (seconds, used)
        # Of one process after another, the next begins long before the last one's end.
        for gone in [key for key, (seen, _) in self._held.items() if abs(seconds - seen) > KEPT_SECONDS]:
            del self._held[gone]
        return max(0.0, self._total_bytes - sum(amount for _, amount in self._held.values()))
