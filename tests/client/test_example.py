"""The example app under real servers: its queue and its figures are the client's, its workers come and go."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.client.conftest import ROOT, Apps
from tests.fakes.agent_socket import FakeAgent
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EXAMPLE = ROOT / "client" / "examples" / "served"


def get(path: Path, target: str) -> tuple[int, Mapping[str, str]]:
    """Status and headers; status 0 while nobody listens."""
    connection = http.client.HTTPConnection("app")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(30)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", target)
        response = connection.getresponse()
        response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}
    except OSError:
        return 0, {}
    finally:
        connection.close()


def test_the_gate_of_the_example_is_the_clients(
    apps: Apps, apps_python: Path, agent: FakeAgent, tmp_path: Path
) -> None:
    """Figures in the headers of the route that uses the GPU, and 503 there while the GPU is nearly full."""
    path = tmp_path / "app.sock"
    apps.start("-m", "uvicorn", "app:app", "--app-dir", EXAMPLE, "--uds", path, python=apps_python)
    (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))
    assert until(lambda: get(path, "/healthz")[0], "the app serves", 60) == 200
    status, headers = get(path, "/predict?text=hello")
    assert (status, "gpu;dur=" in headers["server-timing"]) == (200, True)
    assert "x-gpu-memory" in headers
    client.say({"t": "level", "level": "critical"})
    client.ask("rate", interval=0.2)  # answered after the level was heard

    status, headers = get(path, "/predict?text=hello")
    assert (status, headers["retry-after"]) == (503, "2")
    assert get(path, "/healthz")[0] == 200


def test_the_example_under_gunicorn_exchanges_a_worker_when_told(
    apps: Apps, apps_python: Path, agent: FakeAgent, tmp_path: Path
) -> None:
    """By its gunicorn.conf.py: a notice of the agent is answered with "draining", and a successor comes."""
    apps.start(
        "-m", "gpuagent_client", "-m", "gunicorn", "app:app", "--chdir", EXAMPLE, "--config",
        EXAMPLE / "gunicorn.conf.py", "--bind", f"unix:{tmp_path / 'app.sock'}", "--no-control-socket",
        python=apps_python, PYTHONWARNINGS="ignore", GPUAGENT_APP="served-example",
    )  # fmt: skip
    workers = agent.wait_for_client(2, having=lambda one: one.hello["torch"])  # the master does not import the app
    until(lambda: get(tmp_path / "app.sock", "/healthz")[0] == 200, "the app serves", 60)
    state, before = workers[0], {worker.pid for worker in workers}

    def is_draining() -> bool:
        """Not before it serves: the client is there first."""
        answer = state.ask("notice", action="remedy", reason="too much", seconds=30)["r"]
        return bool(answer == {"callback": False, "draining": True})

    until(is_draining, "the worker makes room")
    agent.wait(lambda: not state.connected)
    after = agent.wait_for_client(2, having=lambda one: one.hello["torch"])
    assert len({worker.pid for worker in after} - before) == 1
