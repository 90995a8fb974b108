"""gevent's workers of gunicorn, which replace threads, sockets and forks, and are started by `-m gpuagent_client`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.client.blame.kinds import HERE, marked_lines
from tests.client.blame.serving import agent_of_apps, is_client, traffic
from tests.client.conftest import ROOT
from tests.integration.agent import Agent
from tests.integration.waiting import free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(300)]

APP = HERE / "kept_requests.py"
SERVER = ("-m", "gpuagent_client", "-m", "gunicorn", "-k", "gevent", "-w", "1", "--log-level", "warning")


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """An agent that listens to apps."""
    with agent_of_apps() as running:
        yield running


@pytest.fixture
def gevent_python(apps_python: Path) -> Path:
    """An interpreter that has gevent as well."""
    if subprocess.run(
        [apps_python, "-c", "import gunicorn.workers.ggevent"], capture_output=True, check=False
    ).returncode:
        pytest.skip("no gevent in .venv-apps; scripts/apps-venv installs it")
    return apps_python


@contextmanager
def served(agent: Agent, python: Path, port: int, **extra: str) -> Iterator[None]:
    """The app under gunicorn, in processes of its own."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("GPUAGENT_", "PYTHON"))},
        "GPUAGENT_SOCKET": str(agent.folder / "cl" / "client.sock"),
        "PYTHONPATH": str(ROOT / "client"),
        "PYTHONWARNINGS": "ignore",
        **extra,
    }
    with (agent.folder / "app.log").open("ab") as log:
        process = subprocess.Popen(
            [python, *SERVER, "-b", f"127.0.0.1:{port}", f"{APP.stem}:app"],
            cwd=HERE, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def worker_on(port: int) -> int:
    """The pid of the worker that answers; 0 while nobody does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/")
        return int(connection.getresponse().read())
    except OSError:
        return 0
    finally:
        connection.close()


def children_of(pid: int) -> list[str]:
    """The pids of the children of a process."""
    return [pid for task in Path(f"/proc/{pid}/task").iterdir() for pid in (task / "children").read_text().split()]


def lasting_descriptors(pid: int) -> list[str]:
    """What a process has open but for the connections of requests, which come and go."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(one.readlink()).partition(":")[0])
    return sorted(name for name in found if name != "socket")


@pytest.mark.parametrize("bounded", ["", "1"], ids=["leak", "healthy"])
def test_blame_answers_in_a_worker_of_gevent(bounded: str, agent: Agent, gevent_python: Path) -> None:
    """The line that leaks is named and the bounded twin is not blamed; no child and no descriptor is left."""
    port = free_port()
    with served(agent, gevent_python, port, BOUNDED=bounded):
        worker = until(lambda: worker_on(port), "the app serves")
        until(lambda: is_client(agent, worker), "the worker is a client")
        with traffic(lambda _: worker_on(port)):
            answers = [agent.command("blame", str(worker), "--window", "6s", "--no-lines", "--json")]
            # gevent itself opens a loop in the client's thread, once.
            before = lasting_descriptors(worker)
            answers += [agent.command("blame", str(worker), "--window", "6s", "--no-lines", "--json")]
        assert [answer.returncode for answer in answers] == [0, 0], [answer.stderr for answer in answers]
        assert children_of(worker) == []
        assert lasting_descriptors(worker) == before

    for answer in answers:
        groups = json.loads(answer.stdout)["groups"]
        found = [(group["container"], group["file"], group["line"]) for group in groups]
        assert found == ([] if bounded else [(f"{APP.stem}.kept", APP.name, marked_lines(APP)["kept"])])
