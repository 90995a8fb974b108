"""Traces in CSV: `time_seconds,used_bytes[,free_bytes][,allocated_bytes][,reserved_bytes][,process]`, in any order.

Those that the agent exports have `total_bytes` and `started_seconds` too, in the first row of each process.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from typing import Final

from gpuagent_alerts.leak.replay.rows import (
    MOST_BYTES,
    MOST_SECONDS,
    Leftover,
    OnFault,
    ProcessFacts,
    Rows,
    TraceError,
    number,
)

_COLUMNS: Final = ("time_seconds", "used_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "process")
_MOST_FACTS: Final = 100_000
_NEEDED: Final = _COLUMNS[:2]


def is_csv_header(line: str) -> bool:
    """Whether a file that begins with this line is one of these."""
    names = {name.strip() for name in next(csv.reader([line]), [])}
    return names.issuperset(_NEEDED)


def read_csv(  # noqa: C901, PLR0912 - one loop, a million times
    lines: Iterable[str],
    total_bytes: float | None,
    on_fault: OnFault,
    facts: MutableMapping[str, ProcessFacts] | None = None,
) -> Rows:
    """The rows; an empty cell is no reading. Raises TraceError if a needed column is missing.

    Without a column of what is free, that is what the processes leave of `total_bytes`: all of them are on one GPU.
    What is told once of a process is put into `facts` before its first row is given.
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
    facts_at = [header.index(name) if name in header else width for name in ("total_bytes", "started_seconds")]
    leftover = Leftover(total_bytes) if total_bytes is not None and free_at == width else None
    while True:
        try:
            for row in reader:
                if len(row) != width:
                    if row:
                        on_fault(reader.line_num, f"{len(row)} cells where the first line has {width}")
                    continue
                row.append("")
                if facts is not None and row[facts_at[0]] and row[process_at] not in facts:
                    _note_facts(facts, row[process_at], row[facts_at[0]], row[facts_at[1]])
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


def _note_facts(facts: MutableMapping[str, ProcessFacts], process: str, total: str, started: str) -> None:
    """Take what can be meant; without it a replay goes by the first row."""
    with suppress(ValueError):
        size = number(total)
        if size and len(facts) < _MOST_FACTS:
            facts[process] = ProcessFacts(int(size), number(started, MOST_SECONDS))
