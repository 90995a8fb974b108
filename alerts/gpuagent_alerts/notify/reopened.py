"""An incident that ended and begins again within half an hour: what it keeps of its first life."""

from __future__ import annotations

from dataclasses import replace

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.notify.cause import Cause
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.succession import Restarts


def reopened(one: IncidentRecord, alert: Alert) -> IncidentRecord:
    """Return an incident that ended as this alert begins it again: since then, and not since its first beginning."""
    return replace(
        one, ends_at=None, reopened=one.reopened + 1, starts_at=alert.begins_at, headline="", restarts=Restarts(),
        left=(), grew_on=(), grew_together=0,
    )  # fmt: skip


def restarts_of_reopened(one: IncidentRecord, cause: Cause, now: float) -> Restarts:
    """Return the restarts of an incident that had ended, and that a process which it has not seen begins again."""
    own = next((name for name in cause.brings if name.startswith("process:")), "")
    if own.removeprefix("process:") in one.restarts.processes:
        return replace(one.restarts, flat_seconds=0.0, grows_by=0.0)
    if not own or own in one.identities or not any(name.startswith("process:") for name in one.identities):
        return Restarts()
    name = own.removeprefix("process:")
    return Restarts(one.restarts.count + 1, name, now, processes=(name,), pace=one.restarts.pace)
