"""The agent's own history of a process as a trace: as a document, as rows for the detector, and as CSV for a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from operator import itemgetter
from typing import Any, Final, NamedTuple

from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES
from gpuagent_alerts.leak.detector import FIRST_BLACKOUT_SECONDS
from gpuagent_alerts.leak.replay.rows import MOST_BYTES, MOST_SECONDS, ProcessFacts, Row, TraceError
from gpuagent_alerts.leak.trace import Run, Trace

SCHEMA: Final = 1
HEADER: Final = "time_seconds,used_bytes,free_bytes,allocated_bytes,reserved_bytes,process,total_bytes,started_seconds"
_LATE_SECONDS: Final = 5
"""How far a block's row is behind the block's beginning; a second row of it follows 5 s later."""
_NEAR: Final = 64
"""Blocks from the end of a run in which each one has a row: beyond, a row in each so much longer stretch will do."""
_MOST_RUNS: Final = 4096
_MOST_BLOCKS: Final = 200_000
"""A month: no trace reaches back further, and a document from elsewhere must not cost more."""


class TraceDocument(NamedTuple):
    """A trace that was read back."""

    process: str
    facts: ProcessFacts
    origin_seconds: float
    """Unix time of block 0."""
    runs: tuple[Run, ...]


def trace_document(
    trace: Trace, process: str, *, total_bytes: int, started_seconds: float | None, clock_to_unix_seconds: float
) -> dict[str, Any]:
    """Return a trace for JSON. `started_seconds` is on the detector's clock, None where it is not known.

    Block 0 is shifted by less than a block, so that a replay cuts the time into the same blocks.
    """
    origin = clock_to_unix_seconds // BLOCK_SECONDS * BLOCK_SECONDS
    return {
        "schema": SCHEMA,
        "process": process,
        "total_bytes": total_bytes,
        "started_seconds": None if started_seconds is None else round(origin + started_seconds, 3),
        "origin_seconds": origin,
        "block_seconds": BLOCK_SECONDS,
        "page_bytes": PAGE_BYTES,
        "columns": list(Run._fields),
        "runs": [[None if cell == EMPTY else cell for cell in run] for run in trace.runs()],
    }


def read_document(document: Mapping[str, Any]) -> TraceDocument:
    """Return what `trace_document` has made. Raises TraceError for anything else, whoever made it."""
    try:
        if document["schema"] != SCHEMA or document["columns"] != list(Run._fields):
            raise TraceError("the trace is of another version")
        if document["block_seconds"] != BLOCK_SECONDS or document["page_bytes"] != PAGE_BYTES:
            raise TraceError("the trace has other blocks or pages")
        total, started = document["total_bytes"], document["started_seconds"]
        origin = float(document["origin_seconds"])
        runs = tuple(_run(cells) for cells in document["runs"])
        facts = ProcessFacts(int(total), None if started is None else float(started))
        read = TraceDocument(str(document["process"]), facts, origin, runs)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"no trace of the agent's: {error!r}") from None
    _check(read)
    return read


def rows_of(trace: TraceDocument) -> Iterator[Row]:
    """Give the rows from which a detector comes to the verdicts that it came to while the trace was taken."""
    if not trace.runs:
        return
    first = trace.runs[0]
    yield from _rows(trace, first, first.first, FIRST_BLACKOUT_SECONDS)  # what a detector sees first, it does not keep
    for run in trace.runs:
        for block in _blocks(run):
            yield from _rows(trace, run, block)


def csv_of(traces: Iterable[TraceDocument]) -> Iterator[str]:
    """Give the lines of a file that `gpuagent replay` reads, in the order of time."""
    yield HEADER
    every = list(traces)
    known = {trace.process: trace.facts for trace in every}
    for seconds, *amounts, process in merge(*(rows_of(trace) for trace in every), key=itemgetter(0)):
        facts = known.pop(process, None)
        cells = ("" if amount is None else f"{amount:.0f}" for amount in amounts)
        total = "" if facts is None else str(facts.total_bytes)
        started = "" if facts is None or facts.started_seconds is None else f"{facts.started_seconds:.3f}"
        yield f"{seconds:.0f},{','.join(cells)},{process},{total},{started}"


def _rows(trace: TraceDocument, run: Run, block: int, before_seconds: float = 0.0) -> Iterator[Row]:
    """Give the rows of a block; where the app told its allocator's figures, what it held last follows the lowest."""
    seconds = trace.origin_seconds + block * BLOCK_SECONDS + _LATE_SECONDS - before_seconds
    used, free, allocated = _bytes(run.used), _bytes(run.free), _bytes(run.allocated)
    if allocated is None:
        yield seconds, used, free, None, None, trace.process
        return
    outside = run.used - run.outside if EMPTY not in (run.used, run.outside) else run.allocated
    yield seconds, used, free, allocated, float(max(outside, run.allocated) * PAGE_BYTES), trace.process
    later = max(0, 2 * run.held - run.allocated) if run.held != EMPTY else run.allocated
    yield seconds + 5, None, free, float(later * PAGE_BYTES), float((later + run.slack) * PAGE_BYTES), trace.process


def _blocks(run: Run) -> Iterator[int]:
    """Give the blocks of a run that have a row: all of a short one, and of a long one all that a window asks for.

    A window of the detector has at least 16 blocks of a length that doubles from window to window, and ends where the
    memory has changed: so the further a block is from both ends of its run, the fewer of its neighbors are needed.
    """
    block = run.first
    while block <= run.last:
        yield block
        distance = min(block - run.first, run.last - block)
        step = 1
        while step * 2 <= distance // _NEAR:
            step *= 2
        block += step


def _bytes(pages: int) -> float | None:
    return None if pages == EMPTY else float(pages * PAGE_BYTES)


def _run(cells: Iterable[Any]) -> Run:
    run = Run(*(EMPTY if cell is None else cell for cell in cells))
    if not all(isinstance(cell, int) and not isinstance(cell, bool) and 0 <= cell <= EMPTY for cell in run):
        raise TraceError("a run of the trace has a cell that is no number of pages or blocks")
    return run


def _check(trace: TraceDocument) -> None:
    total, started = trace.facts
    if not 0 < total < MOST_BYTES or not abs(trace.origin_seconds) < MOST_SECONDS:
        raise TraceError("the trace has a size or a time that cannot be")
    if started is not None and not abs(started) < MOST_SECONDS:
        raise TraceError("the trace has a size or a time that cannot be")
    if len(trace.runs) > _MOST_RUNS or (trace.runs and trace.runs[-1].last - trace.runs[0].first > _MOST_BLOCKS):
        raise TraceError("the trace is longer than any of the agent's")
    last = -1
    for run in trace.runs:
        if not last < run.first <= run.last:
            raise TraceError("the trace goes back in time")
        last = run.last
