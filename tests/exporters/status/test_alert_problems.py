"""What pages somebody is a problem on the screen and in a check, too."""

from __future__ import annotations

import pytest

from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.units import GIB
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.problems import alert_problems, find_problems
from gpuagent_exporters.status.severity import Problem
from tests.fakes.readings import NOW, gpu, mig_instance, process, snapshot

OWN = FiringAlert("TooWarm", "warning", False, "GPU-0", gpu=0, summary="GPU 0: warmer than we like")
FULL = Problem(Severity.CRITICAL, "memory_full", "memory is full", gpu=0)


def test_a_rule_of_ones_own() -> None:
    """It pages, so it is a problem of its severity, in the words of its summary."""
    (found,) = alert_problems([OWN, OWN], [FULL])
    assert (found.severity, found.sentence) == (Severity.WARNING, "GPU 0: warmer than we like")


@pytest.mark.parametrize("alert", [OWN._replace(silenced=True), OWN._replace(severity="info", name="GpuRemedy")])
def test_what_pages_nobody(alert: FiringAlert) -> None:
    """What is silenced, or only good to know, is no problem."""
    assert list(alert_problems([alert], [])) == []


def test_an_information_is_shown_as_one() -> None:
    """What receivers are told is on the screens too, and makes no warning."""
    (found,) = alert_problems([OWN._replace(severity="info")], [])
    assert found.severity is Severity.INFO


def test_what_a_problem_stands_for() -> None:
    """One finding is told once, unless the alert is graver or about another GPU."""
    alert = FiringAlert("GpuMemoryFull", "critical", False, "GPU-0", gpu=0, summary="GPU 0: memory is full")
    assert list(alert_problems([alert], [FULL])) == []
    assert len(list(alert_problems([alert._replace(gpu=1)], [FULL]))) == 1
    mild = Problem(Severity.INFO, "memory_full", "memory is nearly full", gpu=0)
    assert [one.severity for one in alert_problems([alert], [mild])] == [Severity.CRITICAL]


def test_what_cannot_be_measured_any_more() -> None:
    """A check does not get better because less is known: it says what was true at the last reading, and when."""
    blind = Problem(Severity.WARNING, "collector", "could not be read: processes", gpu=None)
    leak = FiringAlert(
        "GpuProcessMemoryLeak", "critical", True, "GPU-0", 7, gpu=0, summary="GPU 0: x is leaking",
        unmeasured_seconds=420.0,
    )  # fmt: skip
    (found,) = alert_problems([leak], [blind])
    assert found.severity is Severity.CRITICAL
    assert found.sentence == "GPU 0: last known 7 min ago: x is leaking"


def test_of_several_tiers_the_gravest_is_told() -> None:
    """A forecast of a GPU that is lost is as severe as its incident, whichever tier comes first."""
    hours = FiringAlert(
        "GpuMemoryExhaustionSoon", "warning", True, "GPU-0", gpu=0, summary="full in 3 min", unmeasured_seconds=60.0
    )
    (found,) = alert_problems([hours, hours._replace(severity="critical")], [])
    assert found.severity is Severity.CRITICAL
    assert len(list(alert_problems([hours, hours._replace(gpu_instance_id=3)], []))) == 2


UUID = "GPU-00000000"


@pytest.mark.parametrize(
    ("alert", "used_gib", "pids", "is_told"),
    [
        (FiringAlert("GpuMemoryFull", "critical", False, UUID, gpu=0, used_bytes=23 * GIB), 5.0, (), False),
        (FiringAlert("GpuMemoryFull", "critical", False, UUID, gpu=0, used_bytes=6 * GIB), 5.9, (), True),
        (FiringAlert("GpuMemoryFull", "critical", False, UUID, gpu=0), 5.0, (), True),
        (FiringAlert("GpuProcessMemoryLeak", "warning", True, UUID, pid=7, gpu=0), 5.0, (), False),
        (FiringAlert("GpuProcessMemoryLeak", "warning", True, UUID, pid=7, gpu=0), 5.0, (7,), True),
        (FiringAlert("TooWarm", "warning", False, UUID, pid=7, gpu=0, used_bytes=23 * GIB), 5.0, (), True),
    ],
)
def test_an_alert_that_was_evaluated_before_its_memory_came_back(
    alert: FiringAlert, used_gib: float, pids: tuple[int, ...], is_told: bool
) -> None:
    """Until its rule is evaluated over this snapshot, it does not say `memory is full` beside 21 % in use."""
    seen = snapshot([gpu(0, used_gib=used_gib)], [process(pid, used_gib=1.0) for pid in pids])
    assert any(one.kind == "alert" for one in find_problems(seen, NOW, firing=[alert])) == is_told


def test_a_mig_instance_names_its_gpu_once() -> None:
    """The rule's text begins with the GPU and the instance, and so does the sentence."""
    alert = FiringAlert(
        "GpuInstanceMemoryFull", "critical", False, UUID, gpu=0, gpu_instance_id=3,
        summary="GPU 0, MIG instance 3 (2g.20gb): memory is full (100 %)",
    )  # fmt: skip
    seen = snapshot([gpu(0, used_gib=5.0, mig=(mig_instance(3, 1.0),))], [])
    (told,) = [one.sentence for one in find_problems(seen, NOW, firing=[alert]) if one.kind == "alert"]
    assert told == "GPU 0: MIG instance 3 (2g.20gb): memory is full (100 %)"
