"""A small fleet in each of its states, and a Prometheus with all shipped rules that scrapes it."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gpuagent_alerts.shipped import RULES_FILE
from tests.fakes.embedded import FakeApp, stats
from tests.integration.agent import Agent, running_agent
from tests.integration.prometheus import Prometheus, running_prometheus
from tests.integration.waiting import alongside, free_port

RECORDING = Path(__file__).parents[2] / "grafana" / "prometheus" / "gpuagent.recording.yaml"
GIB = 1024**3

SILENT = "silent"
"""The job of an agent that does not run."""

APP = """
description: one process, which has the embedded client
gpus:
  - model: h100
    uuid: GPU-0a000000-0000-4000-8000-000000000000
    processes:
      - {name: app, bind: app, memory: {shape: ramp, start: 8GiB, rate: 16MiB}, utilization: {sm: 30, memory: 10}}
"""
NO_DRIVER = """
description: NVML cannot be initialized
gpus: [{model: h100}]
faults: [{kind: init_error, code: driver_not_loaded}]
"""
DRY_RUN = {
    "allow": {"users": ["svc-ml"], "min_age": "1m"},
    "evidence": ["confirmed", "strict"],
    "ladders": [{"match": ['alertname="GpuProcessMemoryLeak"'], "steps": [{"terminate": {"wait": "30s"}}]}],
}


@contextmanager
def telling_app(agent: Agent) -> Iterator[None]:
    """The running process as an app that tells its allocator's figures once a second: it caches more and more."""
    ended = threading.Event()
    with FakeApp(agent.folder / "cl" / "client.sock") as app:
        assert app.meet(app="bench", declared={"typical_bytes": 7 * GIB})["t"] == "welcome"

        def tell() -> None:
            for number in range(3600):
                device = {
                    "uuid": "GPU-0a000000-0000-4000-8000-000000000000", "allocated_bytes": 4 * GIB,
                    "reserved_bytes": 6 * GIB + number * 16 * 2**20,
                    "alloc_retries": number // 10, "ooms": number // 20,
                }  # fmt: skip
                app.send(stats(device, seq=number + 1, ts=float(number)))
                if ended.wait(1):
                    return

        with alongside(tell, ended, "an app that tells"):
            yield


@contextmanager
def fleet() -> Iterator[tuple[dict[str, Agent], Prometheus]]:
    """Agents by job, and the server. Nothing of what they have is waited for."""
    with ExitStack() as stack:

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp")))

        def written(text: str) -> Path:
            path = folder() / "scenario.yaml"
            path.write_text(text, encoding="utf-8")
            return path

        def start(scenario: str | Path, **keys: Any) -> Agent:
            return stack.enter_context(running_agent(folder(), scenario, **keys))

        agents = {name: start(name) for name in ("healthy", "lost-gpu", "mig", "dead-process")}
        agents["leak"] = start("leak", speed=40, poll_interval="5s", remedies=DRY_RUN)
        agents["app"] = start(written(APP), bind={"app": os.getpid()})
        agents["no-driver"] = start(written(NO_DRIVER))
        for agent in agents.values():
            agent.wait_until_listening()
        agents["app"].wait_until_ready()
        stack.enter_context(telling_app(agents["app"]))
        recording = folder() / "recording.yaml"
        # What the leaking agent does is over within a minute: rules that are evaluated each minute would miss it.
        recording.write_text(re.sub(r"interval: \w+", "interval: 5s", RECORDING.read_text(encoding="utf-8")))
        ports = {job: agent.port for job, agent in agents.items()} | {SILENT: free_port()}
        yield agents, stack.enter_context(running_prometheus(folder(), ports, [RULES_FILE, recording]))
