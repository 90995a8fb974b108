"""Problems that a silence leaves out on `status`, `check` and the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.severity import Problem
from gpuagent_exporters.status.silencing import KINDS, is_silenced

NODE_ALERTS = frozenset({"GpuCountDropped"})


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in KINDS.items() for kind in sorted(kinds)])
def test_a_problem_goes_by_the_silence_of_what_says_the_same(name: str, kind: str) -> None:
    """Every kind, by the same rule: of that GPU, with every alert of it silenced, and no graver than those."""
    gpu = None if name in NODE_ALERTS else 0
    pid = 7 if name == "GpuProcessMemoryLeak" and kind in {"leak", "growth"} else 0
    of_all = name == "GpuProcessMemoryLeak" and not pid
    problem = Problem(Severity.WARNING, kind, "text", gpu=gpu, pid=pid or None, xid=43 if kind == "xid" else None)
    alert = FiringAlert(name, "warning", False, gpu=gpu, pid=pid or 7 * of_all, silenced=True, xid=problem.xid)

    assert is_silenced(problem, [alert]) is not of_all  # a leak by its pid says nothing of the GPU as a whole
    assert not is_silenced(problem, [alert, alert._replace(silenced=False)]) or of_all
    assert not is_silenced(replace(problem, gpu=1), [alert])
    assert not is_silenced(replace(problem, kind="state"), [alert])
    graver = replace(problem, severity=Severity.CRITICAL)
    assert is_silenced(graver, [alert]) is bool(pid)
    assert is_silenced(graver, [alert._replace(incident_silenced=True)]) is not of_all


def test_what_is_said_of_a_process_goes_by_the_alerts_of_its_incident() -> None:
    """A forecast that is told under its name counts, one of a neighbor does not; nor does another Xid or instance."""
    leak = Problem(Severity.CRITICAL, "leak", "text", gpu=0, pid=7)
    soon = FiringAlert("GpuMemoryExhaustionSoon", "critical", True, gpu=0, silenced=True, incident_pids=(7,))
    assert is_silenced(leak, [soon])
    assert not is_silenced(leak, [soon._replace(incident_pids=(8,))])
    own = FiringAlert("GpuProcessMemoryLeak", "warning", True, gpu=0, pid=7, silenced=True)
    assert is_silenced(leak, [own, soon._replace(incident_pids=(8,), silenced=False)])
    xid = Problem(Severity.CRITICAL, "xid", "text", gpu=0, xid=79)
    assert not is_silenced(xid, [FiringAlert("GpuXidWarning", "critical", False, gpu=0, silenced=True, xid=43)])
    full = Problem(Severity.CRITICAL, "memory_full", "text", gpu=0, gpu_instance_id=1)
    assert not is_silenced(full, [FiringAlert("GpuMemoryFull", "critical", False, gpu=0, silenced=True)])


def test_a_problem_of_several_gpus_is_left_out_with_all_of_them() -> None:
    """Memory of a dead process on two GPUs is told while one of its alerts is not silenced, or has not fired."""
    dead = Problem(Severity.WARNING, "dead_processes", "text", pid=7, gpus=(0, 1))
    both = [FiringAlert("GpuDeadProcessesHoldMemory", "warning", False, gpu=each, silenced=True) for each in (0, 1)]
    assert is_silenced(dead, both)
    assert not is_silenced(dead, both[:1])
    assert not is_silenced(dead, [both[0], both[1]._replace(silenced=False)])
