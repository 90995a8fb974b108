"""Opening a trace, whichever format it has, also compressed with gzip.

- CSV: `time_seconds,used_bytes[,free_bytes][,allocated_bytes][,reserved_bytes][,process]`, in any order; those that
  the agent exports have `total_bytes` and `started_seconds` too, in the first row of each process;
- logs of `nvidia-smi --query-compute-apps=timestamp,gpu_uuid,pid,process_name,used_memory --format=csv -l 5`, which
  have no free memory: it is what the processes leave of the total, which the caller must know;
- answers of Prometheus: see `prometheus_trace`.
"""

from __future__ import annotations

import csv
import gzip
import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

from gpuagent_alerts.leak.replay.prometheus_trace import is_prometheus_json, read_prometheus
from gpuagent_alerts.leak.replay.rows import (
    LINE_CHARACTERS,
    MOST_BYTES,
    MOST_SECONDS,
    EstimatedFreeMemory,
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
    """Return whether a file that begins with this line is one of these."""
    names = {name.strip() for name in next(csv.reader([line]), [])}
    return names.issuperset(_NEEDED)


def read_csv(  # noqa: C901, PLR0912 - one loop, a million times
    lines: Iterable[str],
    total_bytes: float | None,
    on_fault: OnFault,
    facts: MutableMapping[str, ProcessFacts] | None = None,
) -> Rows:
    """Return the rows; an empty cell is no reading. Raises TraceError if a needed column is missing.

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
    leftover = EstimatedFreeMemory(total_bytes) if total_bytes is not None and free_at == width else None
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


_TIME: Final = "timestamp"
_SMI_USED: Final = ("used_gpu_memory", "used_memory")
_NAMES: Final = ("process_name", "name")
_GPUS: Final = ("gpu_uuid", "gpu_bus_id", "gpu_serial")
_SMI_UNITS: Final = {"": 2**20, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FORMAT: Final = "%Y/%m/%d %H:%M:%S.%f"


def is_smi_header(line: str) -> bool:
    """Return whether a file that begins with this line is one of these."""
    names = [cell.split("[")[0].strip() for cell in line.split(",")]
    return _TIME in names and "pid" in names and any(name in names for name in _SMI_USED)


def read_smi(lines: Iterable[str], total_bytes: float | None, on_fault: OnFault) -> Rows:
    """Return the rows; the local time of the log is taken for UTC. Raises TraceError if the total is not known."""
    if total_bytes is None:
        raise TraceError(
            "an nvidia-smi log does not tell what is free: give the memory of the GPU, such as --total 80GiB"
        )
    reader = csv.reader(lines, skipinitialspace=True)
    header = next(reader, [])
    names = [cell.split("[")[0].strip() for cell in header]
    time_at, pid_at = names.index(_TIME), names.index("pid")
    used_at = next(names.index(name) for name in _SMI_USED if name in names)
    name_at = next((names.index(name) for name in _NAMES if name in names), None)
    gpu_at = next((names.index(name) for name in _GPUS if name in names), None)
    unit = _SMI_UNITS.get(header[used_at].partition("[")[2].rstrip("] "), 2**20)
    leftovers: dict[str, EstimatedFreeMemory] = {}
    for row in reader:
        if not row or row == header:  # runs that were appended to one file
            continue
        try:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} cells where the first line has {len(header)}")
            moment = datetime.strptime(row[time_at].strip(), _FORMAT).replace(tzinfo=UTC).timestamp()
            used = _bytes_of(row[used_at], unit)
        except ValueError as error:
            on_fault(reader.line_num, str(error))
            continue
        gpu = row[gpu_at] if gpu_at is not None else ""
        name = row[name_at].rpartition("/")[2] if name_at is not None else "process"
        process = f"{name}:{row[pid_at]}" + (f" on {gpu}" if gpu else "")
        if gpu not in leftovers:
            leftovers[gpu] = EstimatedFreeMemory(total_bytes)
        free = leftovers[gpu].after(moment, process, used)
        yield moment, used, free, None, None, process


def _bytes_of(cell: str, unit: int) -> float | None:
    """Return bytes of `1234 MiB`, or of `1234` in the header's unit; None where the driver does not tell."""
    text = cell.strip()
    if not text or text.startswith("["):  # [N/A], [Not Supported], [Insufficient Permissions]
        return None
    amount, _, written = text.partition(" ")
    if written and written not in _SMI_UNITS:
        raise ValueError(f"{text} has an unknown unit")
    value = float(amount) * (_SMI_UNITS[written] if written else unit)
    if not 0 <= value < 2**63:
        raise ValueError(f"{text} is no amount of memory")
    return value


_GZIP: Final = b"\x1f\x8b"
_UNKNOWN: Final = (
    "neither CSV with time_seconds and used_bytes, nor a range query's JSON, nor a log of nvidia-smi "
    "--query-compute-apps with timestamp, pid and used_memory: its first line has to name the columns"
)


@contextmanager
def open_trace(
    path: Path,
    total_bytes: int | None,
    on_fault: OnFault,
    facts: MutableMapping[str, ProcessFacts] | None = None,
) -> Iterator[Rows]:
    """Yield the rows of a file of any format, also compressed with gzip. Raises TraceError, while it is read too.

    What a trace of the agent's tells once of a process is put into `facts`.
    """
    try:
        with path.open("rb") as opened, _seekable(opened) as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as plain:
                yield _rows(cast("BinaryIO", plain), total_bytes, on_fault, facts)
    except (
        OSError,
        EOFError,
        ValueError,
    ) as error:  # gzip raises EOFError, and zlib's error is a ValueError or OSError
        if isinstance(error, TraceError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(reason) from error


@contextmanager
def _seekable(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the file, or what comes out of a pipe: its beginning is looked at first, then all of it is read."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        yield cast("BinaryIO", copy)


def _rows(
    file: BinaryIO,
    total_bytes: int | None,
    on_fault: OnFault,
    facts: MutableMapping[str, ProcessFacts] | None,
) -> Rows:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    try:
        beginning = text.readline(LINE_CHARACTERS)
        text.seek(0)
        if is_prometheus_json(beginning):
            yield from _prometheus_rows(file, total_bytes, on_fault)
            return
        lines = iter(partial(text.readline, LINE_CHARACTERS), "")
        if is_csv_header(beginning):
            yield from read_csv(lines, total_bytes, on_fault, facts)
        elif is_smi_header(beginning):
            yield from read_smi(lines, total_bytes, on_fault)
        else:
            raise TraceError(_UNKNOWN if beginning else "the file is empty")
    finally:
        with suppress(ValueError):  # it is closed already, where a reader gave up half-way
            text.detach()  # the file is its owner's to close


def _prometheus_rows(file: BinaryIO, total_bytes: int | None, on_fault: OnFault) -> Rows:
    """Read the series side by side, which needs to seek: in a compressed file that would start anew each time."""
    if not isinstance(file, gzip.GzipFile):
        yield from read_prometheus(file, total_bytes, on_fault)
        return
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(file, unpacked)
        yield from read_prometheus(cast("BinaryIO", unpacked), total_bytes, on_fault)
