"""Opening a trace: which format it has, and whether it is compressed."""

from __future__ import annotations

import gzip
import io
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

from gpuagent_alerts.leak.replay.csv_trace import is_csv_header, read_csv
from gpuagent_alerts.leak.replay.prometheus_trace import is_prometheus_json, read_prometheus
from gpuagent_alerts.leak.replay.rows import LINE_CHARACTERS, OnFault, ProcessFacts, Rows, TraceError
from gpuagent_alerts.leak.replay.smi_trace import is_smi_header, read_smi

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
    """The rows of a file of any format, also compressed with gzip. Raises TraceError, while it is read too.

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
    """The file, or what comes out of a pipe: its beginning is looked at first, then all of it is read."""
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
    """The series are read side by side, which needs to seek: in a compressed file that would start anew each time."""
    if not isinstance(file, gzip.GzipFile):
        yield from read_prometheus(file, total_bytes, on_fault)
        return
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(file, unpacked)
        yield from read_prometheus(cast("BinaryIO", unpacked), total_bytes, on_fault)
