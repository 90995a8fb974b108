"""Whether somebody has ended, and what stands in the way of a step, is asked of files that may hang."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.containers import RunningContainer
from gpuagent.procfs.files import RealProc, parse_parent, parse_stat
from gpuagent_alerts.remedies.execution import executor as module
from gpuagent_alerts.remedies.execution import slurm_jobs, units
from gpuagent_alerts.remedies.execution.executor import NodeActionExecutor
from gpuagent_alerts.remedies.execution.slurm_jobs import SlurmJobs
from gpuagent_alerts.remedies.execution.units import Systemctl
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.liveness import LivenessCheck
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from tests.alerts.remedies.processes import PLAIN, as_target, reader, running
from tests.alerts.remedies.staging import NoApps, no_warning
from tests.alerts.remedies.test_fresh_names import ID
from tests.alerts.remedies.test_slurm_jobs import JOB

pytestmark = pytest.mark.timeout(60)
CROWD = [ProcessId("boot", pid, pid) for pid in range(100, 300)]


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """What hangs until the end of the test."""
    ends = threading.Event()
    yield ends
    ends.set()


class Hangs(RealProc):
    """A process of which these files are not answered."""

    def __init__(self, names: set[str], ends: threading.Event) -> None:
        super().__init__()
        self._names, self._ends = names, ends

    def read(self, pid: int, name: str) -> bytes:
        if name in self._names:
            self._ends.wait(60)
            raise ProcessLookupError
        return super().read(pid, name)


def test_those_that_hang_are_asked_together_and_seldom(silence: threading.Event) -> None:
    """KILL-06: two hundred that have their files hang hold the loop up as one does, and not again for a while."""
    now, asked = [0.0], []

    def is_alive(identity: ProcessId) -> bool:
        asked.append(identity)
        now[0] = 1.0
        silence.wait(60)
        return False

    check = LivenessCheck(lambda: now[0])
    assert check.ended(is_alive, CROWD) == frozenset()
    assert len(asked) < len(CROWD)
    before = len(asked)
    assert check.ended(is_alive, CROWD) == frozenset()
    assert len(asked) == before
    now[0] = 20.0
    assert check.ended(lambda each: each.pid != 100, CROWD) == {CROWD[0]}


def test_a_defect_is_no_answer() -> None:
    """What is no fact about a process is raised."""
    with pytest.raises(ZeroDivisionError):
        LivenessCheck().ended(lambda _: bool(1 // 0), CROWD[:1])
    assert LivenessCheck().ended(lambda _: bool(1 // 0), []) == frozenset()


@pytest.mark.parametrize("name", ["stat", "wchan"])
def test_one_whose_files_hang_counts_as_alive(silence: threading.Event, name: str) -> None:
    """KILL-06: none of the files by which an end is told may hold up whoever asks for it."""
    with running(PLAIN) as process:
        executor = NodeActionExecutor(Hangs({name}, silence), reader(), apps=NoApps(), warn=no_warning)
        assert executor.is_alive(as_target(process.pid).id)


def test_the_agents_own_ancestors_are_read_without_waiting(silence: threading.Event) -> None:
    """A person who starts the agent below a process that hangs in execve(2) does not hold its loop up."""
    executor = NodeActionExecutor(Hangs({"stat"}, silence), reader(), apps=NoApps(), warn=no_warning)
    assert {1, os.getpid(), os.getppid()} <= executor.protected()
    status, stat = RealProc().read(os.getpid(), "status"), RealProc().read(os.getpid(), "stat")
    assert parse_parent(status) == parse_stat(stat).parent_pid == os.getppid()
    assert parse_parent(b"Name:\tPPid:\t7\n") == 0


def test_a_container_whose_first_process_hangs(silence: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL-03: the runtime names a process that cannot be read: that is a refusal, and no run without an end."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)

    class HangingReader(type(reader())):  # type: ignore[misc]
        def read(self, pid: int) -> object:
            silence.wait(60)
            raise ProcessLookupError

    with running(PLAIN) as process:
        target = replace(
            as_target(process.pid), container_id=ID, container_runtime="docker", container_name="web",
            proven_names=frozenset({"container"}),
        )  # fmt: skip
        hanging = object.__new__(HangingReader)
        hanging.__dict__.update(vars(reader()))
        executor = NodeActionExecutor(
            RealProc(), hanging, apps=NoApps(), warn=no_warning, ask_runtime=lambda _: RunningContainer(process.pid, "")
        )
        said = asyncio.run(executor.container_refusal(target))
    assert said.startswith("it cannot be seen what is in")


def test_a_program_whose_file_system_is_silent(
    silence: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """KILL-06: a step whose program lies on a file system that hangs fails, and keeps no other rule from acting."""

    def hangs(_: object) -> str:
        silence.wait(60)
        return ""

    for each in (module, units):
        monkeypatch.setattr(each, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(slurm_jobs, "_FIND_SECONDS", 0.1)
    with running(PLAIN) as process:
        executor = NodeActionExecutor(RealProc(), reader(), apps=NoApps(), warn=no_warning, program_check=hangs)
        step = RemedyStep(StepKind.EXEC, 30.0, command=("/nfs/end",))
        done = asyncio.run(executor.execute(step, as_target(process.pid), UnitPermission()))
        assert (done.ok, done.taken) == (False, False)
        assert done.detail == "the program is not run: the file system of /nfs/end does not answer within 0.1 s"

    for name in ("squeue", "systemctl"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    asked = asyncio.run(SlurmJobs(search_path=str(tmp_path), program_check=hangs).name(JOB, ("/nfs/scancel",)))
    assert "the file system of squeue does not answer within 0.1 s" in asked.refusal

    monkeypatch.setattr(units, "ProgramCheck", lambda: hangs)
    systemctl = Systemctl(UnitProcesses(RealProc()), search_path=str(tmp_path))
    code, said = asyncio.run(systemctl._run("show", seconds=1.0))
    assert (code, said) == (127, "systemctl is not run: its file system does not answer within 0.1 s")
