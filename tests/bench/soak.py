"""Many ticks on a clock that is moved by hand: python -m tests.bench.soak TICKS. Memory and descriptors must stay."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time

from gpuagent.clock import ManualClock
from gpuagent.config.models import Config
from gpuagent.monitor.monitor import Monitor, Pace, Place
from gpuagent.nvml.library import Library
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import ProcessTable
from gpuagent.procfs.watch import PidfdWatcher
from gpuagent.simulated.node import SimulatedNode
from gpuagent.simulated.scenario import load_scenario
from gpuagent.view import View
from tests.bench.measure import descriptors, resident_bytes

_SLOW_EVERY = 15
_REPORTS = 10


async def soak(ticks: int) -> None:
    """The agent's own work without its sockets: tick each second, slow collectors and a scrape every 15."""
    clock = ManualClock()
    node = SimulatedNode(load_scenario("crowd"), clock, fallback=RealProc())
    boot_time = node.proc.boot_time_seconds
    table = ProcessTable(
        node.proc, clock, watch=PidfdWatcher(), boot_id="soak", boot_time_seconds=boot_time, host_pid_namespace=True
    )
    place = Place(boot_id="soak", simulated=node.name, pci_gpus=node.pci_gpu_count)
    library = Library(node.library, max_pid=node.max_pid)
    monitor = Monitor(library, table, clock, Pace(deadline_seconds=60.0), place)
    view = View(Config(), clock, node.name)
    started = time.monotonic()
    report_every = max(ticks // _REPORTS, 1)
    for tick in range(1, ticks + 1):
        if tick % _SLOW_EVERY == 0:
            monitor.request_slow()
            view.metrics(openmetrics=False)
        view.update(await monitor.tick())
        clock.advance(1)
        if tick == 1 or tick % report_every == 0:
            _report(tick, time.monotonic() - started)
    await monitor.close()


def _report(tick: int, seconds: float) -> None:
    gc.collect()
    me = os.getpid()
    print(  # noqa: T201
        f"  tick {tick:>7}  RSS {resident_bytes(me) / 2**20:6.1f} MiB  descriptors {descriptors(me):4}  {seconds:7.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(soak(int(sys.argv[1])))
