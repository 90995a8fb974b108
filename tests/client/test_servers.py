"""Real servers with real torch: every process that serves is known to the agent, whatever happens to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import Apps
from tests.exhaustive import RARELY, usually
from tests.fakes.agent_socket import PATIENCE_SECONDS, FakeAgent, FakeClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Served:
    """A server that was started, and what can be asked of it."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process = process
        self.path = path

    def get(self) -> dict[str, int]:
        """Ask the app; waits for it to come up."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            connection = http.client.HTTPConnection("app")
            connection.sock = socket.socket(socket.AF_UNIX)
            try:
                connection.sock.connect(str(self.path))
                connection.request("GET", "/")
                answer: dict[str, int] = json.load(connection.getresponse())
                return answer
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise
                time.sleep(0.1)
            finally:
                connection.close()


UVICORN = ("-m", "uvicorn", "served:app", "--log-level", "warning", "--uds")
GUNICORN = ("-m", "gunicorn", "served:app", "-k", "uvicorn.workers.UvicornWorker", "--log-level", "warning", "--bind")


@pytest.fixture
def serve(apps: Apps, apps_python: Path, tmp_path: Path) -> Callable[..., Served]:
    """Starts a server on a Unix socket of its own: `serve(UVICORN, "--workers", "2")`."""

    def start(server: tuple[str, ...], *options: str) -> Served:
        path = tmp_path / "app.sock"
        address = f"unix:{path}" if "gunicorn" in server else str(path)
        process = apps.start(*server, address, *options, python=apps_python, PYTHONWARNINGS="ignore")
        return Served(process, path)

    return start


def workers_of(agent: FakeAgent, count: int) -> list[FakeClient]:
    """So many clients that have sent figures."""
    return agent.wait_for_client(count, having=lambda one: one.of("stats"))


def test_uvicorn(serve: Callable[..., Served], agent: FakeAgent) -> None:
    """One process, with torch, and CUDA as far down as the app has left it."""
    server = serve(UVICORN)
    (client,) = workers_of(agent, 1)

    assert client.pid == server.get()["pid"] == server.process.pid
    assert client.hello["app"] == "served"
    assert client.hello["torch"].startswith("2.13.0")
    assert client.of("stats")[-1]["init"] is False


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("server", "options", "processes"),
    [
        (UVICORN, ("--workers", "2"), 2),
        (GUNICORN, ("--workers", "2"), 2),
        pytest.param(GUNICORN, ("--workers", "2", "--preload"), 3, marks=RARELY),
        (("-m", "gpuagent_client", *UVICORN), ("--workers", "2"), 3),
    ],
    ids=["uvicorn", "gunicorn", "gunicorn preloaded", "uvicorn from outside"],
)
def test_workers_and_their_successors(
    serve: Callable[..., Served], agent: FakeAgent, server: tuple[str, ...], options: tuple[str, ...], processes: int
) -> None:
    """Each worker has a connection of its own; one that is killed is gone, and the next is there without a word."""
    served = serve(server, *options)
    clients = workers_of(agent, processes)
    assert len({client.pid for client in clients}) == processes
    worker = served.get()["pid"]
    (killed,) = [client for client in clients if client.pid == worker]

    os.kill(worker, signal.SIGKILL)
    agent.wait(lambda: not killed.connected)
    successors = workers_of(agent, processes)

    assert worker not in {client.pid for client in successors}
    assert len({client.pid for client in successors}) == processes


SLOW = """
import time
from pathlib import Path

while not Path("go").exists():  # stands for the seconds of `import torch`
    time.sleep(0.01)

from served import app
"""
HOOK = """
import gpuagent_client

def post_fork(server, worker):
    gpuagent_client.start(app="named in the hook")
"""
SLOWLY = ("-m", "gunicorn", "slow:app", "-k", "uvicorn.workers.UvicornWorker", "--workers", "2", "--bind")


@pytest.mark.parametrize(
    ("server", "config", "processes", "name"),
    [
        (("-m", "gpuagent_client", *SLOWLY), "", 3, "named outside"),
        (SLOWLY, HOOK, 2, "named in the hook"),
    ],
    ids=["started from outside", "in gunicorn's hook"],
)
def test_workers_are_known_before_the_app_is_imported(
    apps: Apps, apps_python: Path, agent: FakeAgent, tmp_path: Path, server: tuple[str, ...], config: str,
    processes: int, name: str,
) -> None:  # fmt: skip
    """`import torch` takes seconds: a worker, and the successor of a killed one, does not wait for it to be seen."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "gunicorn.conf.py").write_text(config)
    master = apps.start(
        *server, f"unix:{tmp_path / 'app.sock'}", python=apps_python, PYTHONWARNINGS="ignore",
        GPUAGENT_APP="named outside",
    )  # fmt: skip
    clients = workers_of(agent, processes)
    assert {client.hello["app"] for client in clients} == {name}
    killed = next(client for client in clients if client.pid != master.pid)
    os.kill(killed.pid, signal.SIGKILL)
    agent.wait(lambda: not killed.connected)
    clients = workers_of(agent, processes)
    assert all(client.hello["torch"] == "" for client in clients)

    (tmp_path / "go").touch()
    workers = [client for client in clients if client.pid != master.pid]
    agent.wait(lambda: all(client.hello["app"] == "served" and client.hello["torch"] for client in workers))


def test_workers_come_back_to_an_agent_that_restarts(serve: Callable[..., Served], agent: FakeAgent) -> None:
    """The server serves on meanwhile."""
    served = serve(GUNICORN, "--workers", "2")
    before = {client.pid for client in workers_of(agent, 2)}
    agent.stop()
    assert served.get()["pid"] in before
    agent.restart()

    assert {client.pid for client in workers_of(agent, 2)} == before


@pytest.mark.parametrize("server", usually([UVICORN, GUNICORN], GUNICORN), ids=["uvicorn", "gunicorn"])
def test_a_server_ends_as_it_should(serve: Callable[..., Served], agent: FakeAgent, server: tuple[str, ...]) -> None:
    """SIGTERM, exit, nothing aborted: a thread inside torch at the end would be a SIGABRT."""
    served = serve(server)
    served.get()
    (client,) = workers_of(agent, 1)
    served.process.terminate()
    output, _ = served.process.communicate(timeout=60)
    agent.wait(lambda: not client.connected)

    assert served.process.returncode in {0, -signal.SIGTERM}
    assert "terminate called" not in output
    assert "gpuagent" not in output


def test_a_census_of_a_server_leaves_no_trace(serve: Callable[..., Served], agent: FakeAgent) -> None:
    """Its forked children are no clients of the agent's, the answer fits the wire, and the server serves on."""
    served = serve(UVICORN)
    (client,) = workers_of(agent, 1)
    served.get()
    answer = client.ask("census", window_seconds=0.5)

    assert answer["ok"], answer
    assert isinstance(answer["r"]["verdict"], str)
    assert {one.pid for one in agent.clients} == {client.pid}
    assert served.get()["pid"] == client.pid
