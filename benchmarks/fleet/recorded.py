"""What one node tells, recorded from the real agent on a simulated node of 8 GPUs."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from tests.integration.agent import running_agent

GPUS = 8
_GIB = 1024**3
_GPU_BYTES = 80 * _GIB


def scenario(processes: int) -> str:
    """8 GPUs with so many processes each. Half the memory breathes, so that figures differ from scrape to scrape."""
    each = 0.8 * _GPU_BYTES / processes
    kinds = (
        {"shape": "saw_tooth", "low": round(each * 0.6), "high": round(each), "period": "47s"},
        round(each),
    )
    split = (processes - processes // 2, processes // 2)
    listed = [
        {
            "name": f"worker-{number}-{{n}}",
            "user": f"user{number}",
            "cgroup": f"/system.slice/serve-{number}@{{gpu}}-{{n}}.service",
            "count": count,
            "age": "1d",
            "memory": kind,
            "utilization": {"sm": 10, "memory": 5},
        }
        for number, (kind, count) in enumerate(zip(kinds, split, strict=True))
        if count
    ]
    return json.dumps(
        {"description": "a node of a fleet", "gpus": [{"model": "h100", "count": GPUS, "processes": listed}]}
    )


def scrapes(processes: int, top: int, number: int = 12) -> list[bytes]:
    """Successive scrapes, a second apart, of an agent as it comes but for `processes.top`."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        folder = Path(name)
        story = folder / "scenario.yaml"
        story.write_text(scenario(processes), encoding="utf-8")
        with running_agent(folder, story, processes={"top": top}, alerting="prometheus") as agent:
            agent.wait_until_ready()
            time.sleep(20)  # until the slow readings and the leak detector's figures are there too
            found = []
            for _ in range(number):
                found.append(agent.get("/metrics").body)
                time.sleep(1)
    return found


def series(scrape: bytes) -> int:
    """How many series a scrape has."""
    return sum(1 for line in scrape.splitlines() if line and not line.startswith(b"#"))
