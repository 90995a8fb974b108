"""A day of the agent's work, on a clock moved by hand: python -m tests.bench.soak TICKS.

8 GPUs with 64 processes each, of which one is another every 8 s: in 24 hours 10,800 come and go. Memory and descriptors
must stay what they were after the first hour. The process holds the simulated node and its bindings as well, so what
counts is what it gains.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuagent.alerting.alerting import Alerting, Where
from gpuagent.alerting.rules import load_rules
from gpuagent.clock import ManualClock
from gpuagent.config.load import load_config
from gpuagent.leaks.leaks import Leaks
from gpuagent.monitor.monitor import Monitor, Pace, Place
from gpuagent.nvml.library import Library
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import ProcessTable
from gpuagent.procfs.watch import PidfdWatcher
from gpuagent.runtime.memory import c_library, map_large_blocks, settle
from gpuagent.simulated.node import SimulatedNode
from gpuagent.simulated.scenario import parse_scenario
from gpuagent.view import View
from tests.bench.measure import descriptors, resident_bytes
from tests.bench.receiver import Receiver

SCENARIO = """\
gpus:
  - model: h100
    count: 7
    processes:
      - {name: "worker-{n}", user: svc-ml, memory: 1GiB, count: 64, utilization: {sm: 1}}
  - model: h100
    processes:
      - {name: "worker-{n}", user: svc-ml, memory: 1GiB, count: 63, utilization: {sm: 1}}
      - {name: newcomer, memory: 1GiB, bind: newcomer}
"""
RULES = """\
groups:
  - name: soak
    rules:
      - alert: Newcomer
        expr: gpuagent_process_memory_used_bytes{process="sleep"} > 0
        for: 5s
        annotations: {summary: "pid {{ $labels.pid }} has {{ $value | humanize1024 }}B"}
"""
SLOW_EVERY = 15
HOUSEKEEPING_EVERY = 60
NEWCOMER_EVERY = 8
HOUR = 3600
BAR_MIB = 2.0
"""How much may be gained after the first hour."""
_REPORTS = 10


@dataclass
class Agent:
    """Its parts, as the service puts them together."""

    monitor: Monitor
    leaks: Leaks
    view: View
    alerting: Alerting
    clock: ManualClock

    async def tick(self, number: int) -> None:
        """What the service does each second, and what it does at intervals, when its time has come."""
        if number % SLOW_EVERY == 0:
            self.monitor.request_slow()
        if number % HOUSEKEEPING_EVERY == 0:
            await self.alerting.housekeeping()
        if number % int(self.leaks.keep_interval_seconds) == 0:
            await self.leaks.keep()
        snapshot = self.leaks.observe(await self.monitor.tick())
        self.view.update(snapshot)
        self.alerting.feed(snapshot)
        if self.alerting._task is not None:  # a second is long enough for an evaluation
            await self.alerting._task
        if number % SLOW_EVERY == 0:
            self.view.metrics(openmetrics=number % (2 * SLOW_EVERY) == 0)
            self.view.status()
        self.clock.advance(1)


@asynccontextmanager
async def agent(node: SimulatedNode, clock: ManualClock, folder: Path, url: str) -> AsyncIterator[Agent]:
    """The shipped rules and one more, the leak detector, a state file on a disk, and one receiver."""
    rules = folder / "rules.yaml"
    rules.write_text(RULES, encoding="utf-8")
    file = folder / "gpuagent.yaml"
    receivers = [{"name": "receiver", "webhook": {"url": url}}]
    file.write_text(json.dumps({"rule_files": [str(rules)], "receivers": receivers}), encoding="utf-8")
    config = load_config(file, is_root=True)
    table = ProcessTable(
        node.proc,
        clock,
        watch=PidfdWatcher(),
        boot_id="soak",
        boot_time_seconds=node.proc.boot_time_seconds,
        host_pid_namespace=True,
    )
    place = Place(boot_id="soak", simulated=node.name, pci_gpus=node.pci_gpu_count)
    monitor = Monitor(Library(node.library, max_pid=node.max_pid), table, clock, Pace(deadline_seconds=60.0), place)
    alerting = Alerting(config, load_rules(config), clock, Where("soak", folder / "state.db", simulated=node.name))
    leaks = Leaks(config.leaks.sensitivity, clock, store=alerting.store, boot_id="soak")
    view = View(config, clock, node.name, alerting.figures, lambda: [leaks.further()])
    leaks.open()
    await alerting.open(lambda: True)
    try:
        yield Agent(monitor, leaks, view, alerting, clock)
    finally:
        await leaks.close()
        await alerting.close()
        await monitor.close()


class Newcomer:
    """A real process on the last GPU, replaced by another one again and again."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._process: subprocess.Popen[bytes] | None = None

    def replace(self) -> None:
        self.end()
        self._process = subprocess.Popen(["sleep", "86400"])
        self._node.bind("newcomer", self._process.pid)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


async def soak(ticks: int, folder: Path) -> None:
    """Ticks, leak detection, rules, messages and scrapes, with processes that come and go."""
    map_large_blocks(c_library())
    clock = ManualClock()
    node = SimulatedNode(parse_scenario(SCENARIO, name="soak"), clock, fallback=RealProc())
    newcomer, receiver = Newcomer(node), Receiver()
    started = time.monotonic()
    came = ticks // NEWCOMER_EVERY
    every = max(ticks // _REPORTS, 1)
    memory: dict[int, float] = {}
    async with receiver.listening() as url, agent(node, clock, folder, url) as running:
        for number in range(1, ticks + 1):
            if number % NEWCOMER_EVERY == 0:
                newcomer.replace()
            await running.tick(number)
            if number == 1:
                settle(c_library())
            if number in {1, HOUR} or number % every == 0:
                memory[number] = _report(number, time.monotonic() - started, receiver.messages)
        newcomer.end()
    if ticks > HOUR:
        gained = max(value for tick, value in memory.items() if tick >= HOUR) - memory[HOUR]
        say(f"  after the first hour {gained:+.1f} MiB at most (bar: {BAR_MIB:+.1f}), {came} processes came and went")


def _report(tick: int, seconds: float, messages: int) -> float:
    memory, files = resident_bytes(os.getpid()) / 2**20, descriptors(os.getpid())
    say(f"  tick {tick:>7}  RSS {memory:6.1f} MiB  descriptors {files:4}  messages {messages:6}  {seconds:7.1f} s")
    return memory


def say(text: str) -> None:
    """A line of the report."""
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Everything is kept below the folder for temporary files, and gone afterwards."""
    logging.getLogger("gpuagent.alerting.transitions").setLevel(logging.CRITICAL)  # ten thousand alerts come and go
    with TemporaryDirectory(prefix="gpuagent-soak-") as folder:
        asyncio.run(soak(int(sys.argv[1]), Path(folder)))


if __name__ == "__main__":
    main()
