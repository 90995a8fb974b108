"""Push batches from a thread: whoever offers one never waits, and what fails is counted and told."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gpuagent.core.regular_files import read_regular_file
from gpuagent_exporters.otlp.batch import Batch, IncidentEvent, Metric, metrics_of

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
MOST_EVENTS = 1000
"""Events that are kept for a collector that does not answer; the oldest go."""
_MAX_HEADER_BYTES = 16 * 1024


class Exporter(Protocol):
    """Push to a collector; `payload.Exporters` does. Both raise an exception that says why it was not taken."""

    def push_metrics(self, metrics: list[Metric], unix_seconds: float) -> None: ...

    def push_events(self, events: list[IncidentEvent]) -> None: ...


MakeExporter = Callable[[Mapping[str, str]], Exporter]
"""Makes an exporter that sends these headers."""


@dataclass(frozen=True, slots=True)
class PushFigures:
    """What became of the batches."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    """Batches that were not tried, as the one before was still on its way, and events that were too many to keep."""
    waiting: int = 0
    """Events that wait for the collector."""
    failing_since: float | None = None
    """Clock seconds of the first failure since the last success; None while it works."""
    reason: str = ""


class HeadersRefused(Exception):
    """The file of headers cannot be used; the text says why and holds none of it."""


def read_headers(path: Path | None) -> dict[str, str]:
    """Read `Name: value` lines; none without a file.

    Raises:
        HeadersRefused: it cannot be read, or a line is none.
    """
    if path is None:
        return {}
    try:
        text = read_regular_file(path, _MAX_HEADER_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise HeadersRefused(f"cannot read otlp.headers_file, {path}: {reason}") from None
    headers = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not value.strip() or not (name.isascii() and value.strip().isprintable()):
            raise HeadersRefused(f"line {number} of otlp.headers_file, {path}, is not `Name: value`")
        headers[name.strip()] = value.strip()
    return headers


class OtlpSender:
    """Push what is offered, one batch at a time. `now` is the clock of `failing_since`."""

    def __init__(self, make: MakeExporter, headers_file: Path | None, now: Callable[[], float]) -> None:
        self._make = make
        self._headers_file = headers_file
        self._now = now
        self._queue: queue.Queue[Batch] = queue.Queue(1)
        self._events: deque[IncidentEvent] = deque()
        self._lock = threading.Lock()
        self._figures = PushFigures()
        self._headers: dict[str, str] | None = None
        self._exporter: Exporter | None = None
        self._thread = threading.Thread(target=self._work, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        self._thread.start()

    def offer(self, batch: Batch) -> None:
        """Have a batch pushed, without waiting: dropped while the one before is on its way, but its events are kept."""
        with self._lock:
            self._events.extend(batch.events)
            too_many = max(0, len(self._events) - MOST_EVENTS)
            for _ in range(too_many):
                self._events.popleft()
            self._count(dropped=too_many)
        try:
            self._queue.put_nowait(batch)
        except queue.Full:
            with self._lock:
                self._count(dropped=1)

    def figures(self) -> PushFigures:
        """Return what became of the batches so far."""
        with self._lock:
            return replace(self._figures, waiting=len(self._events))

    def _work(self) -> None:
        while True:
            self.push(self._queue.get())

    def push(self, batch: Batch) -> None:
        """Push a batch and the events that wait; never raises."""
        try:
            exporter = self._current_exporter()
            exporter.push_metrics(metrics_of(batch.series), batch.unix_seconds)
            self._push_events(exporter)
        except Exception as error:  # noqa: BLE001 - whatever it was, the next batch is tried
            self._note_failure(str(error) or type(error).__name__)
        else:
            self._note_success()

    def _push_events(self, exporter: Exporter) -> None:
        with self._lock:
            events = list(self._events)
        if not events:
            return
        exporter.push_events(events)
        with self._lock:
            for event in events:
                if self._events and self._events[0] is event:
                    self._events.popleft()

    def _current_exporter(self) -> Exporter:
        """Return the exporter; a new one when the file of headers has changed."""
        headers = read_headers(self._headers_file)
        if self._exporter is None or headers != self._headers:
            self._exporter, self._headers = self._make(headers), headers
        return self._exporter

    def _note_success(self) -> None:
        with self._lock:
            recovered = self._figures.failing_since is not None
            self._count(sent=1)
            self._figures = replace(self._figures, failing_since=None, reason="")
        if recovered:
            log.info("the OTLP collector takes batches again")

    def _note_failure(self, reason: str) -> None:
        with self._lock:
            first = self._figures.failing_since is None
            self._count(failed=1)
            since = self._now() if first else self._figures.failing_since
            self._figures = replace(self._figures, failing_since=since, reason=reason)
        if first:
            log.warning("the OTLP collector did not take a batch: %s", reason)

    def _count(self, *, sent: int = 0, failed: int = 0, dropped: int = 0) -> None:
        known = self._figures
        self._figures = replace(
            known, sent=known.sent + sent, failed=known.failed + failed, dropped=known.dropped + dropped
        )
