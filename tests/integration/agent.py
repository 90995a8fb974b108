"""The real agent as a process of its own, with its own port and folders."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.waiting import PATIENCE_SECONDS, free_port, until

GPUAGENT = (sys.executable, "-m", "gpuagent")
GREEDY = """
description: a process that a person would like to end
gpus:
  - model: h100
    processes:
      - {name: greedy, bind: greedy, memory: {shape: constant, value: 40GiB}}
"""
"""A scenario whose process has to be bound to a real one."""
STOP_SECONDS = 5.0
"""What the agent promises: systemd and whoever waits for a restart rely on it."""


class Answer(NamedTuple):
    """Of the HTTP side, header names in small letters; status 0 while nobody listens."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Agent:
    """A running agent."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def control_socket(self) -> Path:
        return self.folder / "run" / "control.sock"

    def log(self) -> str:
        """Everything it has said so far."""
        return (self.folder / "log").read_text(encoding="utf-8")

    def get(self, path: str, **headers: str) -> Answer:
        """Ask the read-only address; `_` in a header's name stands for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers={key.replace("_", "-"): text for key, text in headers.items()})
            response = connection.getresponse()
            return Answer(
                response.status, {key.lower(): text for key, text in response.headers.items()}, response.read()
            )
        except OSError as error:
            return Answer(0, {}, str(error).encode())
        finally:
            connection.close()

    def status(self) -> Any:
        """The status document."""
        return json.loads(self.get("/api/v1/status").body)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another `gpuagent` command against this agent."""
        return command(*words, "--socket", str(self.control_socket))

    def wait_until_ready(self) -> None:
        """Until it has measured; fails at once when the process has ended."""

        def look() -> bool:
            assert self.process.poll() is None, f"the agent ended with {self.process.returncode}: {self.log()}"
            return self.get("/-/ready").status == 200

        until(look, "the agent is ready")

    def wait_until_listening(self) -> None:
        """Until the HTTP side answers, whatever it says."""
        until(lambda: self.get("/-/healthy").status, "the agent listens")

    def wait_until_logged(self, text: str) -> None:
        """Until it has said this."""
        until(lambda: text in self.log(), f"{text!r} in the log of the agent")

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Ask it to end, as systemd does; returns the exit status. Raises TimeoutExpired."""
        self.process.terminate()
        return self.process.wait(seconds)


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `gpuagent` command to its end."""
    env = {**os.environ, **environment}
    return subprocess.run(
        [*GPUAGENT, *words], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=env
    )


def write_config(folder: Path, port: int, **keys: object) -> Path:
    """A configuration that keeps everything below `folder`. JSON is YAML."""
    path = folder / "gpuagent.yaml"
    own = {"listen": f"127.0.0.1:{port}"} | {
        f"{name}_dir": str(folder / short) for name, short in (("runtime", "run"), ("state", "state"), ("client", "cl"))
    }
    path.write_text(json.dumps(own | keys), encoding="utf-8")
    return path


@contextmanager
def running_agent(
    folder: Path,
    scenario: str | Path | None,
    environment: Mapping[str, str] | None = None,
    *,
    speed: float = 1.0,
    bind: Mapping[str, int] | None = None,
    **keys: object,
) -> Iterator[Agent]:
    """The agent over a scenario (None: over this machine), ended in every case. It may not be ready yet.

    `bind` gives processes of the scenario a real pid.
    """
    port = free_port()
    config = write_config(folder, port, **keys)
    simulate = [] if scenario is None else ["--simulate", str(scenario), "--speed", str(speed)]
    simulate += [word for key, pid in (bind or {}).items() for word in ("--bind", f"{key}={pid}")]
    # Not the notify socket of whatever runs the tests.
    env = {key: text for key, text in os.environ.items() if key != "NOTIFY_SOCKET"} | dict(environment or {})
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*GPUAGENT, "run", "--config", str(config), *simulate], stdout=log, stderr=log, env=env,
            start_new_session=True,  # Ctrl-C is for the tests alone
        )  # fmt: skip
    try:
        yield Agent(process, folder, port)
    finally:
        process.kill()  # a process that has ended and was waited for gets no signal
        process.wait()
