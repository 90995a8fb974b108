"""A real agent with every part of the configuration in use: a good reload, a refused one, a refused start."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent import running_agent, write_config
from tests.integration.waiting import until

pytestmark = pytest.mark.slow

_KEYS: dict[str, Any] = {
    "receivers": [{"name": "hook", "webhook": {"url": "http://127.0.0.1:9/secret-path"}}],
    "routes": [{"receivers": ["hook"], "match": ['severity="critical"']}],
    "budgets": [{"match": {"user": "nobody"}, "memory": "6GiB"}],
    "sources": [{"name": "server", "ollama": "http://127.0.0.1:9"}],
    "remedies": {
        "allow": {"users": ["nobody"]},
        "ladders": [{"match": ['alertname="GpuMemoryLeak"'], "steps": [{"notify": {}}, {"terminate": {}}]}],
    },
    "poll_interval": "200ms",
}


def test_a_refused_reload_changes_nothing(folder: Path) -> None:
    """What held goes on, the misspelt key is told, and no secret is."""
    with running_agent(folder, None, **_KEYS) as agent:
        agent.wait_until_listening()
        agent.wait_until_logged("Watchdog fires")
        keys = _KEYS | {"poll_interval": "300ms"}
        write_config(folder, agent.port, **keys)
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: agent.status()["agent"]["poll_interval_seconds"] == 0.3, "the new interval is in force")

        write_config(folder, agent.port, **keys, poll_intervall="1s")
        agent.process.send_signal(signal.SIGHUP)
        agent.wait_until_logged("did you mean poll_interval?")

        assert agent.status()["agent"]["poll_interval_seconds"] == 0.3
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()
        assert "secret-path" not in agent.log()


def test_a_bad_configuration_is_told_as_ever(folder: Path) -> None:
    """All faults, each on its line, and the exit status that systemd knows."""
    with running_agent(folder, None, poll_intervall="1s", slow_interval="never") as agent:
        assert agent.process.wait(30) == 78

        assert len(agent.log().splitlines()) == 2
        assert "did you mean poll_interval?" in agent.log()
        assert "slow_interval" in agent.log()
