"""A worker is exchanged from outside: rule, ladder, notice, drain, and a successor, without a failed request."""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.exhaustive import usually
from tests.integration.agent import running_agent
from tests.integration.waiting import free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
APPS = ROOT / "tests" / "client" / "apps"
SCENARIO = """
description: one worker of a server, above its budget
gpus:
  - model: h100
    uuid: GPU-1f8b4a3e-7c2d-4e5f-9a0b-000000000000  # as the app's made-up torch has it
    processes:
      - {name: worker, bind: worker, memory: {shape: constant, value: 40GiB}}
"""
RULES = """
groups:
  - name: house
    rules:
      - alert: WorkerAboveBudget
        expr: gpuagent_process_memory_used_bytes > 1e9
        labels: {severity: warning}
        annotations: {summary: "{{ $labels.process }} is above its budget"}
"""
CONFIG = """
from gpuagent_client.serving.gunicorn import Recycling

recycling = Recycling(on_notice=True)
post_worker_init = recycling.post_worker_init
post_request = recycling.post_request
"""
GUNICORN = ("gunicorn", "--no-control-socket", "--graceful-timeout", "60", "--bind", "127.0.0.1:{port}")
SERVERS = {
    "uvicorn's worker": (*GUNICORN, "gated:app", "-k", "uvicorn.workers.UvicornWorker"),
    "gthread": (*GUNICORN, "gated_wsgi:app", "-k", "gthread", "--threads", "16"),
    "uvicorn": ("uvicorn", "gated:app", "--log-level", "warning", "--port", "{port}"),
}
_PAUSE_SECONDS = 0.05
"""Of each client between two requests."""


class Traffic:
    """Clients that ask all the time, each request on a connection of its own.

    As fast as they can they would take the processors from the server, the agent and all other tests.
    """

    def __init__(self, port: int, clients: int = 6) -> None:
        self.answers: list[int] = []
        """The pid of who answered."""
        self.failures: list[str] = []
        self._port = port
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(clients)]

    def ask(self, path: str = "/predict/1") -> Any:
        """One request. Raises OSError or http.client.HTTPException where it fails."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            if response.status != http.HTTPStatus.OK:
                raise OSError(f"status {response.status}")
            return json.loads(body)
        finally:
            connection.close()

    def _work(self) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            try:
                self.answers.append(self.ask()["pid"])
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def served(folder: Path, python: Path, server: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server with two workers, ended with all that it has started."""
    (folder / "gunicorn.conf.py").write_text(CONFIG)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUAGENT_", "PYTHON"))}
    environment = kept | {
        "GPUAGENT_SOCKET": str(folder / "cl" / "client.sock"), "INSIDE": "64", "WAITING": "64",
        **({"RECYCLE_AFTER": "1000000"} if server == "uvicorn" else {}),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "client"), str(APPS)]), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    with (folder / "served.log").open("ab") as log:
        process = subprocess.Popen(
            [str(python), "-m", *(word.format(port=port) for word in SERVERS[server]), "--workers", "2"],
            env=environment, cwd=folder, start_new_session=True, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("server", usually(SERVERS, "gthread"))
def test_a_worker_above_its_budget_is_exchanged_under_traffic(folder: Path, apps_python: Path, server: str) -> None:
    """Told first, it drains and ends by itself; nothing is lost, nobody is signaled, a successor serves."""
    (folder / "node.yaml").write_text(SCENARIO)
    (folder / "rules.yaml").write_text(RULES)
    (folder / "rules.yaml").chmod(0o600)
    ladder = {
        "match": ['alertname="WorkerAboveBudget"'],
        "steps": [{"notify": {"wait": "4m"}}, {"terminate": {"wait": "30s"}}],
    }
    what = {"dry_run": False, "allow": {"users": [getpass.getuser()]}, "ladders": [ladder], "proof": "20s"}
    port = free_port()
    with served(folder, apps_python, server, port), Traffic(port, clients=0) as probe:

        def workers() -> set[int]:
            with contextlib.suppress(OSError, http.client.HTTPException):
                probe.answers.append(probe.ask("/healthz" if server != "gthread" else "/predict/1")["pid"])
            found = set(probe.answers)
            return found if len(found) == 2 else set()

        before = until(workers, "two workers answer")
        victim = min(before)
        with (
            running_agent(
                folder, folder / "node.yaml", bind={"worker": victim}, remedies=what,
                rule_files=[str(folder / "rules.yaml")],
            ) as agent,
            Traffic(port) as traffic,
        ):  # fmt: skip
            agent.wait_until_ready()

            def end() -> Any:
                found = json.loads(agent.get("/api/v1/remedies").body)["remedies"]
                return found[0].get("end") and found[0] if found else None

            run = until(end, "the remedy has ended", 270)
            until(lambda: set(traffic.answers) - before, "a successor has answered")

    assert traffic.failures == []
    assert victim in traffic.answers
    assert [step["step"] for step in run["steps"] if step["kind"] == "intent"] == ["notify"]
    assert (run["end"]["result"], run["end"]["released_bytes"]) == ("released", 40 * 1024**3)
    assert "this worker makes room for a fresh one: the agent asks for it" in (folder / "served.log").read_text()
