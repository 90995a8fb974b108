"""A monitor over a simulated node, by a clock that stands still until told: the agent without service and doors."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gpuagent.collector.inventory import Inventory
from gpuagent.collector.sleep import RuntimePower
from gpuagent.collector.tick import Monitor, MonitorContext, ProcessResolver, TickTimeouts
from gpuagent.core.clock import ManualClock
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import GpuReading, GpuState, Snapshot
from gpuagent.driver.nvml.driver import NvmlDriver
from gpuagent.driver.nvml.library import Library
from gpuagent.procfs.containers import ContainerNames, PodNames
from gpuagent.procfs.kernel_log import Address
from gpuagent.procfs.table import ProcessTable
from gpuagent_simulator.captures.node import open_node
from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import parse_scenario
from tests.fakes.nvml import use
from tests.fakes.proc import FakeWatcher

PATIENT = TickTimeouts(fresh_seconds=2.0, deadline_seconds=20.0)
"""Waits for every answer, however busy the machine: a tick ends as soon as all are in."""
HASTY = TickTimeouts(fresh_seconds=2.0, deadline_seconds=0.03)
"""For calls that hang: a tick takes this long, and a late answer counts in the next one."""
BOOT_ID = "boot"


@dataclass
class Rig:
    """What a test holds in its hands."""

    node: SimulatedNode
    clock: ManualClock
    monitor: Monitor
    closed: bool = False

    async def tick(self, seconds: float = 1.0, *, slow: bool = False) -> Snapshot:
        """The next tick, so many seconds after the last one: long enough for GPUs to have been counted."""
        if self.monitor.pace is PATIENT:
            await self.monitor._wait([self.monitor._nvml], time.monotonic() + 20)
        self.clock.advance(seconds)
        if slow:
            self.monitor.request_slow()
        return await self.monitor.tick()

    async def hasty_tick(self, seconds: float = 1.0, *, slow: bool = False, well: Collection[int] = (0,)) -> Snapshot:
        """A tick in which some call does not come back.

        It is short, and so may be too short on a busy machine for the GPUs that are `well`: they are waited for.
        """
        self.monitor.pace = HASTY
        snapshot = await self.tick(seconds, slow=slow)
        while set(well) - {gpu.identity.index for gpu in snapshot.gpus if gpu.measured_seconds == self.clock.now()}:
            slots = [slot.worker for index, slot in self.monitor._pool.items() if index in well]
            await self.monitor._wait([self.monitor._nvml, *slots], time.monotonic() + 20)
            snapshot = await self.monitor.tick()
        self.monitor.pace = PATIENT
        return snapshot

    def fail(self, kind: FaultKind, **details: object) -> Fault:
        """Let something go wrong from now on."""
        return self.node.inject(Fault(kind, **details))  # type: ignore[arg-type]

    async def mend(self) -> None:
        """Take every fault back, and wait for the calls that were in flight."""
        self.node.clear()
        await self.settle()

    async def settle(self) -> None:
        """Until no call is in flight."""
        slots = [slot.worker for slot in self.monitor._pool.values()]
        await self.monitor._wait([self.monitor._nvml, *slots], time.monotonic() + 20)

    async def close(self, timeout_seconds: float) -> None:
        """Leave the driver for good."""
        self.closed = True
        await self.monitor.close(timeout_seconds)

    def names(self, gpu: int | None = None) -> set[str]:
        """Names of the metrics that are exported now, of the whole node or of one GPU."""
        return {
            family.name
            for family, samples in series(self.monitor.snapshot, self.clock.now())
            if gpu is None
            or any(dict(zip(family.labels, s.labels, strict=True)).get("gpu") == str(gpu) for s in samples)
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series, None if there is none."""
        for family, samples in series(self.monitor.snapshot, self.clock.now()):
            for sample in samples if family.name == name else ():
                has = dict(zip(family.labels, sample.labels, strict=True))
                if all(has.get(label) == value for label, value in labels.items()):
                    return sample.value
        return None


@asynccontextmanager
async def rig(
    scenario: str,
    *,
    faults: Sequence[Fault] = (),
    processes: ProcessResolver | None = None,
    pods: PodNames | None = None,
    containers: ContainerNames | None = None,
    inventory: Inventory | None = None,
    pci_gpus: Callable[[], int | None] | None = None,
    fallen: Callable[[], Iterable[Address]] = tuple,
    power: Callable[[str], RuntimePower | None] = lambda _: None,
    host_pid_namespace: bool = True,
    wrap: Callable[[object], object] = lambda library: library,
    events: bool = True,
    clock: ManualClock | None = None,
) -> AsyncIterator[Rig]:
    """A node from a shipped scenario's name or from a scenario's text. At the end no thread is left behind.

    `faults` hold from the start; `wrap` may put something between pynvml and the simulated library. Without `events`
    the library cannot wait for Xids: a wait takes a second, and NVML is not left before it is over.
    """
    before = _nvml_threads()
    clock = clock or ManualClock()
    text = "\n" in scenario
    node = SimulatedNode(parse_scenario(scenario, name="test"), clock) if text else open_node(scenario, clock)
    for fault in faults:
        node.inject(fault)
    table = processes or ProcessTable(
        node.proc,
        clock,
        pods=pods,
        containers=containers,
        watch=FakeWatcher(able=False),
        users=lambda uid: node.proc.user_name(uid) or str(uid),
        boot_id=BOOT_ID,
        boot_time_seconds=node.proc.boot_time_seconds,
        host_pid_namespace=host_pid_namespace and node.host_pid_namespace,
        cgroup_owner=lambda level, *, whole: True,  # made-up cgroups are root's
    )
    pci_gpus = pci_gpus or node.pci_gpu_count
    place = MonitorContext(
        boot_id=BOOT_ID,
        simulated=node.name,
        inventory=inventory,
        pci_gpus=pci_gpus,
        fallen=fallen,
        power=power,
        host_memory=node.host_memory,
        memory_pressure=node.memory_pressure,
    )
    library = node.library if events else _WithoutEvents(node.library)
    with use(wrap(library)):
        monitor = Monitor(NvmlDriver(Library(max_pid=node.max_pid), node.host_memory), table, clock, PATIENT, place)
        stage = Rig(node, clock, monitor)
        try:
            yield stage
        finally:
            node.clear()
            node.inject(Fault(FaultKind.DRIVER_RELOAD))  # ends the wait for events at once
            await stage.settle()
            if not stage.closed:
                await monitor.close(20)
            for thread in _nvml_threads() - before:
                thread.join(20)
            node.close()
    assert _nvml_threads() <= before


class _WithoutEvents:
    def __init__(self, library: object) -> None:
        self._library = library

    def __getattr__(self, symbol: str) -> Any:
        if symbol == "nvmlEventSetWait_v2":
            raise AttributeError(symbol)
        return getattr(self._library, symbol)


def _nvml_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("nvml")}


def state(snapshot: Snapshot, index: int) -> GpuState:
    """The state of the GPU at an index."""
    return at(snapshot, index).state


def at(snapshot: Snapshot, index: int) -> GpuReading:
    """The reading of the GPU at an index."""
    (reading,) = (gpu for gpu in snapshot.gpus if gpu.identity.index == index)
    return reading


def failing(reading: GpuReading) -> dict[str, str]:
    """Collectors that failed in this reading, with their reasons."""
    return {run.collector: run.reason for run in reading.runs if not run.ok}
