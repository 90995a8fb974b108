"""The Slurm epilog, beside a real agent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import PATIENCE_SECONDS

EPILOG = Path(__file__).parents[2] / "deploy" / "slurm" / "epilog.sh"
SCENARIO = """
description: two jobs, one of which does not let go
gpus:
  - model: h100
    processes:
      - {name: stays, memory: 8GiB, cgroup: /system.slice/slurmstepd.scope/job_7/step_0/user/task_0}
      - {name: leaves, memory: 8GiB, until: 12s, cgroup: /system.slice/slurmstepd.scope/job_8/step_0/user/task_0}
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Of a node with both jobs."""
    folder = tmp_path_factory.mktemp("slurm")
    story = folder / "scenario.yaml"
    story.write_text(SCENARIO, encoding="utf-8")
    with running_agent(folder, story) as agent:
        agent.wait_until_ready()
        yield agent


def after(job: str, folder: Path, socket: Path, patience: int) -> subprocess.CompletedProcess[str]:
    """Run it as slurmd does, with these programs on its path."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {
        "gpuagent": f'exec {sys.executable} -m gpuagent "$@" --socket {socket}',
        "logger": f'echo "$@" >> {folder / "syslog"}',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "GPUAGENT_EPILOG_SECONDS": str(patience)}
    if job:
        environment["SLURM_JOB_ID"] = job
    return subprocess.run(
        [EPILOG], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.mark.slow
def test_a_job_that_lets_go_costs_nothing(agent: Agent, tmp_path: Path) -> None:
    """A node whose job gives its memory back a moment later stays in service."""
    done = after("8", tmp_path, agent.control_socket, 30)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_job_that_holds_on_drains_the_node(agent: Agent, tmp_path: Path) -> None:
    """Nobody gets a GPU that an ended job still holds, and the log says which process it is."""
    done = after("7", tmp_path, agent.control_socket, 1)
    assert done.returncode == 1
    assert "job 7 has ended and still holds GPU memory" in done.stderr
    assert "stays" in (tmp_path / "syslog").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("job", ["7", ""])
def test_without_an_agent_or_a_job_it_has_no_opinion(job: str, tmp_path: Path) -> None:
    """A monitor that is down takes no node out of service."""
    assert after(job, tmp_path, tmp_path / "no.sock", 1).returncode == 0
