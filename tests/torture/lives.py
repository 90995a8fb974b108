"""An agent that is killed and started again and again: forked from a process that has loaded everything already.

A start costs a second of loading, which hundreds of kills would mostly wait for; what runs in the fork is the command
`gpuagent run` with all that it does. Run as a program it forks one agent for each line it reads, and tells its pid.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path


class Zygote:
    """Makes agents. Each is to be killed or ended before the next."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._living: int | None = None

    def start(self) -> int:
        """The pid of a new agent."""
        self._say("start")
        self._living = int(self._hear())
        return self._living

    def reap(self) -> int:
        """Wait for the agent's end; returns its status as `waitpid` does."""
        self._say("reap")
        self._living = None
        return int(self._hear())

    def close(self) -> None:
        """Kill the agent that there still is."""
        if self._living is not None:
            os.kill(self._living, signal.SIGKILL)
            self.reap()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def zygote(config: Path, scenario: Path, log: Path) -> Iterator[Zygote]:
    """A process that makes agents of this configuration."""
    with log.open("wb") as file, subprocess.Popen(
        [sys.executable, "-m", "tests.torture.lives", str(config), str(scenario)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        made = Zygote(process)
        try:
            yield made
        finally:
            made.close()
            process.kill()


def main(config: str, scenario: str) -> None:
    """Make agents until the input ends."""
    for module in ("gpuagent.service.assemble", "gpuagent_simulator.node", "gpuagent_alerts.notify.receivers.http"):
        import_module(module)  # what a start would load
    from gpuagent.cli.app import app

    pid = 0
    for line in sys.stdin:
        if line == "start\n":
            pid = os.fork()
            if not pid:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDWR), 0)
                os.dup2(2, 1)
                app(["run", "--config", config, "--simulate", scenario])
                os._exit(70)
            _answer(pid)
        else:
            _answer(os.waitpid(pid, 0)[1])


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
