"""The agent's monitor, clients' door and recorder over apps that are real, on GPUs that are not."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from tests.fakes.nvml import use

from benchmarks.leak.recorded.app import App
from gpuagent import __version__
from gpuagent.clients.server import ClientServer, client_server
from gpuagent.collector.tick import Monitor, MonitorContext, TickTimeouts
from gpuagent.config.models import Config
from gpuagent.core.clock import SystemClock
from gpuagent.driver.nvml.driver import NvmlDriver
from gpuagent.driver.nvml.library import Library
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.machine import boot_id
from gpuagent.procfs.table import PidfdWatcher, ProcessTable
from gpuagent.recording.sources import GpuSample, reading_of
from gpuagent_exporters.status.document import status_document
from gpuagent_simulator.curves import Shape
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import parse_scenario
from gpuagent_simulator.spec import Scenario

MIB = 2**20
_PACE = TickTimeouts(fresh_seconds=5.0, deadline_seconds=5.0)


class Stage:
    """What all recorders look at; `tick` is a look at the node."""

    def __init__(self, monitor: Monitor, door: ClientServer, clock: SystemClock) -> None:
        self._monitor = monitor
        self._door = door
        self._clock = clock
        self.reading = GpuSample(unread=None, problem="nothing read yet")

    async def tick(self) -> None:
        """As the agent's: the GPUs, then what the apps tell, then the status document that `gpuagent record` reads."""
        snapshot = await self._monitor.tick()
        snapshot = replace(snapshot, clients=self._door.readings(snapshot))
        document = status_document(
            snapshot,
            now_seconds=self._clock.now(),
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=None,
            poll_interval_seconds=1.0,
            history={},
            history_interval_seconds=0.0,
        )
        self.reading = reading_of(document)

    def read(self) -> GpuSample:
        """`Source` is this: the tick's reading, for each recorder the same."""
        return self.reading

    def close(self) -> None:
        """The stage is closed where it was opened."""


@asynccontextmanager
async def client_side(folder: Path) -> AsyncIterator[ClientServer]:
    """The socket that the apps connect to, in this folder."""
    config = Config(client_dir=folder)
    door = client_server(config, SystemClock(), boot_id())
    await door.open()
    try:
        yield door
    finally:
        await door.close()


@asynccontextmanager
async def stage(apps: Sequence[App], door: ClientServer) -> AsyncIterator[Stage]:
    """A GPU for each app, with so much room as its case says beside what it holds by now."""
    clock = SystemClock()
    node = SimulatedNode(scenario_of(apps), clock, fallback=RealProc())
    for number, app in enumerate(apps):
        node.bind(str(number), app.pid)
    table = ProcessTable(
        node.proc,
        clock,
        watch=PidfdWatcher(),
        users=str,
        boot_id=boot_id(),
        boot_time_seconds=node.proc.boot_time_seconds,
        host_pid_namespace=True,
    )
    with ExitStack() as left:
        left.enter_context(use(node.library))
        left.callback(node.close)
        place = MonitorContext(boot_id=boot_id(), simulated=node.name, pci_gpus=node.pci_gpu_count)
        monitor = Monitor(NvmlDriver(Library(max_pid=node.max_pid)), table, clock, _PACE, place)
        try:
            yield Stage(monitor, door, clock)
        finally:
            node.release()
            await monitor.close()


def scenario_of(apps: Sequence[App]) -> Scenario:
    """The memory of each process is what the kernel says it holds: no scenario file could say that."""
    gpus = [
        {
            "model": "h100",
            "memory": {"total": int(app.resident_bytes()) + app.case.room_mib * MIB, "reserved": 0},
            "processes": [{"name": "app", "bind": str(number), "memory": 0}],
        }
        for number, app in enumerate(apps)
    ]
    scenario = parse_scenario(json.dumps({"gpus": gpus}), name="recorded")
    filled = [
        replace(
            gpu,
            processes=tuple(replace(one, memory=cast("Shape", app.resident_bytes)) for one in gpu.processes),
        )
        for gpu, app in zip(scenario.gpus, apps, strict=True)
    ]
    return replace(scenario, gpus=tuple(filled))
