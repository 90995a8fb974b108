"""What a day of processes that come and go leaves behind, in small: benchmarks.soak shows the day itself."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import pytest
from benchmarks.soak import Time, agent

from gpuagent.core.clock import ManualClock
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import parse_scenario

_SCENARIO = """\
gpus:
  - model: h100
    processes:
      - {name: "worker-{n}", command: [worker, "--seed={n}"], memory: 1GiB, count: 2600, every: 1, life: 4}
"""
_SECONDS = 4
_WARM, _TICKS = 300, 600
"""1,200 processes in 20 min: more than any part remembers, for longer than any remembers one that has gone. Twice."""


async def _blocks(folder: Path) -> list[int]:
    """Pieces of Python objects in use once all that is bounded is full, and as many processes later."""
    clock = ManualClock()
    node = SimulatedNode(parse_scenario(_SCENARIO, name="churn"), clock)
    blocks = []
    async with agent(node, clock, folder, "http://127.0.0.1:9/") as running:
        for tick in range(1, _TICKS + 1):
            await running.tick(Time(tick, _SECONDS))
            if tick in {_WARM, _TICKS}:
                gc.collect()
                blocks.append(sys.getallocatedblocks())
    return blocks


@pytest.mark.slow
def test_processes_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    """EXP-01: with every process another name and command line, what is kept of those that were is bounded."""
    before, after = asyncio.run(_blocks(tmp_path))

    assert after - before < 1000
