"""A real agent keeps to the description of its API, at both doors: what it answers, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.api_client import request
from gpuagent.core.identity import SHOWN_FIELDS
from tests.alerts.remedies.processes import PLAIN, running
from tests.fakes.embedded import FakeApp, hello, stats
from tests.fakes.openapi import OPERATIONS, faults_of, plain_route
from tests.integration.agent import GREEDY, Agent, running_agent
from tests.integration.unix_forwarder import forwarded
from tests.integration.waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CONTROL_ONLY = "/x-control-socket-only == true"
NOBODY_LISTENS = "http://127.0.0.1:9/"
RECEIVERS = [
    {"name": "hook", "webhook": {"url": NOBODY_LISTENS}},
    {"name": "beat", "heartbeat": {"url": NOBODY_LISTENS, "interval": "10s"}},
]
ROUTES = [{"match": [], "receivers": ["hook"]}]


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    """With an alert, receivers that take nothing, and a real process whose GPU memory is simulated."""
    (folder / "node.yaml").write_text(GREEDY)
    remedies = {"allow": {"users": ["nobody-at-all"]}}
    with (
        running(PLAIN) as greedy,
        running_agent(
            folder, folder / "node.yaml", bind={"greedy": greedy.pid}, remedies=remedies, receivers=RECEIVERS,
            routes=ROUTES,
        ) as running_one,
    ):  # fmt: skip
        running_one.wait_until_ready()
        yield running_one
        assert greedy.poll() is None, "nothing was allowed, so it lives"
        assert "Traceback" not in running_one.log()


def told(agent: Agent, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and document of a request over the control socket."""
    status, content = request(agent.control_socket, method, path, PATIENCE_SECONDS, body=body)
    return status, json.loads(content)


def test_both_doors_serve_what_is_described(agent: Agent) -> None:
    """Every path of the agent's own list is described; a command over TCP does not exist there."""
    _, _, listed = told(agent, "GET", "/nowhere")[1]["message"].partition("There is: ")
    assert {plain_route(each) for each in listed.removesuffix(".").split(", ")} == {
        each.route_path for each in OPERATIONS
    }
    public = {each.route_path for each in OPERATIONS if not each.control_only}
    hidden = [each for each in OPERATIONS if each.control_only and each.route_path not in public]
    for each in hidden:
        path = re.sub(r"\{.*?\}", "1", each.path)
        assert request(agent.url, each.method, path)[0] in {404, 405}, path


def test_documents_of_a_busy_agent(agent: Agent) -> None:
    """Alerts, silences, apps and remedies with something in them have the keys that are described, and no others."""
    shown = told(agent, "GET", "/api/v1/processes/identified")[1]["processes"][0]
    pid = shown["pid"]
    identity = {name: shown[name] for name in SHOWN_FIELDS}
    uuid = agent.status()["gpus"][0]["uuid"]
    with FakeApp(agent.folder / "cl" / "client.sock") as app:
        app.send(hello())
        app.receive("welcome")
        figures = {"uuid": uuid, "alloc": 1, "reserved": 2}
        app.send(stats(figures), {"t": "event", "name": "oom", "fields": {"bytes": 1}})
        until(lambda: told(agent, "GET", "/api/v1/clients")[1]["clients"], "the app is a client")
        until(lambda: told(agent, "GET", "/api/v1/alerts")[1]["alerts"], "the watchdog fires")
        answers = {
            "Silence": told(agent, "POST", "/api/v1/silences", {"matchers": ['gpu="0"'], "seconds": 60}),
            "Acknowledged": told(agent, "POST", "/api/v1/acks", {"alert": "Watchdog"}),
            "ReceiverTest": told(agent, "POST", "/api/v1/receivers/hook/test"),
            "Replayed": told(agent, "POST", "/api/v1/receivers/replay"),
            "Remedied": told(
                agent, "POST", f"/api/v1/processes/{pid}/kill", {"dry_run": True, "force": True, **identity}
            ),
            "Unacknowledged": told(agent, "DELETE", "/api/v1/acks/Watchdog"),
            "Error": told(agent, "POST", f"/api/v1/processes/{pid}/kill", {"steps": [{}]}),
            "Alerts": told(agent, "GET", "/api/v1/alerts"),
            "DeadLetters": told(agent, "GET", "/api/v1/alerts/dead"),
            "Clients": told(agent, "GET", "/api/v1/clients"),
            "Remedies": told(agent, "GET", "/api/v1/remedies"),
            "Status": told(agent, "GET", "/api/v1/status"),
            "Processes": told(agent, "GET", "/api/v1/processes"),
            "IdentifiedProcesses": told(agent, "GET", "/api/v1/processes/identified"),
            "History": told(agent, "GET", "/api/v1/history"),
        }
    refused = {name: status for name, (status, _) in answers.items() if status >= 400}
    assert refused == {"ReceiverTest": 502, "Error": 400}
    assert {name: faults_of(name, content) for name, (_, content) in answers.items()} == {name: [] for name in answers}
    assert answers["Alerts"][1]["silences"]
    assert answers["Alerts"][1]["heartbeats"]
    assert answers["Remedies"][1]["remedies"][0]["steps"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("door", ["tcp", "control"])
def test_whatever_is_asked(agent: Agent, door: str, tmp_path: Path) -> None:
    """Schemathesis asks for what is allowed and what is not: each answer is described, and none is a 500."""
    with forwarded(agent.control_socket) as port:
        url = agent.url if door == "tcp" else f"http://127.0.0.1:{port}"
        filters = "--exclude-by" if door == "tcp" else "--include-by"
        found = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli",
                "--config-file", str(Path(__file__).with_name("schemathesis.toml")),
                "run", f"{url}/api/v1/openapi.json", "--url", url, filters, CONTROL_ONLY,
                "--phases", "examples,coverage,fuzzing", "--max-examples", "3", "--seed", "1",
                "--generation-database", "none", "--no-color",
            ],
            capture_output=True, text=True, timeout=150, check=False, cwd=tmp_path,
        )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    tested = re.search(r"Tested: (\d+)", found.stdout)
    assert tested is not None
    expected = sum(each.control_only is (door == "control") for each in OPERATIONS)
    assert int(tested[1]) == expected - (door == "tcp")  # it leaves out the document that it reads
