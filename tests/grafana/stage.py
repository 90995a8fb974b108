"""A small fleet in each of its states, and a Prometheus with all shipped rules that scrapes it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuagent_alerts.shipped import RULES_FILE
from tests.fakes.embedded import FakeApp, stats
from tests.integration.agent import Agent, running_agent
from tests.integration.prometheus import Prometheus
from tests.integration.waiting import free_port, until

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
description: NVML cannot be initialised
gpus: [{model: h100}]
faults: [{kind: init_error, code: driver_not_loaded}]
"""
DRY_RUN = {
    "allow": {"users": ["svc-ml"], "min_age": "1m"},
    "ladders": [{"match": ['alertname="GpuProcessMemoryLeak"'], "steps": [{"terminate": {"wait": "30s"}}]}],
}


@dataclass(frozen=True)
class Ruled(Prometheus):
    """A server that also evaluates rules."""

    def over_time(self, expr: str, start: float, end: float, step: float = 5) -> Any:
        """The answer to a range query, as it is."""
        return self._get("/api/v1/query_range", query=expr, start=str(start), end=str(end), step=str(step))

    def at(self, expr: str, end: float) -> Any:
        """The answer to an instant query, as it is."""
        return self._get("/api/v1/query", query=expr, time=str(end))

    def alerts(self) -> list[dict[str, Any]]:
        """What is pending and what fires."""
        found: list[dict[str, Any]] = self._get("/api/v1/alerts")["data"]["alerts"]
        return found


@contextmanager
def ruled_prometheus(
    folder: Path, jobs: Mapping[str, int], rules: Sequence[Path], interval: str = "1s"
) -> Iterator[Ruled]:
    """A server that scrapes one port for each job and evaluates rule files, ended in every case."""
    port = free_port()
    scrapes = [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]} for job, at in jobs.items()]
    document = {
        "global": {"scrape_interval": "1s", "evaluation_interval": interval},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": scrapes,
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(document), encoding="utf-8")
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    server = Ruled(f"http://127.0.0.1:{port}")
    try:
        until(lambda: process.poll() is not None or server.is_ready(), "Prometheus answers")
        assert process.poll() is None, (folder / "prometheus.log").read_text(encoding="utf-8")
        yield server
    finally:
        process.kill()
        process.wait()


@contextmanager
def telling_app(agent: Agent) -> Iterator[None]:
    """This process as an app that tells its allocator's figures once a second: it caches more and more."""
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

        thread = threading.Thread(target=tell)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def fleet() -> Iterator[tuple[dict[str, Agent], Ruled]]:
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
        ports = {job: agent.port for job, agent in agents.items()} | {SILENT: free_port()}
        yield agents, stack.enter_context(ruled_prometheus(folder(), ports, [RULES_FILE, RECORDING]))
