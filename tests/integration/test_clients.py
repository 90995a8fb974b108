"""Real apps with the real client, against the real agent: plain, under uvicorn, under gunicorn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedded import FakeApp, hello, stats
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
PLAIN = "import gpuagent_client, sys; gpuagent_client.start(app='plain'); print('up', flush=True); sys.stdin.read()"
SERVED = """
import os
import gpuagent_client
from fastapi import FastAPI

gpuagent_client.start(app="served")
app = FastAPI()

@app.get("/pid")
def pid():
    return os.getpid()
"""


@contextmanager
def agent_in(folder: Path) -> Iterator[Agent]:
    """An agent that is ready."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        yield agent


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """One that is well, for all tests that do not end it."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder, agent_in(Path(folder)) as running:
        yield running


def client_socket(agent: Agent) -> Path:
    """Where apps connect."""
    return agent.folder / "cl" / "client.sock"


def clients(agent: Agent) -> dict[int, dict[str, Any]]:
    """The connected apps, by pid."""
    body = agent.get("/api/v1/clients").body
    return {client["pid"]: client for client in json.loads(body)["clients"]}


def named(agent: Agent, app: str) -> set[int]:
    """Pids of the apps of this name."""
    return {pid for pid, client in clients(agent).items() if client["app"] == app}


@contextmanager
def app(agent: Agent, *command: str | Path, folder: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, ended with all that it has started."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUAGENT_", "PYTHON"))}
    environment = kept | {"GPUAGENT_SOCKET": str(client_socket(agent)), "PYTHONPATH": str(ROOT / "client")}
    with (agent.folder / "app.log").open("ab") as log:
        process = subprocess.Popen(
            [*map(str, command)], env=environment, cwd=folder or agent.folder, start_new_session=True,
            stdin=subprocess.PIPE, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_plain_app_appears_and_disappears(agent: Agent) -> None:
    """Known by pid, name and user as soon as it has connected; gone as soon as it is killed."""
    with app(agent, sys.executable, "-c", PLAIN) as process:
        client = until(lambda: clients(agent).get(process.pid, {}), "the app is a client")
        assert (client["app"], client["uid"]) == ("plain", os.getuid())
        assert "release" in client["capabilities"]
        process.kill()
        until(lambda: process.pid not in clients(agent), "the killed app is gone")


def test_an_app_survives_a_restart_of_the_agent(folder: Path) -> None:
    """It goes on, and connects to the next agent by itself; the directory that containers mount is the same."""
    with agent_in(folder) as first, app(first, sys.executable, "-c", PLAIN) as process:
        until(lambda: process.pid in clients(first), "the app is a client")
        inode = (folder / "cl").stat().st_ino
        first.process.kill()  # without a good-bye
        first.process.wait()
        with agent_in(folder) as second:
            until(lambda: process.pid in clients(second), "the app has come back")
            assert second.stop() == 0
        assert process.poll() is None
        assert (folder / "cl").stat().st_ino == inode


@pytest.mark.parametrize(
    "server",
    [
        ("uvicorn", "--workers", "2", "--port", "{port}", "served:app"),
        ("gunicorn", "-k", "uvicorn.workers.UvicornWorker", "-w", "2", "-b", "127.0.0.1:{port}", "served:app"),
        ("gunicorn", "-k", "uvicorn.workers.UvicornWorker", "-w", "2", "--preload", "-b", "127.0.0.1:{port}",
         "served:app"),
    ],
    ids=["uvicorn", "gunicorn", "gunicorn-preload"],
)  # fmt: skip
def test_workers_of_a_server(agent: Agent, apps_python: Path, folder: Path, server: tuple[str, ...]) -> None:
    """Every worker is a client of its own; a killed one disappears and its successor appears."""
    (folder / "served.py").write_text(SERVED)
    command = [word.format(port=free_port()) for word in server]

    with app(agent, apps_python, "-m", *command, folder=folder) as master:

        def two_without(gone: int) -> set[int]:
            found = named(agent, "served") - {master.pid}
            return found if len(found) == 2 and gone not in found else set()

        before = until(lambda: two_without(0), "two workers are clients")
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        after = until(lambda: two_without(victim), "a successor has appeared")
        assert len(after & before) == 1
    until(lambda: not named(agent, "served"), "all of them are gone")


def test_commands_reach_the_app_and_come_back(agent: Agent) -> None:
    """`gpuagent release` and `blame`: what an app without torch can say is said, with the exit status."""
    with app(agent, sys.executable, "-c", PLAIN) as process:
        until(lambda: process.pid in clients(agent), "the app is a client")
        released = agent.command("release", str(process.pid))
        blamed = agent.command("blame", str(process.pid), "--window", "1s")
    unknown = agent.command("release", "1")

    for answer in (released, blamed):
        assert answer.returncode in (0, 1)
        assert (answer.stdout or answer.stderr).strip()
        assert "Traceback" not in answer.stderr
    assert unknown.returncode == 1
    assert "no process with pid 1 is on a GPU" in unknown.stderr


def test_garbage_300_connections_and_a_stalled_reader(agent: Agent) -> None:
    """The agent goes on ticking and serving, drops those who misbehave, counts them, and keeps the honest app."""
    path = client_socket(agent)
    ticks = agent.status()["time_seconds"]
    with app(agent, sys.executable, "-c", PLAIN) as honest:
        until(lambda: honest.pid in clients(agent), "the honest app is a client")
        for index in range(300):  # one after the other: a process has one place among those that have not said hello
            with FakeApp(path) as each:
                each.send(b"garbage\n" if index % 2 else hello(1))
                assert each.receive() == {}
        assert not named(agent, "web")
        until(lambda: agent.status()["time_seconds"] > ticks, "it goes on measuring")
        assert honest.pid in clients(agent)
    metrics = agent.get("/metrics").text
    assert 'gpuagent_client_connections_refused_total{reason="pid"} 150' in metrics
    assert 'gpuagent_client_connections_dropped_total{reason="malformed"} 150' in metrics
    assert "Traceback" not in agent.log()


def test_figures_of_an_app_are_shown(agent: Agent) -> None:
    """What it reports of itself is in the document, and an app of CPU tensors has no GPU figures."""
    with FakeApp(client_socket(agent)) as fake:
        assert fake.meet(app="fake")["t"] == "welcome"
        fake.send({"t": "event", "name": "load model", "fields": {"seconds": 2.5}}, stats(init=False))
        seen = until(lambda: clients(agent)[os.getpid()]["events"], "the event")
        assert (seen[0]["name"], seen[0]["fields"]) == ("load model", {"seconds": 2.5})
        assert clients(agent)[os.getpid()]["devices"] == []


def test_a_new_interval_reaches_apps_that_are_connected(folder: Path) -> None:
    """`gpuagent config reload` with another `clients.interval`: nobody has to connect anew for it."""
    with agent_in(folder) as own, FakeApp(client_socket(own)) as fake:
        assert fake.meet(app="fake")["interval"] == 1.0
        path = folder / "gpuagent.yaml"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"clients": {"interval": "5s"}}))
        reloaded = own.command("config", "reload")
        assert reloaded.returncode == 0, reloaded
        assert fake.receive("welcome")["interval"] == 5.0
