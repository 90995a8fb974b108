"""Everything that the demo starts, and its end: whatever happens, nothing is left behind."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuagent.core.api_client import AgentUnreachable, fetch_document
from gpuagent.demo.receiver import Receiver

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
