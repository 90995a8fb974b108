"""Apps that embed the client run as processes of their own: that is where they live."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.agent_socket import FakeAgent

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
APPS_PYTHON = ROOT / ".venv-apps" / "bin" / "python"


class Apps:
    """Starts apps with the client in them, and ends what is left of them."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self._folder = folder
        self._socket = socket
        self.started: list[subprocess.Popen[str]] = []

    def environment(self, **extra: str) -> dict[str, str]:
        """That of this process, without its own settings of the client."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUAGENT_", "PYTHON"))}
        paths = os.pathsep.join([str(ROOT / "client"), str(APPS)])
        return {**kept, "PYTHONPATH": paths, "GPUAGENT_SOCKET": str(self._socket), "PYTHONUNBUFFERED": "1", **extra}

    def start(
        self, *command: str | Path, python: str | Path = sys.executable, **environment: str
    ) -> subprocess.Popen[str]:
        """Start `python COMMAND...` in a session of its own, with pipes; errors go with the output."""
        process = subprocess.Popen(
            [str(python), *map(str, command)],
            cwd=self._folder,
            env=self.environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def code(self, source: str, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program that is given as text."""
        path = self._folder / f"app{len(self.started)}.py"
        path.write_text(source)
        return self.start(path, *args, **options)

    def end(self) -> None:
        """Kill each app and all that it started."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    """Where the agent of a test listens."""
    return tmp_path / "run" / "client.sock"


@pytest.fixture
def agent(socket_path: Path) -> Iterator[FakeAgent]:
    """An agent that greets and listens."""
    with FakeAgent(socket_path) as running:
        yield running


@pytest.fixture
def apps(tmp_path: Path, socket_path: Path) -> Iterator[Apps]:
    """A starter of apps whose agent is the test's."""
    starter = Apps(tmp_path, socket_path)
    yield starter
    starter.end()


@pytest.fixture
def apps_python() -> Path:
    """An interpreter with torch, FastAPI, uvicorn and gunicorn."""
    if not APPS_PYTHON.exists():
        reason = "no .venv-apps with torch and servers; scripts/apps-venv makes it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return APPS_PYTHON
