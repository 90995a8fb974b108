"""The whole way: the example app under uvicorn, a real agent, and `gpuagent blame`."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.client.blame.kinds import marked_lines
from tests.client.blame.serving import agent_of_apps, is_client, traffic
from tests.client.blame.test_served import LEAKS
from tests.client.conftest import ROOT
from tests.exhaustive import usually
from tests.integration.agent import Agent
from tests.integration.waiting import free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WINDOW = "12s"


@contextmanager
def served(agent: Agent, python: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The example app, in a process of its own."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("GPUAGENT_", "PYTHON"))},
        "GPUAGENT_SOCKET": str(agent.folder / "cl" / "client.sock"),
        "PYTHONPATH": str(ROOT / "client"),
    }
    with (agent.folder / "app.log").open("ab") as log:
        process = subprocess.Popen(
            [python, "-W", "ignore", "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"],
            cwd=LEAKS.parent,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(port: int, method: str, path: str) -> int:
    """The status of an answer; 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def predictions(port: int) -> AbstractContextManager[None]:
    """Requests, one after the other, each with a text of its own."""
    return traffic(lambda number: ask(port, "GET", f"/predict?text=request+{number}"))


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """An agent that listens to apps."""
    with agent_of_apps() as running:
        yield running


@pytest.mark.parametrize("cause", usually(["outputs", "no_grad", "cache", "hook", "exception"], "outputs"))
def test_blame_names_the_line_of_a_served_app(cause: str, agent: Agent, apps_python: Path) -> None:
    """An operator asks about a pid, and reads the line that leaks."""
    port = free_port()
    with served(agent, apps_python, port) as process:
        until(lambda: ask(port, "GET", "/healthz") == 200, "the app serves")
        until(lambda: is_client(agent, process.pid), "the app is a client")
        assert ask(port, "PUT", f"/leak/{cause}") == 200
        with predictions(port):
            answer = agent.command("blame", str(process.pid), "--window", WINDOW, "--no-lines")

    assert answer.returncode == 0, answer.stderr
    assert f"leaks.py:{marked_lines(LEAKS, '# LEAK ')[cause]}" in answer.stdout.splitlines()[0]
    assert "recent" not in answer.stdout
