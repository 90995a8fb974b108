"""The real agent over a listed driver: `python -m tests.attack.agent CONFIG LISTING FAULTS`.

It is `gpuagent run` without `--simulate`: under a scenario the agent touches none but the processes that it was given,
which would hide the very faults that these tests look for.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpuagent.cli import main
from gpuagent.clock import SystemClock
from tests.attack.driver import library_of
from tests.fakes.nvml import use

if __name__ == "__main__":
    config, listing, faults = sys.argv[1:]
    with use(library_of(Path(listing), Path(faults), SystemClock())):
        sys.argv = ["gpuagent", "run", "--config", config]
        main()
