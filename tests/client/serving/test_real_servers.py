"""Real uvicorn and real gunicorn: the gate, the agent's word, and fresh workers without a failed request."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.client.conftest import Apps
from tests.exhaustive import usually
from tests.fakes.agent_socket import PATIENCE_SECONDS, FakeAgent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MIB = 1024**2
GUNICORN = ("-m", "gunicorn", "--log-level", "warning", "--graceful-timeout", "60", "--no-control-socket")
SERVERS = {
    "uvicorn": ("-m", "uvicorn", "gated:app", "--log-level", "warning"),
    "gunicorn, uvicorn's worker": (*GUNICORN, "gated:app", "-k", "uvicorn.workers.UvicornWorker"),
    "gunicorn, asgi": (*GUNICORN, "gated:app", "-k", "asgi"),
    "gunicorn, gthread": (*GUNICORN, "gated_wsgi:app", "-k", "gthread", "--threads", "16"),
    "gunicorn, sync": (*GUNICORN, "gated_wsgi:app", "-k", "sync"),
}
RECYCLING = """
from gpuagent_client.serving.gunicorn import Recycling

recycling = Recycling({arguments})
post_worker_init = recycling.post_worker_init
post_request = recycling.post_request
"""


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: Any


class Served:
    """A server that was started, and what can be asked of it."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process = process
        self.path = path

    def get(self, target: str) -> Answer:
        """One request, on a connection of its own.

        Raises:
            OSError: the server did not answer.
        """
        connection = http.client.HTTPConnection("app")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_SECONDS)
        try:
            connection.sock.connect(str(self.path))
            connection.request("GET", target)
            response = connection.getresponse()
            text = response.read().decode()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, json.loads(text) if text[:1] in "{[" else text)
        except http.client.HTTPException as error:
            raise OSError(f"no whole answer: {error!r}") from error
        finally:
            connection.close()

    def wait_until_up(self) -> None:
        """Until somebody listens."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.get("/healthz")
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def get_at_a_time(self, targets: list[str]) -> tuple[list[threading.Thread], list[Answer | OSError]]:
        """Threads that ask, and the list in which their answers arrive."""
        answers: list[Answer | OSError] = []

        def ask(target: str) -> None:
            try:
                answers.append(self.get(target))
            except OSError as error:
                answers.append(error)

        threads = [threading.Thread(target=ask, args=(target,)) for target in targets]
        for thread in threads:
            thread.start()
        return threads, answers


@pytest.fixture
def serve(apps: Apps, apps_python: Path, tmp_path: Path) -> Callable[..., Served]:
    """Starts a server on a Unix socket: `serve("uvicorn", "--workers", "2", INSIDE="4")`."""

    def start(server: str, *options: str, **environment: str) -> Served:
        path = tmp_path / "app.sock"
        address = ("--uds", str(path)) if server == "uvicorn" else ("--bind", f"unix:{path}")
        process = apps.start(
            *SERVERS[server], *address, *options, python=apps_python, PYTHONWARNINGS="ignore", **environment
        )
        served = Served(process, path)
        served.wait_until_up()
        return served

    return start


@pytest.mark.parametrize(
    "server",
    usually(
        ["uvicorn", "gunicorn, uvicorn's worker", "gunicorn, asgi", "gunicorn, gthread"], "uvicorn", "gunicorn, gthread"
    ),
)
def test_twelve_requests_on_two_workers(serve: Callable[..., Served], tmp_path: Path, server: str) -> None:
    """Each worker has one inside and one in the queue: those are served, all others told when to come back."""
    served = serve(server, "--workers", "2")
    go = tmp_path / "go"
    threads, answers = served.get_at_a_time([f"/predict/{number}?after={go}" for number in range(12)])
    until = time.monotonic() + PATIENCE_SECONDS
    while len(answers) < 8 and time.monotonic() < until:
        time.sleep(0.01)
    refused = [answer for answer in answers if isinstance(answer, Answer)]
    go.touch()
    for thread in threads:
        thread.join()

    assert [answer.status for answer in refused[:8]] == [503] * 8
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    statuses = [answer.status if isinstance(answer, Answer) else answer for answer in answers]
    assert len(statuses) == 12
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 2


@pytest.mark.parametrize(
    "server", usually(["uvicorn", "gunicorn, uvicorn's worker", "gunicorn, gthread"], "uvicorn", "gunicorn, gthread")
)
def test_the_agent_closes_and_opens_the_gate(serve: Callable[..., Served], agent: FakeAgent, server: str) -> None:
    """503 with Retry-After on the GPU route while it is critical; other routes go on."""
    served = serve(server)
    (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))
    client.say({"t": "level", "level": "critical"})
    client.ask("rate", interval=0.2)  # answered after the level was heard

    refused = served.get("/predict/1")
    assert (refused.status, refused.headers["retry-after"]) == (503, "2")
    assert served.get("/healthz").status == 200
    client.say({"t": "level", "level": "ok"})
    client.ask("rate", interval=0.2)
    assert served.get("/predict/1").status == 200


def test_what_requests_needed(serve: Callable[..., Served]) -> None:
    """By the framework's own template of the route, with the figures of the allocator below it."""
    served = serve("uvicorn")
    answers = [served.get(f"/predict/{number}") for number in range(20)]
    (name, added), *others = served.get("/routes").body.items()

    assert (name, others) == ("GET /predict/{item}", [])
    assert added == {"p50_bytes": 300 * MIB, "p95_bytes": 300 * MIB, "max_bytes": 300 * MIB}
    assert "24.00 GiB total" in answers[0].headers["x-gpu-memory"]
    assert "peak 1.27 GiB" in answers[0].headers["server-timing"]


@pytest.mark.parametrize("arguments", usually(["after_requests=25", f"above_bytes={1050 * MIB}"], "after_requests=25"))
@pytest.mark.parametrize(
    "server",
    usually([name for name in SERVERS if name != "uvicorn"], "gunicorn, uvicorn's worker", "gunicorn, gthread"),
)
def test_fresh_workers_without_a_failed_request(
    serve: Callable[..., Served], tmp_path: Path, server: str, arguments: str
) -> None:
    """Under load from eight clients: workers go and come, and every request is answered."""
    (tmp_path / "recycling.py").write_text(RECYCLING.format(arguments=arguments))
    see_eight_workers(serve(server, "--workers", "2", "--config", "recycling.py", INSIDE="64", WAITING="64"))


def test_fresh_workers_of_uvicorns_own_supervisor(serve: Callable[..., Served]) -> None:
    """It has no hooks, so the middleware is told; the workers were not forked, and have the socket in common."""
    see_eight_workers(serve("uvicorn", "--workers", "2", INSIDE="64", WAITING="64", RECYCLE_AFTER="25"))


def see_eight_workers(served: Served) -> None:
    """Ask from eight threads until so many have answered; no request may fail."""
    workers: set[int] = set()
    failures: list[object] = []

    until = time.monotonic() + PATIENCE_SECONDS

    def work() -> None:
        while len(workers) < 8 and time.monotonic() < until:
            try:
                answer = served.get("/predict/1")
            except OSError as error:
                failures.append(error)
            else:
                workers.add(answer.body["pid"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(workers) >= 8
