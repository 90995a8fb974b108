"""The two exporters of the comparison, over the same GPUs and the same real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.waiting import free_port

from benchmarks.measure import Exporter

ROOT = Path(__file__).parents[1]
PEERS = {"nvitop-exporter": "nvitop-exporter==1.7.2", "nvitop": "nvitop==1.7.2", "gpustat": "gpustat==1.1.1"}
"""Program and distribution."""
PEER_VENV = ROOT / ".venv-bench"
GPUS, PROCESSES = 8, 64
_LAUNCHER = str(Path(__file__).with_name("over_scenario.py"))


@contextmanager
def sleepers(number: int) -> Iterator[list[int]]:
    """Real processes that do nothing, so that /proc is real too; the children end with the block."""
    children = [subprocess.Popen(["sleep", "86400"]) for _ in range(number)]
    try:
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def write_crowd(folder: Path) -> Path:
    """The shipped `crowd` with real pids: 8 GPUs with 64 processes each, bound to 0, 1, 2..."""
    path = folder / "bound-crowd.yaml"
    gpus = [
        {
            "model": "h100",
            "processes": [
                {"name": "worker", "memory": "1GiB", "bind": str(gpu * PROCESSES + n), "utilization": {"sm": 1}}
                for n in range(PROCESSES)
            ],
        }
        for gpu in range(GPUS)
    ]
    path.write_text(json.dumps({"gpus": gpus}), encoding="utf-8")
    return path


def install_peer() -> Path | None:
    """The interpreter of an environment with the peers; None where they cannot be had."""
    python = PEER_VENV / "bin" / "python"
    if not all((PEER_VENV / "bin" / program).exists() for program in PEERS):
        wanted = [*PEERS.values(), "pyyaml"]  # the last is for the simulated library
        print(f"{PEER_VENV.name}: installing {' '.join(wanted)}", file=sys.stderr)  # noqa: T201
        commands = (
            [sys.executable, "-m", "venv", "--clear", str(PEER_VENV)],
            [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install", *wanted],
        )
        for command in commands:
            if subprocess.run(command, check=False).returncode:
                return None
    return python


def agent(folder: Path, place: list[str], environment: dict[str, str]) -> tuple[Exporter, Path]:
    """The agent with all that it does by default at 1 s, and its control socket. `place` runs it over a scenario."""
    port = free_port()
    config = folder / "gpuagent.yaml"
    keys = {f"{name}_dir": str(folder / name) for name in ("runtime", "state", "client")}
    config.write_text(json.dumps(keys | {"listen": f"127.0.0.1:{port}"}), encoding="utf-8")
    start = [sys.executable, "-P", *(place or ["-m"]), "gpuagent", "run", "--config", str(config)]
    made = Exporter("gpuagent", start, environment, port, folder / "agent.log")
    return made, folder / "runtime" / "control.sock"


def peer(python: Path, folder: Path, place: list[str], environment: dict[str, str]) -> Exporter:
    """nvitop-exporter at 1 s."""
    port = free_port()
    words = ["nvitop_exporter", "--port", str(port), "--interval", "1", "--hostname", "bench"]
    start = [str(python), "-P", *(place or ["-m"]), *words]
    return Exporter("nvitop-exporter 1.7.2", start, environment, port, folder / "nvitop.log")


def over_library(folder: str) -> dict[str, str]:
    """The environment of a program that loads libnvidia-ml.so.1 from a folder."""
    return {**as_a_user_has_it(), "LD_LIBRARY_PATH": folder}


def as_a_user_has_it() -> dict[str, str]:
    """The environment without what makes Python slower and larger: an installed agent has its modules compiled.

    And with what systemd/gpuagent.service sets, for the peer as well.
    """
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONNODEBUGRANGES": "1"}


def compile_modules() -> None:
    """As pip does with what it installs; a working tree need not have been run before."""
    folders = [str(ROOT / name) for name in ("agent", "exporters", "alerts", "simulator", "benchmarks")]
    subprocess.run([sys.executable, "-m", "compileall", "-qq", *folders], check=True)


def over_scenario(folder: Path, pids: list[int]) -> tuple[list[str], dict[str, str]]:
    """What goes before the program's name, and the environment, to run it over simulated GPUs."""
    listed = folder / "pids"
    listed.write_text("\n".join(map(str, pids)), encoding="ascii")
    return launcher(write_crowd(folder), listed, None)


def launcher(scenario: Path, pids: Path, start: float | None) -> tuple[list[str], dict[str, str]]:
    """The same for any scenario, which begins at this CLOCK_BOOTTIME (None: when the program starts)."""
    sources = os.pathsep.join(str(ROOT / name) for name in ("agent", "exporters", "alerts", "simulator", ""))
    beginning = "now" if start is None else str(start)
    return [_LAUNCHER, str(scenario), str(pids), beginning], {**as_a_user_has_it(), "PYTHONPATH": sources}
