"""Programs that run side by side, and the CPU time that each takes meanwhile: what disturbs one disturbs all."""

from __future__ import annotations

import http.client
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from benchmarks.measure import Exporter

START_SECONDS = 60.0
SETTLE_SECONDS = 135.0
"""Every collector and rule has run more than once by then, and the leak detector judges: it does not for the first two
minutes in which it knows a process, and costs less."""


class NotRunning(Exception):
    """A program did not start, or has ended; the text has its last words."""


@dataclass(frozen=True)
class Running:
    """An exporter that answers."""

    exporter: Exporter
    pid: int


@contextmanager
def started(exporter: Exporter) -> Iterator[Running]:
    """An exporter, from its first answer on.

    Raises:
        NotRunning: it has not answered.
    """
    with exporter.log.open("wb") as log:
        process = subprocess.Popen(
            exporter.command, env=exporter.environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(exporter.port):
            if process.poll() is not None or time.monotonic() > deadline:
                words = exporter.log.read_text(encoding="utf-8", errors="replace")[-500:]
                raise NotRunning(f"{exporter.name} does not answer: {words}")
            time.sleep(0.1)
        yield Running(exporter, process.pid)
    finally:
        process.kill()
        process.wait()


def scrape(port: int) -> bytes:
    """`/metrics`, over a connection of its own and not compressed: the same for every exporter. Raises OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    except http.client.HTTPException as error:
        raise OSError(repr(error)) from None
    finally:
        connection.close()


def _answers(port: int) -> bool:
    with suppress(OSError):
        scrape(port)
        return True
    return False


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads and those that have ended, to the nanosecond.

    The clock of another process, as clock_getcpuclockid(3) makes its number: MAKE_PROCESS_CPUCLOCK and CPUCLOCK_SCHED
    in include/linux/posix-timers_types.h. /proc/<pid>/stat counts in hundredths of a second: too coarse for the floor.
    """
    return time.clock_gettime((~pid << 3) | 2)


def cpu_ratios(pids: Sequence[int], seconds: float) -> list[float]:
    """CPU seconds a second of each, over the same time."""
    begun, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    passed = time.monotonic() - begun
    return [(cpu_seconds(pid) - then) / passed for pid, then in zip(pids, before, strict=True)]


def scraped_cpu_ratios(running: Sequence[Running], seconds: float) -> list[float]:
    """The same while each is scraped once a second."""
    begun, before = time.monotonic(), [cpu_seconds(one.pid) for one in running]
    due = begun
    while (due := due + 1.0) <= begun + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        for one in running:
            scrape(one.exporter.port)
    passed = time.monotonic() - begun
    return [(cpu_seconds(one.pid) - then) / passed for one, then in zip(running, before, strict=True)]


def scrape_seconds(running: Sequence[Running], number: int) -> Mapping[str, list[float]]:
    """How long scrapes take: of each in turn, so that none has the quieter time."""
    times: dict[str, list[float]] = {one.exporter.name: [] for one in running}
    for _ in range(number):
        for one in running:
            begun = time.perf_counter()
            scrape(one.exporter.port)
            times[one.exporter.name].append(time.perf_counter() - begun)
            time.sleep(0.02)
    return times


def series_count(port: int) -> int:
    """Of one scrape."""
    return sum(not line.startswith(b"#") for line in scrape(port).splitlines())
