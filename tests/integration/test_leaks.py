"""A leak as it is lived with: a real agent over the leak scenario, twenty times as fast, and a real receiver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.notify.receivers.sink import sink
from tests.integration.agent import running_agent
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SPEED = 40
"""The story's 25 minutes until the leak is told are 40 s."""


def test_the_leak_scenario(folder: Path) -> None:
    """LEAK-01, LEAK-02: the process that leaks is told of, with reasons; its two healthy neighbors are not."""
    with sink() as receiver:
        hook = {"name": "hook", "webhook": {"url": f"{receiver.url}/hook"}}
        keys: dict[str, Any] = {"poll_interval": "5s", "receivers": [hook]}
        with running_agent(folder, "leak", speed=SPEED, **keys) as agent:
            agent.wait_until_ready()

            def leaks() -> list[dict[str, Any]]:
                return [
                    alert
                    for request in receiver.processed
                    for alert in json.loads(request.body)["alerts"]
                    if alert["labels"]["alertname"] == "GpuProcessMemoryLeak"
                ]

            until(lambda: "leaking (" in agent.command("ps").stdout, "the verdict", 120)
            processes = {one["process"]: one for one in agent.status()["processes"]}
            assert processes["embed-server"]["verdict"] == "leaking"
            assert processes["embed-server"]["growth_bytes_per_second"] == pytest.approx(24 * 2**20, rel=0.1)
            assert {processes[name]["verdict"] for name in ("vllm", "python3")} <= {"steady", "learning"}
            assert "has been leaking memory" in agent.command("status").stdout
            body = agent.get("/metrics").text
            assert 'gpuagent_process_memory_leak_suspected{gpu="0"' in body
            assert "gpuagent_leak_histories 5" in body
            # What joins an incident that is worse already is seen with its next message.
            until(leaks, "the leak is told", 120)
            told, *_ = leaks()
            assert told["labels"]["process"] == "embed-server"
            assert told["labels"]["unit"] == "embed-server.service"
            assert told["labels"]["evidence"] in {"strict", "balanced", "confirmed"}
            assert "rose in 8 of 8 parts" in told["annotations"]["reasons"]
            assert agent.stop() == 0
            assert "Traceback" not in agent.log()
