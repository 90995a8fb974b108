"""What the leak detector costs in the tick: `python -m benchmarks.sensor [PROCESSES]`.

Memory that wobbles by a few MiB, as that of most processes does, 8 GPUs, a reading each second, 15 minutes to warm up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tests.fakes.readings import WALL, gpu, process, snapshot

from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.leak.histories import Histories
from gpuagent_alerts.leak.sensor import LeakSensor

_MIB = 2**20
_PAGE_BYTES = 4096


class Cost(NamedTuple):
    """Of a second, in CPU time; memory in all."""

    processes: int
    mean_seconds: float
    max_seconds: float
    resident_bytes_per_process: float
    dump_bytes: int
    """The largest history, as it is kept over a restart."""
    dump_seconds: float
    """To dump one."""


def ticks(processes: int) -> Iterator[Snapshot]:
    """A node, second by second."""
    gpus = [gpu(index, used_gib=40, total_gib=80) for index in range(8)]
    crowd = sorted(
        (process(1000 + number, gpu_index=number % 8) for number in range(processes)), key=lambda one: one.gpu_index
    )
    second = 0
    while True:
        now = 50_000.0 + second
        moved = [one._replace(used_bytes=(50 + (7 * second + one.pid) % 5) * _MIB) for one in crowd]
        here = [replace(one, time_seconds=now) for one in gpus]
        yield snapshot(here, moved, clock_seconds=now, time_seconds=WALL + second)
        second += 1


def observe_cost(processes: int = 4096, warm_up_ticks: int = 900, measured_ticks: int = 300) -> Cost:
    """Measure it."""
    before = _resident_bytes()
    histories = Histories("balanced")
    sensor = LeakSensor(histories)
    costs = []
    for seen in islice(ticks(processes), warm_up_ticks + measured_ticks):
        begun = time.process_time()
        sensor.observe(seen)
        costs.append(time.process_time() - begun)
    measured = costs[warm_up_ticks:]
    grown = (_resident_bytes() - before) / processes
    begun = time.process_time()
    kept = histories.to_keep(60_000.0, 256)
    dumping = (time.process_time() - begun) / len(kept)
    largest = max(len(one.dump) for one in kept)
    return Cost(processes, sum(measured) / len(measured), max(measured), grown, largest, dumping)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


if __name__ == "__main__":
    cost = observe_cost(*(int(word) for word in sys.argv[1:2]))
    sys.stdout.write(
        f"{cost.processes} processes: {cost.mean_seconds * 100:.2f} % of a core at 1 s, at most "
        f"{cost.max_seconds * 1000:.0f} ms in a tick, {cost.mean_seconds / cost.processes * 1e6:.2f} us a process; "
        f"{cost.resident_bytes_per_process / 1024:.1f} KiB each; a dump of at most {cost.dump_bytes} bytes in "
        f"{cost.dump_seconds * 1e6:.0f} us\n"
    )
