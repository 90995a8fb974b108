"""What pages somebody is a problem on the screen and in a check, too."""

from __future__ import annotations

import pytest

from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.problems import alert_problems
from gpuagent_exporters.status.severity import Problem

OWN = FiringAlert("TooWarm", "warning", False, "GPU-0", gpu=0, summary="GPU 0: warmer than we like")
FULL = Problem(Severity.CRITICAL, "memory_full", "memory is full", gpu=0)


def test_a_rule_of_ones_own() -> None:
    """It pages, so it is a problem of its severity, in the words of its summary."""
    (found,) = alert_problems([OWN, OWN], [FULL])
    assert (found.severity, found.sentence) == (Severity.WARNING, "GPU 0: warmer than we like")


@pytest.mark.parametrize("alert", [OWN._replace(silenced=True), OWN._replace(severity="info")])
def test_what_pages_nobody(alert: FiringAlert) -> None:
    """What is silenced, or only good to know, is no problem."""
    assert list(alert_problems([alert], [])) == []


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
