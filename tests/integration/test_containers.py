"""Containers by name, from a runtime that answers like docker as far as a budget's series and the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.procfs.test_containers import docker
from tests.integration.agent import running_agent
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ONE, OTHER = "a" * 64, "b" * 64
SCENARIO = f"""
gpus:
  - model: h100
    processes:
      - {{name: server, memory: 4GiB, cgroup: "/system.slice/docker-{ONE}.scope"}}
      - {{name: server, memory: 2GiB, cgroup: "/system.slice/docker-{OTHER}.scope"}}
"""


def test_a_budget_for_a_container_by_its_name(folder: Path) -> None:
    """Both names are known soon after the start, each container is asked for once, and the budget counts its own."""
    (folder / "node.yaml").write_text(SCENARIO)
    answers = {each: (200, {"Id": each, "Name": f"/{name}"}) for each, name in ((ONE, "whisper"), (OTHER, "other"))}
    with (
        docker(folder / "docker.sock", **answers) as server,
        running_agent(
            folder, folder / "node.yaml", slow_interval="1s",
            processes={"container_socket": str(folder / "docker.sock")},
            budgets=[{"match": {"container": "whisper"}, "memory": "6GiB"}],
        ) as agent,
    ):  # fmt: skip
        agent.wait_until_ready()
        until(lambda: 'container_name="whisper"' in agent.get("/metrics").text, "the name is known")
        used = 'gpuagent_budget_used_bytes{budget="whisper",gpu="0",'
        until(lambda: f"{4 * 2**30}" in _line(agent.get("/metrics").text, used), "the budget counts its memory")
        assert "docker whisper" in agent.command("ps").stdout
        assert sorted(server.asked) == [f"/containers/{each}/json" for each in (ONE, OTHER)]
        assert agent.stop() == 0


def test_a_runtime_that_may_not_be_asked(folder: Path) -> None:
    """A problem with its reason and a metric say why there are no names; everything else goes on."""
    (folder / "node.yaml").write_text(SCENARIO)
    processes = {"container_socket": str(folder / "docker.sock")}
    with running_agent(folder, folder / "node.yaml", processes=processes) as agent:
        agent.wait_until_ready()
        failed = 'gpuagent_collector_success{collector="container_names",gpu="",uuid=""} 0'
        until(lambda: failed in agent.get("/metrics").text, "the metric tells")
        (problem,) = [each for each in agent.status()["problems"] if each["kind"] == "collector"]
        assert "container_names" in problem["text"]
        assert "No such file or directory" in problem["text"]
        assert f"docker {ONE[:12]}" in agent.command("ps").stdout
        assert agent.stop() == 0


def _line(text: str, start: str) -> str:
    """The line that begins so."""
    return next((line for line in text.splitlines() if line.startswith(start)), "")
