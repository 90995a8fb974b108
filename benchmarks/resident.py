"""Resident memory of a process that has loaded the agent and does nothing: python -m benchmarks.resident.

Run over a scenario as well, the difference is what the simulated library takes of an agent's memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from benchmarks.measure import resident_bytes


def loaded_bytes(place: Sequence[str], environment: Mapping[str, str], root: str) -> int:
    """Of such a process; `place` runs it over a scenario."""
    command = [sys.executable, *(place or ["-m"]), "benchmarks.resident"]
    said = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True).stdout
    return int(said.splitlines()[-1])


if __name__ == "__main__":
    for module in ("gpuagent.cli.base", "gpuagent.cli.run", "gpuagent.service.assemble"):
        import_module(module)
    sys.stdout.write(f"{resident_bytes(os.getpid())}\n")
