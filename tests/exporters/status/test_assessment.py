"""How grave growth is: by the alert that fires about it, else by what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.xids import Severity
from gpuagent_alerts.messages.snapshot_inputs import subject_of
from gpuagent_exporters.status.severity import Assessments

UUID = "GPU-0"
KEY = MemoryKey(UUID, 7)


def growth(verdict: Verdict, seconds: float | None = None, state: GrowthState | None = GrowthState.RISING) -> Growth:
    """Of so many seconds to the wall."""
    forecast = None if seconds is None else Range(seconds, seconds / 2, seconds * 1.5)
    evidence = Evidence.STRICT if verdict is Verdict.LEAKING else None
    return Growth(verdict, evidence, Range(1e6, 1e6, 1e6), exhaustion=forecast, state=state)


def alert(severity: str | None, *, about_growth: bool = True, **place: object) -> FiringAlert:
    """About the process, unless told otherwise."""
    return FiringAlert("A", severity, about_growth, **{"uuid": UUID, "pid": 7, **place})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "severity"),
    [
        (growth(Verdict.LEAKING, 7200.0), Severity.WARNING),
        (growth(Verdict.LEAKING, 1200.0), Severity.CRITICAL),
        (growth(Verdict.LEAKING, 0.0, GrowthState.FULL), Severity.CRITICAL),
        (growth(Verdict.LEAKING, None, GrowthState.STOPPED), Severity.WARNING),
        (growth(Verdict.GROWING), None),
        (growth(Verdict.GROWING, 7200.0), Severity.INFO),
        (growth(Verdict.GROWING, 60.0), Severity.WARNING),
        (Growth(Verdict.GROWING, fast=True, fast_exhaustion_seconds=3.0), Severity.WARNING),
        (Growth(Verdict.CACHED), Severity.INFO),
        (Growth(Verdict.STEADY), None),
        (Growth(Verdict.LEVELLED_OFF), None),
    ],
)
def test_by_the_verdict(said: Growth, severity: Severity | None) -> None:
    """LEAK-01: what is no leak is never critical by itself; a leak is when minutes are left, or none."""
    assert Assessments({KEY: said}).severity(KEY) is severity


def test_the_gravest_alert_counts() -> None:
    """One severity: that of the alert, also where the verdict alone would say more, or less."""
    soon, grows = growth(Verdict.LEAKING, 60.0), growth(Verdict.GROWING, 60.0)
    assert Assessments({KEY: soon}, [alert("warning")]).severity(KEY) is Severity.WARNING
    assert Assessments({KEY: soon}, [alert("info"), alert("critical")]).severity(KEY) is Severity.CRITICAL
    assert Assessments({KEY: grows}, [alert("critical", pid=0)]).severity(KEY) is Severity.CRITICAL
    again = replace(growth(Verdict.GROWING), held_before=True)
    assert Assessments({KEY: again}, [alert("critical", pid=0)]).severity(KEY) is None


@pytest.mark.parametrize(
    "other",
    [
        alert("info", about_growth=False),
        alert("info", pid=8),
        alert("info", uuid="GPU-1"),
        alert("info", pid=0, gpu_instance_id=3),
        alert(None),
    ],
    ids=["of something else", "of another process", "of another GPU", "of an instance", "of no severity"],
)
def test_an_alert_about_something_else_does_not(other: FiringAlert) -> None:
    """An idle process that leaks is no matter of `info`."""
    assert Assessments({KEY: growth(Verdict.LEAKING, 7200.0)}, [other]).severity(KEY) is Severity.WARNING


def test_an_alert_of_the_gpu_is_about_what_grows_there() -> None:
    """A neighbor that stands still is none of its business; nor is an instance, which has an alert of its own."""
    said = Assessments(
        {
            KEY: Growth(Verdict.STEADY),
            MemoryKey(UUID): growth(Verdict.LEAKING),
            MemoryKey(UUID, 0, 3): growth(Verdict.GROWING),
        },
        [alert("critical", pid=0)],
    )
    assert said.severity(KEY) is None
    assert said.severity(MemoryKey(UUID)) is Severity.CRITICAL
    assert said.severity(MemoryKey(UUID, 0, 3)) is None


def test_an_alert_that_holds_on_keeps_its_word() -> None:
    """While it fires, what it is about is shown with it, though it has levelled off."""
    said = Assessments({KEY: Growth(Verdict.LEVELLED_OFF)}, [alert("warning")])
    assert (said.severity(KEY), said.alerted(KEY)) == (Severity.WARNING, Severity.WARNING)


@pytest.mark.parametrize(("began_at", "since"), [(None, 9000.0), (5000.0, 5000.0), (9500.0, 9000.0)])
def test_a_leak_is_as_old_as_its_alert(began_at: float | None, since: float) -> None:
    """A history that was lost with the agent makes no leak younger than the alert that outlived it."""
    leak = replace(growth(Verdict.LEAKING), since_seconds=9000.0)
    told = Assessments({KEY: leak}, [alert("warning", began_at=began_at)]).document(KEY)
    assert (told["leak_since_seconds"], told["growth_since_seconds"]) == (since, since)
    other = Assessments({KEY: leak}, [alert("warning", began_at=1.0, pid=8)]).document(KEY)
    assert other["leak_since_seconds"] == 9000.0


def test_labels_of_a_rule_of_ones_own() -> None:
    """A rule may set any label to any text: what is no number names no process, what is no severity is none."""
    labels = {"alertname": "A", "uuid": UUID, "pid": "7", "gpu_instance_id": "3", "severity": "critical"}
    assert subject_of(labels, about_growth=True) == FiringAlert("A", "critical", True, UUID, 7, 3)
    odd = {"alertname": "A", "pid": "\uff17", "gpu_instance_id": "-1x", "severity": "page"}
    assert subject_of(odd, about_growth=False) == FiringAlert("A", None, False, "", 0, NO_INSTANCE)
    assert subject_of({"pid": "9" * 5000}, about_growth=False).pid == 0
