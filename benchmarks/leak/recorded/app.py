"""A running app, seen from outside."""

from __future__ import annotations

import http.client
import os
import subprocess
import time
from pathlib import Path

from benchmarks.leak.recorded.cases import Case

ROOT = Path(__file__).parents[3]
APPS_PYTHON = ROOT / ".venv-apps" / "bin" / "python"
PROGRAM = Path(__file__).with_name("apps") / "served_app.py"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STARTING_SECONDS = 120.0
_LOOK_SECONDS = 0.2


class NotServing(Exception):
    """The app has ended, or does not answer, and why."""


class App:
    """The process. `socket` is the agent's, for its client."""

    def __init__(self, case: Case, socket: Path) -> None:
        self.case = case
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUAGENT_", "PYTHON"))}
        self.process = subprocess.Popen(
            [str(APPS_PYTHON), "-W", "ignore", str(PROGRAM), str(case.cache_entries)],
            env={**kept, "GPUAGENT_SOCKET": str(socket), "PYTHONPATH": str(ROOT / "client"), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_serving(self) -> None:
        """Raises NotServing."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise NotServing(f"{self.case.name} has ended with {self.process.wait()}")
        self.port = int(line)
        give_up = time.monotonic() + _STARTING_SECONDS
        while self.ask("GET", "/healthz") != http.HTTPStatus.OK:
            if time.monotonic() > give_up:
                raise NotServing(f"{self.case.name} does not answer")
            time.sleep(_LOOK_SECONDS)

    def ask(self, method: str, path: str) -> int:
        """The status; 0 if there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_STARTING_SECONDS)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def resident_bytes(self, _seconds: float = 0.0) -> float:
        """The kernel's count of what it holds; 0 once it has ended."""
        try:
            return float(int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES)
        except (OSError, IndexError):
            return 0.0

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
