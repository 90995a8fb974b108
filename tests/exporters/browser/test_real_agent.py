"""The page of the real agent over a simulated node, in headless Chromium."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporters.browser.chromium import Tab, axe
from tests.integration.agent import running_agent

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium"), pytest.mark.timeout(180)]

NAME = "<b>bad</b>"
"""What a process may call itself: the kernel allows 15 bytes of anything."""
SCENARIO = {
    "description": "one process with a hostile name grows",
    "gpus": [
        {
            "model": "h100",
            "processes": [
                {
                    "name": NAME,
                    "user": "alice",
                    "command": "<script>document.title='owned'</script>",
                    "memory": {"shape": "ramp", "start": "6GiB", "rate": "24MiB", "cap": "78GiB"},
                }
            ],
        }
    ],
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path: it holds unix sockets."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        yield Path(name)


def test_from_the_first_tick_to_the_loss_of_the_agent(tab: Tab, folder: Path) -> None:
    """EXP-05: live figures, chart and alerts of a running agent, a hostile name as text, and LOST when it is killed."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(json.dumps(SCENARIO), encoding="utf-8")  # JSON is YAML
    with running_agent(folder, scenario, speed=20.0) as agent:
        agent.wait_until_ready()
        tab.open(agent.url + "/")
        tab.until("document.querySelector('.plot .area')")
        first = tab.run("parseFloat(document.querySelector('tbody td.number').textContent)")
        tab.until(f"parseFloat(document.querySelector('tbody td.number').textContent) > {first}")

        for words in (
            "SIMULATED",
            "Watchdog fires for nobody",
            "Nothing was done",
            NAME,
            "<script>document.title=",
            "alice",
        ):
            assert words in tab.text
        assert NAME in tab.run("document.querySelector('.legend').textContent")
        assert tab.run("document.querySelectorAll('tbody b, main script').length") == 0
        assert tab.run("document.title").startswith("gpuagent")
        assert axe(tab) == []
        assert tab.complaints == []

        agent.process.kill()
        agent.process.wait()
        tab.until("document.title.startsWith('LOST')")
        assert "AGENT LOST: the agent cannot be reached" in tab.text
