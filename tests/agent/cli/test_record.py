"""`record` as it is typed: what it refuses before anything is started, and what it tells at the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.procfs.children import running
from tests.fakes.answering import answering, says
from tests.fakes.documents import document
from tests.fakes.readings import gpu, process, snapshot

pytestmark = pytest.mark.slow


def record(*words: object) -> subprocess.CompletedProcess[str]:
    """As a process of its own: it changes signals, and adopts orphans."""
    command = [sys.executable, "-m", "gpuagent", "record", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def listing(*pids: int) -> dict[str, Any]:
    """The answer of an agent that sees these processes."""
    return document(snapshot([gpu(0)], [process(pid, used_gib=3) for pid in pids]))


@contextmanager
def following(folder: Path) -> Iterator[Path]:
    """An agent that sees whatever has written its pid to `folder`/pid."""

    def answer(connection: socket.socket, over: threading.Event) -> None:
        written = (folder / "pid").read_text() if (folder / "pid").exists() else ""
        says(listing(*([int(written)] if written else [])))(connection, over)

    with answering(answer) as place:
        yield place


def test_a_command_is_run_recorded_and_reported(tmp_path: Path) -> None:
    """Its output and exit status are its own, the report is on standard error, and its worker is found."""
    program = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; echo out; sleep 1; exit 7"
    file = tmp_path / "run.csv"
    with following(tmp_path) as place:
        done = record("-o", file, "--interval", "100ms", "--requests", 10, "--socket", place, "--", "sh", "-c", program)

    assert (done.returncode, done.stdout) == (7, "out\n")
    pid = (tmp_path / "pid").read_text().strip()
    assert f"python3:{pid} on GPU 0" in done.stderr
    assert "headroom" in done.stderr
    assert f"gpuagent replay {file}" in done.stderr
    assert "The command exited with status 7." in done.stderr
    lines = file.read_text().splitlines()
    assert len(lines) > 2
    assert lines[1].endswith(f"python3:{pid}")


def test_options_of_the_command_are_the_commands(tmp_path: Path) -> None:
    """Also without `--`: what follows its first word is not ours to read."""
    with answering(says(listing())) as place:
        done = record("-o", tmp_path / "run.csv", "--socket", place, "echo", "--pid", "-o", "x")

    assert (done.returncode, done.stdout) == (0, "--pid -o x\n")
    assert "no process of it held GPU memory" in done.stderr


def test_neither_or_both_is_refused(tmp_path: Path) -> None:
    """One thing is recorded: a process, or a command."""
    neither = record("-o", tmp_path / "run.csv")
    both = record("-o", tmp_path / "run.csv", "--pid", os.getpid(), "--", "true")

    assert (neither.returncode, both.returncode) == (2, 2)
    assert "--pid PID or a command" in neither.stderr
    assert not (tmp_path / "run.csv").exists()


def test_standard_output_is_the_commands() -> None:
    """A dash is no name of a file: what the command prints would be in the middle of the readings."""
    done = record("-o", "-", "--", "true")

    assert done.returncode == 2
    assert "standard output belongs to the command" in done.stderr
    assert not Path("-").exists()


@pytest.mark.parametrize("interval", ["50ms", "2m", "soon"])
def test_an_interval_that_says_nothing_of_leaks_is_refused(tmp_path: Path, interval: str) -> None:
    """Before the command runs."""
    done = record("-o", tmp_path / "run.csv", "--interval", interval, "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (2, "")
    assert "--interval" in done.stderr


def test_without_agent_and_gpus_the_command_is_not_run(tmp_path: Path) -> None:
    """A load test of an hour that recorded nothing is worse than none."""
    done = record("-o", tmp_path / "run.csv", "--socket", tmp_path / "nobody.sock", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (3, "")
    assert "no agent answers" in done.stderr
    assert not (tmp_path / "run.csv").exists()


def test_a_file_that_exists_is_refused_and_forced(tmp_path: Path) -> None:
    """Nothing runs, nothing is lost; with --force it is replaced."""
    file = tmp_path / "run.csv"
    file.write_text("precious")
    with answering(says(listing())) as place:
        refused = record("-o", file, "--socket", place, "--", "echo", "ran")
        assert (refused.returncode, refused.stdout, file.read_text()) == (1, "", "precious")
        assert "--force" in refused.stderr
        assert record("-o", file, "--force", "--socket", place, "--", "true").returncode == 0

    assert file.read_text().startswith("time_seconds,")


def test_a_command_that_is_not_there_leaves_no_file(tmp_path: Path) -> None:
    """127 as in a shell, 126 for one that may not be run."""
    file = tmp_path / "run.csv"
    with answering(says(listing())) as place:
        missing = record("-o", file, "--socket", place, "--", "/no/such/program")
        denied = record("-o", file, "--socket", place, "--", tmp_path)

    assert (missing.returncode, denied.returncode) == (127, 126)
    assert "/no/such/program cannot be run: No such file or directory" in missing.stderr
    assert not file.exists()


def test_a_process_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Neither /proc nor the agent knows it."""
    with answering(says(listing())) as place:
        done = record("-o", tmp_path / "run.csv", "--pid", 2**30, "--socket", place)

    assert (done.returncode, "No process has pid 1073741824." in done.stderr) == (1, True)
    assert not (tmp_path / "run.csv").exists()


def test_a_running_process_is_recorded_until_ctrl_c(tmp_path: Path) -> None:
    """It goes on, the file is whole, and the exit status is 0: the end was asked for."""
    file = tmp_path / "run.csv"
    with running("cat") as service, answering(says(listing(service.pid))) as place:
        words = ["record", "-o", str(file), "--pid", str(service.pid), "--interval", "100ms", "--socket", str(place)]
        with subprocess.Popen(
            [sys.executable, "-m", "gpuagent", *words], stderr=subprocess.PIPE, text=True
        ) as recorder:
            while not file.exists() or len(file.read_text().splitlines()) < 4:
                assert recorder.poll() is None
            recorder.send_signal(2)
            _, errors = recorder.communicate(timeout=30)
        assert service.poll() is None

    assert recorder.returncode == 0
    assert f"python3:{service.pid} on GPU 0" in errors
    assert "Traceback" not in errors
    assert json.dumps(file.read_text().splitlines()[-1]).count(",") == 5
