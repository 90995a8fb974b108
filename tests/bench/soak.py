"""Many ticks on a clock that is moved by hand: python -m tests.bench.soak TICKS. Memory and descriptors must stay."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
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
from gpuagent.simulated.scenario import parse_scenario
from gpuagent.view import View
from tests.bench.measure import descriptors, resident_bytes

SCENARIO = """\
gpus:
  - model: h100
    count: 2
    processes:
      - {name: "worker-{n}", user: svc-ml, memory: 1GiB, count: 63, utilization: {sm: 1}}
  - model: h100
    processes:
      - {name: newcomer, memory: 1GiB, bind: newcomer}
"""
_SLOW_EVERY = 15
_NEWCOMER_EVERY = 50
_REPORTS = 10


async def soak(ticks: int) -> None:
    """The agent's own work without its sockets.

    A tick each second, the slow collectors and a scrape every 15 ticks, and every 50 a new real process in the place of
    the one before.
    """
    clock = ManualClock()
    node = SimulatedNode(parse_scenario(SCENARIO, name="soak"), clock, fallback=RealProc())
    boot_time = node.proc.boot_time_seconds
    table = ProcessTable(
        node.proc, clock, watch=PidfdWatcher(), boot_id="soak", boot_time_seconds=boot_time, host_pid_namespace=True
    )
    place = Place(boot_id="soak", simulated=node.name, pci_gpus=node.pci_gpu_count)
    library = Library(node.library, max_pid=node.max_pid)
    monitor = Monitor(library, table, clock, Pace(deadline_seconds=60.0), place)
    view = View(Config(), clock, node.name)
    newcomer: subprocess.Popen[bytes] | None = None
    started = time.monotonic()
    report_every = max(ticks // _REPORTS, 1)
    for tick in range(1, ticks + 1):
        if tick % _SLOW_EVERY == 0:
            monitor.request_slow()
            view.metrics(openmetrics=False)
        if tick % _NEWCOMER_EVERY == 0:
            newcomer = _replace(newcomer)
            node.bind("newcomer", newcomer.pid)
        view.update(await monitor.tick())
        clock.advance(1)
        if tick == 1 or tick % report_every == 0:
            _report(tick, time.monotonic() - started)
    _end(newcomer)
    await monitor.close()


def _replace(process: subprocess.Popen[bytes] | None) -> subprocess.Popen[bytes]:
    _end(process)
    return subprocess.Popen(["sleep", "86400"])


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()


def _report(tick: int, seconds: float) -> None:
    gc.collect()
    memory, files = resident_bytes(os.getpid()) / 2**20, descriptors(os.getpid())
    print(f"  tick {tick:>7}  RSS {memory:6.1f} MiB  descriptors {files:4}  {seconds:7.1f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(soak(int(sys.argv[1])))
