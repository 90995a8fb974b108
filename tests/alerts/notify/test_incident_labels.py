"""What the labels of an incident say of several processes."""

from __future__ import annotations

from gpuagent_alerts.alert import CauseKind
from gpuagent_alerts.notify.cause import Cause
from gpuagent_alerts.notify.incident_labels import merged_labels
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.succession import Restarts


def merge(restarts: int = 0, **second: str) -> dict[str, str]:
    """The labels of an incident of one process after another has joined it."""
    first = {"process": "python3", "app": "api", "pid": "1", "unit": "a@1.service"}
    found = IncidentRecord("inc-1", CauseKind.GROUP, ("process:1",), first, 0.0, restarts=Restarts(count=restarts))
    return merged_labels(found, Cause(CauseKind.PROCESS, ("process:2",), ("process:2",), labels={**first, **second}))


def test_replicas_have_no_name_that_only_one_of_them_has() -> None:
    """The name of the first one would be that of all of them; one that all have stays."""
    assert merge(pid="2", process="worker", app="batch") == {"process": "", "app": "", "pid": "", "unit": "a@1.service"}
    assert merge(pid="2")["process"] == "python3"


def test_what_was_started_in_place_of_another_does_not_take_its_name() -> None:
    """A service that is restarted under another name is still told by one."""
    assert merge(restarts=1, pid="2", process="python3.11")["process"] == "python3"
