"""Traces in CSV: `time_seconds,used_bytes[,free_bytes][,allocated_bytes][,reserved_bytes][,process]`, in any order."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Final

from gpuagent_alerts.leak.replay.rows import MOST_BYTES, MOST_SECONDS, Leftover, OnFault, Rows, TraceError

_COLUMNS: Final = ("time_seconds", "used_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "process")
_NEEDED: Final = _COLUMNS[:2]


def is_csv_header(line: str) -> bool:
    """Whether a file that begins with this line is one of these."""
    names = {name.strip() for name in next(csv.reader([line]), [])}
    return names.issuperset(_NEEDED)


def read_csv(  # noqa: C901 - one loop, a million times
    lines: Iterable[str], total_bytes: float | None, on_fault: OnFault
) -> Rows:
    """The rows; an empty cell is no reading. Raises TraceError if a needed column is missing.

    Without a column of what is free, that is what the processes leave of `total_bytes`: all of them are on one GPU.
    """
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise TraceError(f"the first line names no column {' and no '.join(missing)}")
    twice = [name for name in _COLUMNS if header.count(name) > 1]
    if twice:
        raise TraceError(f"the first line names {twice[0]} twice")
    width = len(header)
    # A column that is missing is read from an empty cell behind the row.
    time_at, used_at, free_at, allocated_at, reserved_at, process_at = (
        header.index(name) if name in header else width for name in _COLUMNS
    )
    leftover = Leftover(total_bytes) if total_bytes is not None and free_at == width else None
    while True:
        try:
            for row in reader:
                if len(row) != width:
                    if row:
                        on_fault(reader.line_num, f"{len(row)} cells where the first line has {width}")
                    continue
                row.append("")
                try:
                    seconds = float(row[time_at])
                    used = float(cell) if (cell := row[used_at]) else None
                    free = float(cell) if (cell := row[free_at]) else None
                    allocated = float(cell) if (cell := row[allocated_at]) else None
                    reserved = float(cell) if (cell := row[reserved_at]) else None
                except ValueError as error:
                    on_fault(reader.line_num, str(error))
                    continue
                if (
                    -MOST_SECONDS < seconds < MOST_SECONDS
                    and (used is None or 0 <= used < MOST_BYTES)
                    and (free is None or 0 <= free < MOST_BYTES)
                    and (allocated is None or 0 <= allocated < MOST_BYTES)
                    and (reserved is None or 0 <= reserved < MOST_BYTES)
                ):
                    if leftover is not None:
                        free = leftover.after(seconds, row[process_at], used)
                    yield seconds, used, free, allocated, reserved, row[process_at]
                else:
                    on_fault(reader.line_num, "a value that cannot be meant: negative, not finite or absurd")
        except csv.Error as error:
            on_fault(reader.line_num, str(error))
        else:
            return
