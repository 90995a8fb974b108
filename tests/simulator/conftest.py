"""A simulated node, opened through pynvml, on a clock that stands still until told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pynvml
import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import parse_scenario
from gpuagent_simulator.spec import Scenario
from tests.fakes.nvml import use

TWO_H100 = """
gpus:
  - model: h100
    count: 2
    processes:
      - {name: python3, user: alice, memory: 2GiB, utilization: {sm: 60, memory: 30}}
      - {name: idle, user: bob, memory: 1GiB}
"""


class Stage(NamedTuple):
    """A node and its clock."""

    node: SimulatedNode
    clock: ManualClock

    def handle(self, index: int = 0) -> Any:
        """A device handle, as pynvml gives it."""
        return pynvml.nvmlDeviceGetHandleByIndex(index)

    def pids(self, index: int = 0) -> list[int]:
        """Pids of the compute list."""
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(self.handle(index))
        return [process.pid for process in found]

    def used_bytes(self, index: int = 0) -> int:
        """Memory used, without reserved."""
        memory = pynvml.nvmlDeviceGetMemoryInfo(self.handle(index), pynvml.nvmlMemory_v2)
        return int(memory.used)


OpenNode = Callable[..., Stage]


@pytest.fixture
def open_node() -> Iterator[OpenNode]:
    """Makes a node of a scenario's text (or of a loaded one) and initializes the library."""
    with ExitStack() as stack:

        def opened(scenario: str | Scenario = TWO_H100, *, initialize: bool = True) -> Stage:
            clock = ManualClock()
            if isinstance(scenario, str):
                scenario = parse_scenario(scenario)
            node = SimulatedNode(scenario, clock)
            stack.enter_context(use(node.library))
            stack.callback(node.close)
            if initialize:
                pynvml.nvmlInit()
            return Stage(node, clock)

        yield opened
