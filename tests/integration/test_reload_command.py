"""`gpuagent config reload`, which the unit's ExecReload runs, against a real agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.agent import running_agent, write_config

pytestmark = pytest.mark.slow


def test_a_reload_tells_what_came_of_it(folder: Path) -> None:
    """Status 0 when it is in force; 1 with every fault when it is refused, so that `systemctl reload` fails."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        write_config(folder, agent.port, processes={"top": 3})
        good = agent.command("config", "reload")
        assert (good.returncode, good.stderr) == (0, "")

        write_config(folder, agent.port, processes={"top": -5}, poll_intervall="1s")
        bad = agent.command("config", "reload")
        assert bad.returncode == 1
        assert "the old configuration stays in force" in bad.stderr
        assert "processes.top: -5" in bad.stderr
        assert "did you mean poll_interval?" in bad.stderr


def test_what_is_read_at_the_start_alone_is_named(folder: Path) -> None:
    """A name added to `http.allowed_hosts` is not silently left out: the log says that it takes a restart."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        write_config(folder, agent.port, http={"allowed_hosts": ["gpu7.corp.example.com"]})
        assert agent.command("config", "reload").returncode == 0
        assert "http has changed: this takes effect at the next start" in agent.log()


def test_what_can_never_act_is_logged(folder: Path) -> None:
    """A ladder that waits in vain is a warning at the start and at each reload, and no fault."""

    def remedies(alertname: str) -> dict[str, object]:
        ladder = {"match": [f'alertname="{alertname}"'], "victim": "largest", "steps": [{"terminate": {}}]}
        return {"allow": {"users": ["svc"]}, "ladders": [ladder]}

    with running_agent(folder, "healthy", remedies=remedies("GpuMemroyHigh")) as agent:
        agent.wait_until_ready()
        assert ": remedies.ladders[0].match: there is no rule GpuMemroyHigh" in agent.log()
        write_config(folder, agent.port, remedies=remedies("GpuMemoryFul"))
        assert agent.command("config", "reload").returncode == 0
        assert "remedies.ladders[0].match: there is no rule GpuMemoryFul; did you mean" in agent.log()
        write_config(folder, agent.port, remedies=remedies("GpuMemoryFull"))
        assert agent.command("config", "reload").returncode == 0
        assert agent.log().count("remedies.ladders[0].match: there is no rule") == 2


def test_without_an_agent(folder: Path) -> None:
    """Nothing to tell it to: said in a line, with status 1."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        agent.stop()
        told = agent.command("config", "reload")
    assert told.returncode == 1
    assert told.stderr.startswith("Cannot reach the agent")
