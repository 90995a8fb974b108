"""The real agent over a listed driver: `python -m tests.attack.agent CONFIG LISTING FAULTS`.

It is `gpuagent run` without `--simulate`: under a scenario the agent touches none but the processes that it was given,
which would hide the very faults that these tests look for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gpuagent.node
from gpuagent.cli import main
from gpuagent.core.clock import SystemClock
from gpuagent.procfs.machine import PidSpace
from tests.attack.driver import library_of
from tests.fakes.nvml import use


class SinceThisTest(PidSpace):
    """As on a machine that was booted when the test began: this one may have given out all numbers long ago."""

    forks_before: int

    def _forks(self) -> int | None:
        now = super()._forks()
        return None if now is None else now - self.forks_before


def count_from_now(note: Path) -> None:
    """Begin to count; an agent that is started again goes on."""
    if not note.exists():
        note.write_text(str(PidSpace().mark().forks), encoding="ascii")
    SinceThisTest.forks_before = int(note.read_text(encoding="ascii"))
    setattr(gpuagent.node, "PidSpace", SinceThisTest)  # noqa: B010


if __name__ == "__main__":
    config, listing, faults = sys.argv[1:]
    count_from_now(Path(listing).with_name("forks"))
    with use(library_of(Path(listing), Path(faults), SystemClock())):
        sys.argv = ["gpuagent", "run", "--config", config]
        main()
