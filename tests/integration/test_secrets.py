"""Secrets in every place where an operator or an app may put one, and a look at everything that comes out."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from tests.alerts.notify.receivers.sink import Received, Reply, Sink, sink
from tests.integration.agent import Agent, command, running_agent
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

S = "5eCr3t"
"""Part of every secret here, and of nothing else."""
PASSWORD = f"open-{S}-sesame"
SIGNING_KEY = base64.b64encode(f"a signing key {S} of 24 bytes or more".encode()).decode()
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
CREDENTIALS = f"user:{S}-user"
"""Of the receivers' URLs: httpx makes `Authorization: Basic` of them."""
TELLTALES = (
    S,
    base64.b64encode(S.encode()).decode().rstrip("="),
    base64.b64encode(CREDENTIALS.encode()).decode().rstrip("="),
    CREDENTIALS.encode().hex(),
    SIGNING_KEY,
    HASH,
)

SCENARIO = f"""
gpus:
  - model: h100
    memory: {{total: 80GiB, base_used: 70GiB}}
    processes:
      - {{name: a, memory: 1GiB, command: [python, serve.py, --api-key, "{S}-argument", "--password={S}-option"]}}
      - {{name: b, memory: 1GiB, command: [env, "HF_TOKEN={S}-variable", "x=https://user:{S}-url@example.org/"]}}
      - {{name: c, memory: 1GiB, command: [curl, -H, "Authorization: Bearer {S}-header"]}}
      - {{name: d, memory: 1GiB, command: [sh, -c, "export AWS_SECRET_ACCESS_KEY={S}-shell && run"]}}
"""
RULES = "groups: [{name: g, interval: 1s, rules: [{alert: Full, expr: 'gpuagent_gpu_memory_used_ratio > 0.8'}]}]"
READ = (
    "/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/alerts", "/api/v1/clients", "/api/v1/history",
    "/api/v1/processes", "/api/v1/remedies", "/api/v1/status",
)  # fmt: skip
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",), ("status", "--json"), ("ps", "--all"), ("ps", "--json"), ("alerts",), ("alerts", "--json"),
    ("alerts", "--dead"), ("receivers", "list"), ("receivers", "test", "hook"), ("receivers", "test", "chat"),
    ("receivers", "test", "pager"), ("receivers", "test", "fleet"), ("remedies",), ("remedies", "--json"),
)  # fmt: skip


def _repeats_what_it_was_sent(request: Received) -> Reply:
    """A receiver that refuses, and quotes address, headers and body: none of that may end up anywhere."""
    credentials = request.headers.get("authorization", "").removeprefix("Basic ")
    decoded = base64.b64decode(credentials)
    quoted = f"no: {credentials} {decoded.hex()} {request.path} {request.headers} ".encode() + request.body
    return Reply(400 if "status" in request.path else 500, body=quoted)


@pytest.fixture
def receiver() -> Iterator[Sink]:
    """One that all kinds of receivers talk to."""
    with sink(_repeats_what_it_was_sent) as made:
        yield made


def _secret_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def _keys(folder: Path, receiver: Sink) -> dict[str, Any]:
    at = f"http://{CREDENTIALS}@127.0.0.1:{receiver.port}"
    web = {"basic_auth_users": {"scraper": HASH}}
    hook = {"url": f"{at}/{S}-path?token={S}-query", "secret_file": _secret_file(folder, "key", f"whsec_{SIGNING_KEY}")}
    return {
        "poll_interval": "500ms",
        "web_config_file": _secret_file(folder, "web.json", json.dumps(web)),
        "rule_files": [_secret_file(folder, "rules.yaml", RULES)],
        "receivers": [
            {"name": "hook", "webhook": hook},
            {"name": "chat", "slack": {"url_file": _secret_file(folder, "slack", f"{at}/{S}-slack")}},
            {"name": "pager", "pagerduty": {"routing_key": f"{S}{'0' * (32 - len(S))}"}},
            {"name": "fleet", "alertmanager": {"url_file": _secret_file(folder, "fleet", at)}},
            {"name": "alive", "heartbeat": {"url": f"{at}/{S}-heartbeat", "interval": "10s"}},
        ],
        "log": {"level": "debug"},
    }


class _ControlSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _over_the_control_socket(agent: Agent, path: str) -> bytes:
    connection = _ControlSocket(agent.control_socket)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def _leaks(outputs: Mapping[str, bytes]) -> list[str]:
    """Where a secret shows, with what stands around it."""
    return [
        f"{where}: ...{data[max(0, at - 80) : at + 60]!r}..."
        for where, data in outputs.items()
        for telltale in TELLTALES
        if (at := data.find(telltale.encode())) >= 0
    ]


def test_no_secret_comes_out(folder: Path, receiver: Sink) -> None:
    """PROC-07, ALERT-07: neither log, metrics, API, page, commands nor the state on disk hold a secret."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO)
    authorization = "Basic " + base64.b64encode(f"scraper:{PASSWORD}".encode()).decode()
    outputs: dict[str, bytes] = {}
    with running_agent(folder, scenario, **_keys(folder, receiver)) as agent:
        until(lambda: agent.get("/-/ready", Authorization=authorization).status == 200, "the agent is ready")
        until(lambda: "cannot deliver to hook" in agent.log(), "a message was refused")
        until(lambda: any(request.path.endswith("heartbeat") for request in receiver.asked), "a heartbeat")
        wrong = agent.get("/metrics", Authorization="Basic " + base64.b64encode(f"x:{S}-wrong".encode()).decode())
        assert wrong.status == 401
        for path in READ:
            answer = agent.get(path, Authorization=authorization)
            assert answer.status == 200, (path, answer)
            outputs[f"TCP {path}"] = answer.body
            outputs[f"control {path}"] = _over_the_control_socket(agent, path)
        for words in COMMANDS:
            ran = agent.command(*words)
            outputs[f"gpuagent {' '.join(words)}"] = (ran.stdout + ran.stderr).encode()
        config = str(folder / "gpuagent.yaml")
        for words in (
            ("config", "show", "--config", config),
            ("config", "check", config),
            ("doctor", "--config", config),
        ):
            ran = command(*words)
            outputs[f"gpuagent {' '.join(words[:2])}"] = (ran.stdout + ran.stderr).encode()
        assert agent.stop() == 0
        outputs["the log"] = agent.log().encode()
        for file in sorted((folder / "state").iterdir()):
            outputs[f"state/{file.name}"] = file.read_bytes()

    assert b"serve.py" in outputs["control /api/v1/processes"]
    assert b"hidden" in outputs["gpuagent config show"]
    assert b"[redacted]" in outputs["control /api/v1/processes"]
    assert "Traceback" not in agent.log()
    assert _leaks(outputs) == []


def test_files_are_the_agents_own(folder: Path) -> None:
    """What it makes nobody else can write, and nobody else can read but for the door that is for all apps."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        modes = {
            str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
            for name in ("state", "run", "cl")
            for path in (folder / name, *(folder / name).rglob("*"))
        }
        assert agent.stop() == 0

    assert modes.pop("cl") == 0o755
    assert modes.pop("cl/client.sock") == 0o666
    assert modes.pop("run") & 0o027 == 0
    assert modes.pop("run/control.sock") == 0o660
    assert modes.pop("state") & 0o027 == 0
    assert modes
    assert all(mode & 0o137 == 0 for mode in modes.values()), {path: oct(mode) for path, mode in modes.items()}
