"""Answers of Prometheus' `/api/v1/query_range`, as curl saves them, or promtool's `-o json`: the series alone.

A file has one series after another, a trace has all of them at each moment. So the file is read twice: once to find
where each series begins, then all of them side by side. `JsonScanner` walks through a file of any size, holding a chunk
of it: enough of a parser to find where things lie.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, Final, NamedTuple

from gpuagent_alerts.leak.replay.rows import MOST_BYTES, MOST_SECONDS, OnFault, Row, Rows, TraceError

MOST_VALUE_BYTES: Final = 1_048_576
"""The most that is held of one value: a metric's labels are smaller by far."""
_SPACE: Final = b" \t\r\n"
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN: Final = re.compile(rb"[^\s,\]}:\[{\"]+")
_NEXT: Final = re.compile(rb'["\[\]{}]')


class JsonScanner:
    """A place in a file. Raises TraceError where there is no JSON."""

    def __init__(self, file: BinaryIO, offset: int = 0, chunk_bytes: int = 65_536) -> None:
        """`file` is shared: every read seeks first."""
        self._file = file
        self._chunk_bytes = chunk_bytes
        self._offset = offset  # of the buffer's begin
        self._buffer = b""
        self._place = 0

    @property
    def offset(self) -> int:
        """Bytes from the file's begin to here."""
        return self._offset + self._place

    def peek(self) -> bytes:
        """Return the next character that is no space; empty at the end."""
        while True:
            rest = self._buffer[self._place :].lstrip(_SPACE)
            if rest:
                self._place = len(self._buffer) - len(rest)
                return rest[:1]
            self._place = len(self._buffer)
            if not self._more():
                return b""

    def take(self, wanted: bytes) -> bool:
        """Step over this character, if it comes next."""
        if self.peek() != wanted:
            return False
        self._place += 1
        return True

    def need(self, wanted: bytes) -> None:
        """Step over this character, which must come next."""
        if not self.take(wanted):
            raise TraceError(f"no JSON at byte {self.offset}: {wanted.decode()} should be here")

    def value(self) -> Any:  # noqa: ANN401 - it is JSON
        """Return the next value, which must be a small one."""
        self.peek()
        start = self.offset
        self.skip(keep=True)
        raw = self._buffer[start - self._offset : self._place]
        try:
            return json.loads(raw)
        except ValueError as error:
            raise TraceError(f"no JSON at byte {start}: {error}") from None

    def skip(self, *, keep: bool = False) -> None:
        """Step over the next value, of any size; with `keep` all of it stays in the buffer."""
        first = self.peek()
        if first not in {b"[", b"{"}:
            self._skip_scalar(first)
            return
        depth = 0
        while True:
            found = _NEXT.search(self._buffer, self._place)
            if found is None:
                if not keep:
                    self._place = len(self._buffer)
                if not self._more(keep=keep):
                    raise TraceError("the JSON ends too early")
                continue
            self._place = found.start()
            if found[0] == b'"':
                self._skip_scalar(b'"', keep=keep)
                continue
            self._place += 1
            depth += 1 if found[0] in b"[{" else -1
            if depth == 0:
                return

    def _skip_scalar(self, first: bytes, *, keep: bool = True) -> None:
        pattern = _STRING if first == b'"' else _PLAIN
        while True:
            found = pattern.match(self._buffer, self._place)
            if found is not None and (first == b'"' or found.end() < len(self._buffer)):
                self._place = found.end()
                return
            if not self._more(keep=keep):
                if found is None:
                    raise TraceError(f"no JSON at byte {self.offset}")
                self._place = found.end()
                return

    def _more(self, *, keep: bool = False) -> bool:
        """Read on; what lies before the place is dropped, unless `keep`."""
        if len(self._buffer) - self._place > MOST_VALUE_BYTES or (keep and len(self._buffer) > 4 * MOST_VALUE_BYTES):
            raise TraceError(f"a value of more than {MOST_VALUE_BYTES} bytes at byte {self.offset}")
        self._file.seek(self._offset + len(self._buffer))
        chunk = self._file.read(self._chunk_bytes)
        if not keep:
            self._offset += self._place
            self._buffer = self._buffer[self._place :]
            self._place = 0
        self._buffer += chunk
        return bool(chunk)


_USED: Final = "gpuagent_process_memory_used_bytes"
_FREE: Final = "gpuagent_gpu_memory_free_bytes"
_TOTAL: Final = "gpuagent_gpu_memory_total_bytes"
_ALLOCATED: Final = "gpuagent_torch_memory_allocated_bytes"
_RESERVED: Final = "gpuagent_torch_memory_reserved_bytes"
_KNOWN: Final = (_USED, _FREE, _TOTAL, _ALLOCATED, _RESERVED)
_CHUNK_BYTES: Final = 8192
MOST_SERIES: Final = 4096


class _Series(NamedTuple):
    kind: str
    """One of `_KNOWN`; any other metric counts as used bytes."""
    gpu: tuple[str, str]
    """Instance and UUID."""
    process: tuple[str, ...]
    """Instance, UUID, pid and GPU instance of a known metric, else all labels."""
    name: str
    offset: int


def is_prometheus_json(beginning: str) -> bool:
    """Return whether a file that begins so is one of these."""
    return beginning.lstrip().startswith(("{", "["))


def read_prometheus(file: BinaryIO, total_bytes: float | None, on_fault: OnFault) -> Rows:
    """Return the rows. Raises TraceError for what is no answer to a range query, or has no figures of memory."""
    found = _index(JsonScanner(file))
    if not any(series.kind not in _KNOWN[1:] for series in found):
        raise TraceError("no series of used memory in this answer")
    points = heapq.merge(*(_points(file, place, series, on_fault) for place, series in enumerate(found)))
    for moment, group in groupby(points, key=itemgetter(0)):
        yield from _rows_at(moment, [(found[place], value) for _, place, value in group], total_bytes)


def _rows_at(moment: float, values: list[tuple[_Series, float]], total_bytes: float | None) -> Iterator[Row]:
    """Yield all processes at one moment."""
    by_kind: dict[str, dict[tuple[str, ...], float]] = {kind: {} for kind in _KNOWN}
    for series, value in values:
        if series.kind in {_FREE, _TOTAL}:
            by_kind[series.kind][series.gpu] = value
        elif series.kind in {_ALLOCATED, _RESERVED}:
            by_kind[series.kind][series.process] = value
        else:
            used = by_kind[_USED]
            used[series.gpu] = used.get(series.gpu, 0.0) + value
    for series, value in values:
        if series.kind in _KNOWN[1:]:
            continue
        total = by_kind[_TOTAL].get(series.gpu, total_bytes)
        free = by_kind[_FREE].get(series.gpu)
        if free is None and total is not None:
            free = max(0.0, total - by_kind[_USED][series.gpu])
        allocated = by_kind[_ALLOCATED].get(series.process)
        yield moment, value, free, allocated, by_kind[_RESERVED].get(series.process), series.name


def _index(scan: JsonScanner) -> list[_Series]:
    """Where the series are."""
    if scan.peek() == b"[":
        return _results(scan)
    found: list[_Series] = []
    for key in _members(scan):
        if key == "status":
            if scan.value() != "success":
                raise TraceError("this is an answer of Prometheus that tells of an error")
        elif key == "data":
            for inner in _members(scan):
                if inner == "result":
                    found = _results(scan)
                elif inner == "resultType":
                    if (kind := scan.value()) != "matrix":
                        raise TraceError(f"this answers an instant query ({kind}): a range query has resultType matrix")
                else:
                    scan.skip()
        else:
            scan.skip()
    return found


def _results(scan: JsonScanner) -> list[_Series]:
    found: list[_Series] = []
    scan.need(b"[")
    while not scan.take(b"]"):
        metric: Mapping[str, str] = {}
        offset = None
        for key in _members(scan):
            if key == "metric":
                metric = scan.value()
                if not isinstance(metric, dict):
                    raise TraceError("a series whose labels are no object")
            elif key == "values":
                scan.peek()
                offset = scan.offset
                scan.skip()
            else:
                scan.skip()
        if offset is not None:
            found.append(_series({str(key): str(value) for key, value in metric.items()}, offset))
        if len(found) > MOST_SERIES:
            raise TraceError(f"more than {MOST_SERIES} series: query fewer at once")
        scan.take(b",")
    return found


def _series(labels: Mapping[str, str], offset: int) -> _Series:
    kind = labels.get("__name__", "")
    gpu = (labels.get("instance", ""), labels.get("uuid", labels.get("gpu", "")))
    if kind in _KNOWN:
        name = f"{labels.get('process', 'process')}:{labels.get('pid', '')} on GPU {labels.get('gpu', '')}"
        if gpu[0]:
            name += f" of {gpu[0]}"
        return _Series(kind, gpu, (*gpu, labels.get("pid", ""), labels.get("gpu_instance_id", "")), name, offset)
    text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()) if key != "__name__")
    name = f"{kind}{{{text}}}" if text else kind or "value"
    return _Series("", gpu, (name,), name, offset)


def _members(scan: JsonScanner) -> Iterator[str]:
    """Yield the keys of an object; the caller steps over each value."""
    scan.need(b"{")
    while not scan.take(b"}"):
        key = str(scan.value())
        scan.need(b":")
        yield key
        scan.take(b",")


def _points(file: BinaryIO, place: int, series: _Series, on_fault: OnFault) -> Iterator[tuple[float, int, float]]:
    """Time, the series' place and value, in order."""
    scan = JsonScanner(file, series.offset, _CHUNK_BYTES)
    scan.need(b"[")
    while not scan.take(b"]"):
        point = scan.value()
        scan.take(b",")
        try:
            moment, value = float(point[0]), float(point[1])
        except (TypeError, ValueError, IndexError, KeyError):
            on_fault(0, f"series {series.name}: {point!r} is no point")
            continue
        if not (abs(moment) < MOST_SECONDS and 0 <= value < MOST_BYTES):
            on_fault(0, f"series {series.name}: {point!r} is no number of bytes at a time")
            continue
        yield moment, place, value
