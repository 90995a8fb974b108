"""`gpuagent status` as a whole process, beside the commands that people use today, over the same library."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Exporter, ExporterFailed

ROUNDS = 15
_START_SECONDS = 60.0
_PEERS = ("gpustat --json", "nvitop -1")


class Took(NamedTuple):
    """Medians of one command."""

    name: str
    wall_seconds: float
    cpu_seconds: float


def status_times(agent: Exporter, socket: Path, peers: Path | None, rounds: int = ROUNDS) -> list[Took]:
    """`gpuagent status`, the peers beside the interpreter `peers`, and an interpreter that does nothing.

    In turn, so that what else the machine does meets all of them.

    Raises:
        ExporterFailed: the agent does not answer, or a command fails.
    """
    ours = [str(Path(sys.executable).with_name("gpuagent")), "status", "--socket", str(socket)]
    commands = {"gpuagent status": ours, "gpuagent status --json": [*ours, "--json"]}
    if peers is not None:
        for name in _PEERS:
            program, *options = name.split()
            commands[name] = [str(peers.with_name(program)), *options]
    commands["python -c pass"] = [sys.executable, "-c", "pass"]
    with _answering(agent, ours):
        for command in commands.values():
            _run(command, agent.environment)  # once, so that all files are in memory
        times = [[_run(command, agent.environment) for command in commands.values()] for _ in range(rounds)]
    return [
        Took(name, *(statistics.median(values) for values in zip(*taken, strict=True)))
        for name, taken in zip(commands, zip(*times, strict=True), strict=True)
    ]


def show_status(found: Sequence[Took]) -> Iterator[str]:
    """Lines of a table, and of the verdict."""
    yield f"{'whole process, medians':24}{'wall, ms':>10}{'CPU, ms':>10}"
    for took in found:
        yield f"{took.name:24}{took.wall_seconds * 1e3:>10.0f}{took.cpu_seconds * 1e3:>10.0f}"
    peers = [took for took in found if took.name in _PEERS]
    if peers:
        faster = min(peers, key=lambda took: took.wall_seconds)
        ratio = found[0].wall_seconds / faster.wall_seconds
        yield f"gpuagent status takes {ratio:.2f} of the time of {faster.name} (bar: at most 1)"


@contextmanager
def _answering(agent: Exporter, command: Sequence[str]) -> Iterator[None]:
    with agent.log.open("wb") as log:
        running = subprocess.Popen(agent.command, env=agent.environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while subprocess.run(command, capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                raise ExporterFailed(f"{agent.name} does not answer on its control socket")
            time.sleep(0.2)
        yield
    finally:
        running.kill()
        running.wait()


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Wall clock and CPU time of one whole process, in seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition(os.linesep)[2]
        raise ExporterFailed(f"{Path(command[0]).name} ended with {done.returncode}: {last}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
