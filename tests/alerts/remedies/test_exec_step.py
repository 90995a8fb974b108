"""What a remedy's program writes goes into the audit log and the alert's text."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.programs import run as program
from gpuagent_alerts.programs.run import run_program
from gpuagent_alerts.remedies.execution.executor import NodeActionExecutor
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target
from tests.alerts.remedies.processes import as_target, reader
from tests.integration.waiting import until


class _NoApps:
    """No app has the client."""

    async def release(self, pid: int, *, collect: bool = False) -> Mapping[str, Any]:
        raise KeyError(pid)

    async def reset(self, pid: int) -> Mapping[str, Any]:
        raise KeyError(pid)

    async def notice(self, pid: int, reason: str, seconds: float) -> Mapping[str, Any]:
        raise KeyError(pid)


async def _warn(target: Target, reason: str, deadline_seconds: float) -> None:
    raise AssertionError("a program that is run warns nobody")


@pytest.mark.parametrize("status", [0, 1])
def test_what_a_program_writes_is_kept_without_secrets(status: int) -> None:
    """ALERT-07: neither a credential nor an argument that is one gets into the audit log."""
    code = f"import sys; print(*sys.argv[1:], 'Bearer abc.def done', file=sys.stderr); sys.exit({status})"
    command = (sys.executable, "-c", code, "--password=pw-1234", "https://user:x@host/y")
    executor = NodeActionExecutor(RealProc(), reader(), apps=_NoApps(), warn=_warn)
    done = asyncio.run(
        executor.execute(RemedyStep(StepKind.EXEC, 20.0, command=command), as_target(os.getpid()), UnitPermission())
    )

    assert done.ok is (status == 0)
    assert done.detail.endswith("--password=<hidden> <hidden> Bearer <hidden> done")


DAEMON = """
import os, sys, time
here, outlives = sys.argv[1], sys.argv[2] == "outlives"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(here, "w") as file:
            file.write(str(os.getpid()))
        os.rename(here, here + ".done")
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(here + ".done"):
    time.sleep(0.01)
time.sleep(600 if outlives else 0)
"""
"""Starts a process in a session of its own, whose parent has ended."""
RUNNER = """
import asyncio, sys
from gpuagent_alerts.programs import run as program
from gpuagent_alerts.programs.run import run_program
asyncio.run(run_program(sys.argv[1:], b"", 600.0, contained=True))
"""


def _daemon(note: Path) -> int:
    """Pidfd of the process that has left its session."""
    while not note.exists():
        time.sleep(0.01)
    return os.pidfd_open(int(note.read_text()))


def test_what_is_left_of_a_program_that_kills_what_contains_it(tmp_path: Path) -> None:
    """KILL-06: a step's program that ends, or has ended, what contains it leaves nothing behind, daemons neither."""
    code = DAEMON.replace("time.sleep(600 if", "os.kill(os.getppid(), 9)\ntime.sleep(600 if")
    command = (sys.executable, "-c", code, str(tmp_path / "pid"), "outlives")
    finished = asyncio.run(run_program(command, b"", 30.0, contained=True))
    assert finished.status == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{(tmp_path / 'pid.done').read_text()}/exe").exists(), "the daemon has ended")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "seconds"), [("ends", 30.0), ("outlives", 5.0)])
def test_what_leaves_its_session_does_not_outlive_the_program(tmp_path: Path, way: str, seconds: float) -> None:
    """KILL-06: a daemon that a step's program has started ends with the program, or with its time."""
    note = tmp_path / "pid.done"
    command = (sys.executable, "-c", DAEMON, str(tmp_path / "pid"), way)
    finished = asyncio.run(run_program(command, b"", seconds, contained=True))
    assert finished.status == (0 if way == "ends" else None)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_what_a_program_started_ends_with_the_agent(tmp_path: Path) -> None:
    """KILL-06: after a kill -9 of the agent no program of a step goes on acting."""
    command = (sys.executable, "-c", DAEMON, str(tmp_path / "pid"), "outlives")
    with subprocess.Popen([sys.executable, "-c", RUNNER, *command]) as agent:
        descriptor = _daemon(tmp_path / "pid.done")
        try:
            agent.kill()
            assert select.select([descriptor], [], [], 20.0)[0] == [descriptor]
        finally:
            os.close(descriptor)


def test_an_agent_that_ended_before_the_program_began(tmp_path: Path) -> None:
    """KILL-06: where the agent is gone by the time that its program would start, nothing is started."""
    contain = Path(program.__file__).with_name("subreaper.py")
    note = tmp_path / "note"
    for agent, status in ((os.getppid(), 126), (os.getpid(), 0)):
        command = (sys.executable, "-I", "-S", contain, str(agent), "/bin/touch", note)
        assert subprocess.run(command, check=False).returncode == status
        assert note.exists() is (status == 0)


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_the_status_is_the_programs_own(code: str, status: int) -> None:
    """What contains a program changes nothing of how it ended."""
    finished = asyncio.run(run_program((sys.executable, "-c", code), b"", 20.0, contained=True))
    assert finished.status == status


def test_a_program_that_is_not_there() -> None:
    """The words are those of any other program that cannot be run."""
    finished = asyncio.run(run_program(("/no/such/program",), b"", 20.0, contained=True))
    assert (finished.status, "cannot be run: No such file" in finished.said) == (127, True)
