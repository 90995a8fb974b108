"""A command that waits for minutes tells what goes on, knows how long to wait, and can be left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.answering import read_request
from tests.fakes.identified import identified, row

OLD: dict[str, Any] = {"id": "old", "pid": 7, "alertname": "", "steps": [{"kind": "intent", "step": "SIGKILL"}]}
NEW: dict[str, Any] = {
    "id": "new", "pid": 7, "alertname": "", "waits_seconds": [30.0, 60.0],
    "steps": [{"kind": "intent", "step": "SIGTERM", "note": "odd\x1b[2J"}],
}  # fmt: skip
ANSWER: dict[str, Any] = {
    "pid": 7, "gpu": 0, "name": "python", "result": "released", "detail": "", "released_bytes": 2**30, "seconds": 9.0,
}  # fmt: skip


class FakeAgent:
    """Keeps the request for a kill open until it is told to answer; its record of the process has the run meanwhile."""

    def __init__(self, place: Path, run: Mapping[str, Any]) -> None:
        self.place = place
        self._run = run
        self.killing = threading.Event()
        self.answer = threading.Event()
        self.told = threading.Event()
        """The record with the new run was fetched."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            request = read_request(connection)
            if request.startswith(b"POST"):
                self.killing.set()
                self.answer.wait(60)
                _say(connection, ANSWER)
                return
            if request.startswith(b"GET /api/v1/processes/identified "):
                _say(connection, identified(row(7)))
                return
            if not request.startswith(b"GET /api/v1/processes/7/remedies "):
                return  # the whole record may be large, and is asked for each second
            runs = [OLD, self._run] if self.killing.is_set() else [OLD]
            _say(connection, {"schema": 1, "remedies": runs, "look_seconds": 15.0, "proof_seconds": 120.0})
            if len(runs) == 2:
                self.told.set()

    def close(self) -> None:
        self.answer.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


def _say(connection: socket.socket, document: dict[str, Any]) -> None:
    data = json.dumps(document).encode()
    try:
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    except OSError:  # whoever asked has left
        return


@contextmanager
def killing(folder: Path, run: Mapping[str, Any] = NEW) -> Iterator[tuple[FakeAgent, subprocess.Popen[str]]]:
    """`gpuagent kill` in a process of its own, against the fake."""
    agent = FakeAgent(folder / "s", run)
    command = [sys.executable, "-m", "gpuagent", "kill", "7", "--yes", "--socket", str(agent.place)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        yield agent, process
    finally:
        process.kill()
        process.communicate()
        agent.close()


@pytest.mark.slow
def test_steps_are_told_while_they_go_on(tmp_path: Path) -> None:
    """Each once, on standard error, with its wait; not those of an earlier run, and nothing that a terminal obeys."""
    with killing(tmp_path) as (agent, process):
        assert agent.told.wait(30)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == "SIGTERM: waiting for its effect, up to 30 s (odd)\n"
        agent.answer.set()
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert output == "pid 7 (python) on GPU 0: released, 1.0 GiB came back in 9 s\n"


@pytest.mark.slow
def test_a_dry_run_waits_for_nothing(tmp_path: Path) -> None:
    """A step that is not taken is told as what would be done."""
    with killing(tmp_path, NEW | {"dry_run": True}) as (agent, process):
        assert agent.told.wait(30)
        assert process.stderr is not None
        assert process.stderr.readline() == "SIGTERM: dry run, would wait for its effect, up to 30 s (odd)\n"
        agent.answer.set()
        process.communicate(timeout=30)


@pytest.mark.slow
def test_ctrl_c_stops_looking_alone(tmp_path: Path) -> None:
    """The command ends at once with 130 and says that the agent continues; no traceback."""
    with killing(tmp_path) as (agent, process):
        assert agent.told.wait(30)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")
    assert "the agent continues" in errors
    assert "Traceback" not in errors
