"""The demo: what is started for it, and what has to be seen, in this order.

A step that is not seen in its time fails the demo. Whatever happens, nothing that was started is left behind.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from gpuagent.core.api_client import AgentUnreachable, fetch_document
from gpuagent.core.units import format_bytes, format_duration

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
_AGENT_POLL_SECONDS = 5.0
"""Seconds of the story: twelve readings a second of the machine's."""


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
        "match": ['alertname="GpuProcessMemoryLeak"', 'evidence="confirmed"'],
        "steps": [{"release_cache": {"wait": "30s"}}, {"terminate": {"wait": "2m"}}, {"kill": {"wait": "2m"}}],
    }
    keys = {
        "poll_interval": _AGENT_POLL_SECONDS,
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


LEAK = "GpuProcessMemoryLeak"
_POLL_SECONDS = 0.2
_PROGRESS_SECONDS = 5.0

T = TypeVar("T")
Say = Callable[[str], None]


class NotSeen(Exception):
    """A step that did not come; the text says which."""


def tell(stage: Stage, say: Say) -> None:
    """Tell the whole story. Raise NotSeen."""
    leaker = stage.children["leaker"]
    for name, child in stage.children.items():
        say(f"pid {child.pid} ({name}) is a real process; its GPU memory is simulated, {SPEED:.0f}x as fast as life")
    say(f"look around meanwhile:  {_program()} status --socket {stage.socket}")
    say("  and so with ps, alerts and remedies in the place of status")
    _wait(stage, say, "the agent's first reading", 30, lambda: _processes(stage))
    alert = _wait(stage, say, "the leak", 60, lambda: _firing(stage, leaker.pid), shows=_growth)
    say(f"leak found: {alert['annotations']['summary']}")
    say(f"  why: {alert['annotations'].get('reasons', '')}")
    headline = _wait(stage, say, "the webhook", 20, lambda: stage.receiver.headline(leaker.pid))
    say(f"webhook delivered to {stage.receiver.url}: {headline}")
    step = _wait(stage, say, "SIGTERM", 40, lambda: _step(stage, leaker.pid, "SIGTERM"))
    say(f"{step['step']} sent to pid {leaker.pid}: the intent was on record before")
    if (status := leaker.wait(20)) != -15:
        raise NotSeen(f"the leaker ended with status {status}, not by SIGTERM")
    run = _wait(stage, say, "the memory's return", 30, lambda: _end(stage, leaker.pid))
    if run["result"] != "released":
        raise NotSeen(f"the remedy came to {run['result']}: {run['detail']}")
    say(f"released: {format_bytes(run['released_bytes'])} came back in {format_duration(run['seconds'])} of the story")
    _wait(stage, say, "the resolved message", 40, lambda: stage.receiver.told(LEAK, "resolved", leaker.pid))
    say("resolved: the receiver was told that it is over")
    _untouched(stage, say)


def _program() -> str:
    """Return the command that runs this very program in another terminal: `make demo` puts nothing on the PATH."""
    beside = Path(sys.executable).with_name("gpuagent")
    return "gpuagent" if shutil.which("gpuagent") or not beside.exists() else str(beside)


def _untouched(stage: Stage, say: Say) -> None:
    """Show that healthy processes were neither called leaks nor touched."""
    held = {process["pid"]: process["memory_used_bytes"] for process in _processes(stage) or ()}
    for name in ("server", "trainer"):
        child = stage.children[name]
        if child.poll() is not None or child.pid not in held:
            raise NotSeen(f"the healthy {name} (pid {child.pid}) is gone")
        for status in ("firing", "resolved"):
            if stage.receiver.told(LEAK, status, child.pid):
                raise NotSeen(f"the healthy {name} was called a leak")
        say(f"untouched: {name} (pid {child.pid}) goes on with {format_bytes(held[child.pid])}")


def _wait(
    stage: Stage, say: Say, what: str, seconds: float, look: Callable[[], T | None],
    shows: Callable[[Stage], str] | None = None,
) -> T:  # fmt: skip
    """Until `look` finds something; a line now and then says that it goes on."""
    began = time.monotonic()
    progress = began + _PROGRESS_SECONDS
    while (now := time.monotonic()) < began + seconds:
        found = look()
        if found:
            return found
        if stage.agent.poll() is not None:
            raise NotSeen(f"the agent ended with status {stage.agent.returncode}")
        if now >= progress:
            progress = now + _PROGRESS_SECONDS
            say(f"  waiting for {what} ({now - began:.0f} s){shows(stage) if shows else ''}")
        time.sleep(_POLL_SECONDS)
    raise NotSeen(f"{what} was not seen in {seconds:.0f} s")


def _processes(stage: Stage) -> list[dict[str, Any]] | None:
    document = stage.ask("/api/v1/processes")
    return document.get("processes") if document else None


def _growth(stage: Stage) -> str:
    """Describe what the leaking process holds, and what the detector says of it."""
    for process in _processes(stage) or ():
        if process["pid"] == stage.children["leaker"].pid and process.get("memory_used_bytes") is not None:
            verdict = process.get("verdict") or "no verdict yet"
            return f": {format_bytes(process['memory_used_bytes'])}, {verdict}"
    return ""


def _firing(stage: Stage, pid: int) -> dict[str, Any] | None:
    document = stage.ask("/api/v1/alerts")
    for alert in document["alerts"] if document else ():
        if alert["name"] == LEAK and alert["state"] == "firing" and alert["labels"].get("pid") == str(pid):
            found: dict[str, Any] = alert
            return found
    return None


def _runs(stage: Stage, pid: int) -> list[dict[str, Any]]:
    document = stage.ask("/api/v1/remedies")
    return [run for run in document["remedies"] if run["pid"] == pid] if document else []


def _step(stage: Stage, pid: int, step: str) -> dict[str, Any] | None:
    for run in _runs(stage, pid):
        for each in run["steps"]:
            if each["kind"] == "result" and each["step"] == step and each["ok"]:
                found: dict[str, Any] = each
                return found
    return None


def _end(stage: Stage, pid: int) -> dict[str, Any] | None:
    for run in _runs(stage, pid):
        if run.get("end") and run["end"]["result"] != "refused":
            found: dict[str, Any] = run["end"]
            return found
    return None
