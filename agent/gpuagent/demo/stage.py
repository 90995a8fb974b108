"""Everything that the demo starts, and its end: whatever happens, nothing is left behind."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpuagent.core.api_client import AgentUnreachable, fetch_document

_LARGEST_BODY = 1024 * 1024


class Receiver:
    """Serves in a thread of its own until it is closed."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where messages are posted to."""
        return f"http://127.0.0.1:{self._server.server_port}/gpu-alerts"

    def told(self, alertname: str, status: str, pid: int) -> dict[str, Any] | None:
        """Return the first alert of this name and status about a process that has come."""
        for message in list(self.messages):
            for alert in message.get("alerts", ()):
                labels = alert.get("labels", {})
                if (
                    labels.get("alertname") == alertname
                    and alert.get("status") == status
                    and labels.get("pid") == str(pid)
                ):
                    found: dict[str, Any] = alert
                    return found
        return None

    def headline(self, pid: int) -> str:
        """Return the headline of the first message about what fires and names a process; "" where none has come."""
        for message in list(self.messages):
            headline = str(message.get("headline") or "")
            if message.get("status") == "firing" and f"pid {pid})" in headline:
                return headline
        return ""

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length", "0")), _LARGEST_BODY)
                messages.append(json.loads(self.rfile.read(length)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


SPEED = 60.0
"""Seconds of the story per second: the leak detector is the real one, and wants its half hour."""
CHILDREN = ("leaker", "server", "trainer")
_STOP_SECONDS = 10.0
_POLL_SECONDS = 5.0
"""Of the story: twelve readings a second of the machine's."""


class StageError(Exception):
    """Something could not be started."""


@dataclass(slots=True)
class Stage:
    """What runs."""

    folder: Path
    agent: subprocess.Popen[bytes]
    children: dict[str, subprocess.Popen[str]]
    receiver: Receiver

    @property
    def socket(self) -> Path:
        """The agent's door for commands."""
        return self.folder / "run" / "control.sock"

    @property
    def log(self) -> Path:
        """What the agent said."""
        return self.folder / "agent.log"

    def ask(self, path: str) -> dict[str, Any] | None:
        """Request a document of the agent's; return None while it does not answer."""
        try:
            document: dict[str, Any] = fetch_document(self.socket, path)
        except AgentUnreachable:
            return None
        return document


@contextmanager
def running(folder: Path) -> Iterator[Stage]:
    """Children, receiver and agent. Raises StageError."""
    with ExitStack() as ends:
        children = {name: ends.enter_context(_child(name)) for name in CHILDREN}
        receiver = Receiver()
        ends.callback(receiver.close)
        config = _configure(folder, receiver.url)
        agent = ends.enter_context(_agent(folder, config, {name: each.pid for name, each in children.items()}))
        yield Stage(folder, agent, children, receiver)


def _configure(folder: Path, url: str) -> Path:
    """JSON is YAML. Remedies are on, for this user's processes alone; a person would write the same file."""
    ladder = {
        "match": ['alertname="GpuProcessMemoryLeak"', 'evidence=~"allocator|strict"'],
        "steps": [{"release_cache": {"wait": "30s"}}, {"terminate": {"wait": "2m"}}, {"kill": {"wait": "2m"}}],
    }
    keys = {
        "poll_interval": _POLL_SECONDS,
        "listen": "",
        "runtime_dir": str(folder / "run"),
        "client_dir": str(folder / "client"),
        "state_dir": str(folder / "state"),
        "receivers": [{"name": "local", "webhook": {"url": url}}],
        "routes": [{"match": ['severity=~"warning|critical"'], "receivers": ["local"]}],
        "remedies": {"dry_run": False, "allow": {"users": [getpass.getuser()]}, "ladders": [ladder]},
    }
    path = folder / "gpuagent.yaml"
    path.write_text(json.dumps(keys, indent=1))
    path.chmod(0o600)
    return path


@contextmanager
def _child(name: str) -> Iterator[subprocess.Popen[str]]:
    # As a script: a module gpuagent.* would be on the never-list, as the agent's own processes are.
    command = [sys.executable, str(Path(__file__).with_name("child.py")), name, str(os.getpid())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)  # noqa: S603
    try:
        if process.stdout is None or process.stdout.readline().strip() != "ready":
            raise StageError(f"the process {name} did not start")
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _agent(folder: Path, config: Path, pids: dict[str, int]) -> Iterator[subprocess.Popen[bytes]]:
    binds = [word for name, pid in pids.items() for word in ("--bind", f"{name}={pid}")]
    command = [
        sys.executable, "-m", "gpuagent", "run", "--simulate", "demo", "--speed", str(SPEED), "--config", str(config),
        *binds,
    ]  # fmt: skip
    # A session of its own: Ctrl-C reaches the demo alone, which then ends the agent once.
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
    try:
        yield agent
    finally:
        agent.send_signal(signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(_STOP_SECONDS)
        finally:  # also after a second Ctrl-C; one that has ended gets no signal
            agent.kill()
            agent.wait()
