"""The other commands as processes of their own, against a running agent."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent import __version__
from tests.integration.agent import Agent, command, running_agent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """An agent on a node that is well."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        running_agent(Path(folder), "healthy") as running,
    ):
        running.wait_until_ready()
        yield running


def test_status_shows_the_node(agent: Agent) -> None:
    """One screen that says that the node is simulated, nothing cut in a pipe, and nothing on standard error."""
    shown = agent.command("status")

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "SIMULATED" in shown.stdout
    assert "GPU 1" in shown.stdout
    assert "…" not in shown.stdout


def test_status_is_the_document_of_the_http_side(agent: Agent) -> None:
    """`status --json`, the socket and the address tell the same."""
    document = json.loads(agent.command("status", "--json").stdout)
    by_url = json.loads(command("status", "--json", "--url", agent.url).stdout)

    assert document["schema"] == 1
    assert document.keys() == by_url.keys() == agent.status().keys()
    assert [gpu["uuid"] for gpu in document["gpus"]] == [gpu["uuid"] for gpu in by_url["gpus"]]


def test_ps_lists_every_process(agent: Agent) -> None:
    """The processes of the scenario, largest first, for people and for programs."""
    document = json.loads(agent.command("ps", "--json").stdout)
    shown = agent.command("ps", "--user", "alice").stdout

    sizes = [process["memory_used_bytes"] for process in document["processes"]]
    assert {process["process"] for process in document["processes"]} == {
        "whisper-server", "vllm", "python3", "tritonserver", "jupyter-lab",
    }  # fmt: skip
    assert sizes == sorted(sizes, reverse=True)
    assert len(shown.splitlines()) == 2
    assert "train.py" in shown


def test_check_answers_as_nagios_asks(agent: Agent) -> None:
    """0 while all is well, 2 beyond a limit, 3 without an agent: the first line says so, more stands below."""
    well = agent.command("check")
    full = agent.command("check", "--warning", "1%", "--critical", "2%")
    none = command("check", "--socket", str(agent.folder / "nobody.sock"))

    assert [well.returncode, full.returncode, none.returncode] == [0, 2, 3]
    assert [answer.stdout.split(" - ")[0] for answer in (well, full, none)] == [
        "GPU OK", "GPU CRITICAL", "GPU UNKNOWN",
    ]  # fmt: skip
    assert [len(answer.stdout.splitlines()) for answer in (well, none)] == [1, 1]
    assert len(full.stdout.splitlines()[0].partition("|")[0]) <= len("GPU CRITICAL - ") + 120


def test_doctor_finds_the_running_agent(agent: Agent) -> None:
    """A node that is well has no failure, and the agent that runs is found by its configuration."""
    examined = command("doctor", "--config", str(agent.folder / "gpuagent.yaml"), "--simulate", "healthy", "--json")

    findings = json.loads(examined.stdout)
    assert examined.returncode == 0
    assert "failure" not in {finding["level"] for finding in findings}
    assert [finding["text"] for finding in findings if finding["subject"] == "agent"] == [
        f"version {__version__} is running"
    ]


def test_config_shows_what_is_in_force(agent: Agent) -> None:
    """`config check` accepts the file that the agent runs with, and `config show` tells all of it with the defaults."""
    file = str(agent.folder / "gpuagent.yaml")
    checked = command("config", "check", file)
    shown = json.loads(command("config", "show", "--config", file, "--json").stdout)

    assert (checked.returncode, checked.stdout) == (0, f"{file}: ok\n")
    assert shown["listen"] == f"127.0.0.1:{agent.port}"
    assert shown["processes"]["top"] == 64


def test_pause_gives_the_driver_back(agent: Agent) -> None:
    """GPU-10: after `pause` no handle is open and the agent says so; `resume` measures again."""
    paused = agent.command("pause", "--for", "5m")

    assert (paused.returncode, paused.stderr) == (0, "")
    assert agent.get("/-/healthy").status == 200
    assert "gpuagent_nvml_up 0" in agent.get("/metrics").text
    assert agent.command("resume").returncode == 0
    agent.wait_until_ready()


def test_without_an_agent_status_says_so(tmp_path: Path) -> None:
    """Data goes to standard output, the reason why there is none to standard error, with exit status 3."""
    nobody = command("status", "--socket", str(tmp_path / "nobody.sock"))

    assert (nobody.returncode, nobody.stdout) == (3, "")
    assert "Cannot reach the agent" in nobody.stderr
    assert "Traceback" not in nobody.stderr
