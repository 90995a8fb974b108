"""A day of the agent's work, on a clock moved by hand: python -m benchmarks.soak TICKS [SECONDS].

8 GPUs with 64 real processes each, of which one is another every 8 s, with a command line of its own: in 24 hours
10,800 come and go. Memory and descriptors must stay what they were after the first hour. The process holds the
simulated node and the receiver of messages as well; they remember nothing, so what counts is what it gains.

A tick is a second of that clock, or so many SECONDS: nearly all that is kept is bounded by time or by number, so that
17,280 ticks of 5 s show a day in a third of the time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.exporters import GPUS, PROCESSES, write_crowd
from benchmarks.heap import heap
from benchmarks.measure import descriptors
from benchmarks.receiver import Receiver
from gpuagent.collector.tick import Monitor, MonitorContext, TickTimeouts
from gpuagent.config.load import load_config
from gpuagent.config.rules import load_rules
from gpuagent.core.clock import ManualClock
from gpuagent.core.identity import NodeIdentity
from gpuagent.driver.nvml.driver import NvmlDriver
from gpuagent.driver.nvml.library import Library
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.machine import raise_descriptor_limit
from gpuagent.procfs.table import PidfdWatcher, ProcessTable
from gpuagent.runtime.memory import c_library, set_up_heap, trim_and_freeze, trim_heap
from gpuagent.service.alerting import Alerting
from gpuagent.service.view import View
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.usage.accounting import UsageAccounting, UsageSettings
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import parse_scenario

RULES = """\
groups:
  - name: soak
    rules:
      - alert: Newcomer
        # By a label of its own: as processes of one parent all of them would be one incident.
        expr: >-
          sum by (newcomer)
          (label_replace(gpuagent_process_memory_used_bytes{process="head"}, "newcomer", "$1", "pid", "(.*)")) > 0
        for: 5s
        annotations: {summary: "pid {{ $labels.newcomer }} has {{ $value | humanize1024 }}B"}
"""
SLOW_SECONDS = 15
SCRAPE_SECONDS = 60
HOUSEKEEPING_SECONDS = 60
NEWCOMER_SECONDS = 8
HOUR_SECONDS = 3600
BAR_MIB = 2.0
"""How much may be gained after the first hour."""


@dataclass
class Agent:
    """Its parts, as the service puts them together."""

    monitor: Monitor
    leaks: LeakDetection
    usage: UsageAccounting
    view: View
    alerting: Alerting
    clock: ManualClock

    async def tick(self, now: Time) -> None:
        """What the service does each second, and what it does at intervals, when its time has come."""
        if now.is_due(SLOW_SECONDS):
            self.monitor.request_slow()
        if now.is_due(self.leaks.keep_interval_seconds):
            await self.leaks.keep()
        snapshot = self.leaks.observe(await self.monitor.tick())
        self.usage.observe(snapshot)
        if now.is_due(self.usage.save_interval_seconds):
            await self.usage.save()
        self.view.update(snapshot)
        self.alerting.feed(snapshot)
        if self.alerting._task is not None:  # a second is long enough for an evaluation
            await self.alerting._task
        if now.is_due(SCRAPE_SECONDS):
            self.view.metrics(openmetrics=now.is_due(2 * SCRAPE_SECONDS))
            self.view.status()
        if now.is_due(HOUSEKEEPING_SECONDS):
            await self.alerting.housekeeping()
            trim_heap(c_library())  # last, so that what is reported is what is kept
        self.clock.advance(now.step_seconds)


@dataclass(frozen=True)
class Time:
    """A tick, and how far they are from each other."""

    tick: int
    step_seconds: int

    @property
    def seconds(self) -> int:
        """Since the start."""
        return self.tick * self.step_seconds

    def is_due(self, every_seconds: float) -> bool:
        """Whether this is the first tick of such an interval."""
        return self.seconds % every_seconds < self.step_seconds


@asynccontextmanager
async def agent(node: SimulatedNode, clock: ManualClock, folder: Path, url: str) -> AsyncIterator[Agent]:
    """The shipped rules and one more, the leak detector, a state file on a disk, and one receiver."""
    rules = folder / "rules.yaml"
    rules.write_text(RULES, encoding="utf-8")
    file = folder / "gpuagent.yaml"
    receivers = [{"name": "receiver", "webhook": {"url": url}, "max_messages_per_hour": 100_000}]
    # Each newcomer is an incident, over before the usual wait is: without a wait and a cap each of them is told.
    routes = [{"receivers": ["receiver"], "group_wait": "0s"}]
    keys = {"rule_files": [str(rules)], "receivers": receivers, "routes": routes}
    file.write_text(json.dumps(keys), encoding="utf-8")
    config = load_config(file, is_root=True)
    table = ProcessTable(
        node.proc,
        clock,
        watch=PidfdWatcher(),
        boot_id="soak",
        boot_time_seconds=node.proc.boot_time_seconds,
        host_pid_namespace=True,
    )
    place = MonitorContext(boot_id="soak", simulated=node.name, pci_gpus=node.pci_gpu_count)
    monitor = Monitor(
        NvmlDriver(Library(node.library, max_pid=node.max_pid)),
        table,
        clock,
        TickTimeouts(deadline_seconds=60.0),
        place,
    )
    alerting = Alerting(
        config, load_rules(config), clock, NodeIdentity("soak", folder / "state.db", simulated=node.name)
    )
    leaks = LeakDetection(config.leaks.sensitivity, clock, store=alerting.store, boot_id="soak")
    usage = UsageAccounting(UsageSettings(), clock, alerting.store, 2.0 * SLOW_SECONDS, node="soak")
    view = View(config, clock, node.name, alerting.figures, lambda: [leaks.further(), usage.further()])
    leaks.open()
    await alerting.open(lambda: True)
    try:
        yield Agent(monitor, leaks, usage, view, alerting, clock)
    finally:
        await usage.close()
        await leaks.close()
        await alerting.close()
        await monitor.close()


class Crowd:
    """Real processes. They wait for input that never comes, so that they end with this process, whatever ends it."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._input, self._never = os.pipe()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.newcomers = 0

    def settle(self) -> None:
        """Those that stay: one for each place but the last."""
        for number in range(GPUS * PROCESSES - 1):
            self._begin(str(number), "cat")

    def replace(self) -> None:
        """In the last place, another one in place of the last."""
        key = str(GPUS * PROCESSES - 1)
        if self.newcomers:
            self._end(key)
        self.newcomers += 1
        self._begin(key, "head", "-c", str(self.newcomers))

    def leave(self) -> None:
        """All of them."""
        for key in list(self._children):
            self._end(key)
        os.close(self._input)
        os.close(self._never)

    def _begin(self, key: str, *command: str) -> None:
        child = self._children[key] = subprocess.Popen(command, stdin=self._input)
        self._node.bind(key, child.pid)

    def _end(self, key: str) -> None:
        child = self._children.pop(key)
        child.kill()
        child.wait()


async def soak(ticks: int, step_seconds: int, folder: Path) -> None:
    """Ticks, leak detection, rules, messages and scrapes, with processes that come and go.

    It reports at the first tick, each hour and at the end.
    """
    set_up_heap(c_library())
    clock = ManualClock(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
    scenario = parse_scenario(write_crowd(folder).read_text(encoding="utf-8"), name="soak")
    node = SimulatedNode(scenario, clock, fallback=RealProc())
    crowd, receiver = Crowd(node), Receiver()
    crowd.settle()
    # The processes are real and start by the machine's clock: who starts after a listing is a stranger to its memory.
    clock.advance(time.clock_gettime(time.CLOCK_BOOTTIME) - clock.now())
    started = time.monotonic()
    memory: dict[int, float] = {}
    async with receiver.listening() as url, agent(node, clock, folder, url) as running:
        for tick in range(1, ticks + 1):
            now = Time(tick, step_seconds)
            if now.is_due(NEWCOMER_SECONDS):
                crowd.replace()
            await running.tick(now)
            if tick == 1:
                trim_and_freeze(c_library())
            if now.is_due(HOUR_SECONDS) or tick in {1, ticks}:
                memory[now.seconds] = _report(now, time.monotonic() - started, receiver.messages)
        crowd.leave()
    if HOUR_SECONDS in memory:
        gained = max(value for seconds, value in memory.items() if seconds >= HOUR_SECONDS) - memory[HOUR_SECONDS]
        later = [value for seconds, value in memory.items() if 2 * seconds >= ticks * step_seconds]
        say(f"  after the first hour {gained:+.1f} MiB at most (bar: {BAR_MIB:+.1f}); {crowd.newcomers} processes came")
        say(f"  in the second half {later[-1] - later[0]:+.1f} MiB")


def _report(now: Time, seconds: float, messages: int) -> float:
    """A line of figures; MiB of resident memory."""
    at, files = heap(), descriptors(os.getpid())
    resident, anonymous, used, free = (
        count / 2**20 for count in (at.resident_bytes, at.anonymous_bytes, at.used_bytes, at.free_bytes)
    )
    say(
        f"  tick {now.tick:>6} {now.seconds / HOUR_SECONDS:6.2f} h  RSS {resident:5.1f} MiB  anonymous {anonymous:5.1f}"
        f"  malloc {used:5.1f} and {free:4.1f} free  blocks {at.python_blocks:7}"
        f"  descriptors {files:4}  threads {threading.active_count()}  messages {messages:6}  {seconds:7.1f} s"
    )
    return resident


def say(text: str) -> None:
    """A line of the report."""
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Everything is kept below the folder for temporary files, and gone afterwards."""
    logging.getLogger("gpuagent_alerts.messages.transitions").setLevel(
        logging.CRITICAL
    )  # ten thousand alerts come and go
    ticks, step_seconds = int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1
    raise_descriptor_limit()
    with TemporaryDirectory(prefix="gpuagent-soak-") as folder:
        asyncio.run(soak(ticks, step_seconds, Path(folder)))


if __name__ == "__main__":
    main()
