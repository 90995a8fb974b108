"""What an exporter costs: CPU, memory, and the time, size and number of series of a scrape."""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 60.0
_SETTLE_SECONDS = 3.0
_SCRAPES = 100
_BETWEEN_SCRAPES_SECONDS = 0.05


@dataclass(frozen=True)
class Exporter:
    """How to start one, and where it answers."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    port: int
    log: Path


@dataclass(frozen=True)
class Figures:
    """What was measured of one."""

    name: str
    cpu_alone_ratio: float
    """CPU seconds per second, not scraped."""
    cpu_ratio: float
    """CPU seconds per second, scraped once a second."""
    resident_bytes: int
    scrape_seconds: float
    """The median."""
    scrape_p99_seconds: float
    scrape_bytes: int
    series: int

    @property
    def seconds_per_series(self) -> float:
        return self.scrape_seconds / self.series


class ExporterFailed(Exception):
    """It did not start, or ended; the text has its last words."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads (fields 14 and 15 of /proc/<pid>/stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Resident memory of a process now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def descriptors(pid: int) -> int:
    """Files that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def measure(exporter: Exporter, seconds: float) -> Figures:
    """Start it, let it settle, watch it for this long, scrape it a hundred times, end it.

    Raises:
        ExporterFailed: it could not be measured.
    """
    with exporter.log.open("wb") as log:
        process = subprocess.Popen(
            exporter.command, env=exporter.environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_it_answers(process, exporter)
        time.sleep(_SETTLE_SECONDS)
        alone_ratio = _cpu_ratio(process.pid, None, seconds)
        cpu_ratio = _cpu_ratio(process.pid, exporter.port, seconds)
        body, times = _scrapes(exporter.port)
        return Figures(
            name=exporter.name,
            cpu_alone_ratio=alone_ratio,
            cpu_ratio=cpu_ratio,
            resident_bytes=resident_bytes(process.pid),
            scrape_seconds=statistics.median(times),
            scrape_p99_seconds=statistics.quantiles(times, n=100)[98],
            scrape_bytes=len(body),
            series=sum(not line.startswith(b"#") for line in body.splitlines()),
        )
    except OSError as error:
        raise ExporterFailed(f"{exporter.name}: {error}; {_last_words(exporter)}") from None
    finally:
        process.kill()
        process.wait()


def _wait_until_it_answers(process: subprocess.Popen[bytes], exporter: Exporter) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None:
            raise ExporterFailed(f"{exporter.name} ended with {process.returncode}: {_last_words(exporter)}")
        try:
            _scrape(exporter.port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _cpu_ratio(pid: int, port: int | None, seconds: float) -> float:
    """Processor seconds per second, scraped once a second (None: not scraped)."""
    started, before = time.monotonic(), cpu_seconds(pid)
    due = started
    while (due := due + 1.0) <= started + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        if port is not None:
            _scrape(port)
    return (cpu_seconds(pid) - before) / (time.monotonic() - started)


def _scrapes(port: int) -> tuple[bytes, list[float]]:
    times = []
    for _ in range(_SCRAPES):
        started = time.perf_counter()
        body = _scrape(port)
        times.append(time.perf_counter() - started)
        time.sleep(_BETWEEN_SCRAPES_SECONDS)
    return body, times


def _scrape(port: int) -> bytes:
    """A connection of its own and no compression: the same for every exporter."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        body: bytes = connection.getresponse().read()
    except http.client.HTTPException as error:
        raise OSError(repr(error)) from None
    finally:
        connection.close()
    return body


def _last_words(exporter: Exporter) -> str:
    return exporter.log.read_text(encoding="utf-8", errors="replace")[-500:]
