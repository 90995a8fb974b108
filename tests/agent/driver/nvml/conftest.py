"""One GPU of a simulated node, opened the way the agent does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.driver.backend import Collected
from gpuagent.driver.nvml.device import NvmlDevice
from gpuagent.driver.nvml.driver import Collector
from gpuagent.driver.nvml.identity import open_device
from gpuagent.driver.nvml.library import Library
from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import parse_scenario
from tests.fakes.nvml import use

H100 = "{model: h100, processes: [{name: a, memory: 1GiB, utilization: {sm: 60, memory: 30}}, {name: b, memory: 2GiB}]}"


@dataclass
class Bench:
    """A node, its clock, and its first GPU."""

    node: SimulatedNode
    clock: ManualClock
    library: Library
    device: NvmlDevice
    collector: Collector

    def collect(self, seconds: float = 1.0, *, slow: bool = False) -> Collected:
        """The next collection."""
        self.clock.advance(seconds)
        return self.collector.collect(slow=slow)

    def fail(self, kind: FaultKind, **details: object) -> None:
        """Let something go wrong from now on."""
        self.node.inject(Fault(kind, **details))  # type: ignore[arg-type]


Open = Callable[..., Bench]


@pytest.fixture
def open_gpu() -> Iterator[Open]:
    """Opens the first GPU of a node; `faults` hold from before that."""
    with ExitStack() as stack:

        def opened(gpu: str = H100, *faults: Fault, driver: str = "580.95.05") -> Bench:
            clock = ManualClock()
            node = SimulatedNode(parse_scenario(f"driver: {driver}\ngpus:\n  - {gpu}\n"), clock)
            for fault in faults:
                node.inject(fault)
            stack.enter_context(use(node.library))
            stack.callback(node.close)
            library = Library(max_pid=node.max_pid)
            library.initialize()
            device = open_device(library, 0, clock, host_memory=node.host_memory)
            device.driver_version = driver
            return Bench(node, clock, library, device, Collector(device))

        yield opened
