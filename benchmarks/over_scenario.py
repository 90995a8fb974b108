"""Runs a program over simulated GPUs: python over_scenario.py SCENARIO PIDS START MODULE [ARGUMENT]...

The simulated library is placed under pynvml before the program starts, so that any program on pynvml sees the same
GPUs. Processes of the scenario with `bind: N` are the real process on line N of the file PIDS, counted from 0. START is
the CLOCK_BOOTTIME of the story's beginning, or `now`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pynvml

from gpuagent.core.clock import SystemClock
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import load_scenario


def main() -> None:
    """Place the library, then be the program."""
    scenario, pids, start, module, *arguments = sys.argv[1:]
    node = SimulatedNode(load_scenario(scenario), SystemClock(), start=None if start == "now" else float(start))
    for number, pid in enumerate(Path(pids).read_text(encoding="ascii").split()):
        node.bind(str(number), int(pid))
    pynvml.nvmlLib = node.library
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
