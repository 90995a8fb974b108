"""Processes that have ended and still hold memory, as problems."""

from __future__ import annotations

from gpuagent.core.snapshot import ProcessState
from gpuagent.core.xids import Severity
from tests.exporters.status.test_problems import only
from tests.fakes.readings import gpu, process, snapshot

WARNING = Severity.WARNING


def test_dead_processes() -> None:
    """PROC-01: memory of a pid that is gone is told, with the advice that no signal helps."""
    dead = process(99, state=ProcessState.DEAD, used_gib=3.0)
    problem = only(snapshot([gpu()], [process(), dead]))

    assert (problem.severity, problem.kind, problem.pid) == (WARNING, "dead_processes", 99)
    assert "3.0 GiB" in problem.text
    assert "reboot" in problem.advice


def test_a_dead_process_is_called_what_it_was() -> None:
    """PROC-01: name, user, unit and pid as they were known while it lived."""
    was = process(99, user="svc-ml", unit="whisper.service").info
    problem = only(snapshot([gpu()], [process(99, state=ProcessState.DEAD, used_gib=3.0)._replace(former=was)]))

    assert problem.text.endswith("(svc-ml, whisper.service, pid 99)")


def test_a_dead_process_on_two_gpus_is_one() -> None:
    """PROC-01: one problem with the sum, and both GPUs in it; neither of them is well."""
    dead = [process(99, gpu_index=index, state=ProcessState.DEAD, used_gib=3.0) for index in (0, 1)]
    problem = only(snapshot([gpu(0), gpu(1)], dead))

    assert (problem.gpu, problem.pid) == (None, 99)
    assert "6.0 GiB on GPUs 0, 1: pid 99" in problem.text
    assert [problem.is_about(gpu(index).identity) for index in (0, 1, 2)] == [True, True, False]


def test_many_dead_processes_are_one_problem() -> None:
    """PROC-01: 64 dead pids do not push everything else off the screen."""
    problem = only(snapshot([gpu()], [process(n, state=ProcessState.DEAD, used_gib=0.25) for n in range(64)]))

    assert "64 processes that have ended still hold 16.0 GiB: pid 0, 1, 2, 3, 4 and 59 more" in problem.text
    assert problem.pid is None
