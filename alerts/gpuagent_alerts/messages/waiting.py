"""Incidents that go on although nothing of them is true now: mostly, a process was started again and may grow again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent_alerts.alert import News
from gpuagent_alerts.messages.briefing import BriefingWriter
from gpuagent_alerts.messages.snapshot_inputs import subject_of
from gpuagent_alerts.notify.incident_record import incident_of
from gpuagent_alerts.notify.notifier import Notifier


class WaitingIncident(NamedTuple):
    """One such incident."""

    key: str
    headline: str
    """One line, as of any incident that goes on."""
    for_restart: bool
    """Whether its end waits for what was, or may be, started in place of its processes."""
    subject: FiringAlert
    """What it is about, as a warning."""


def find_waiting(
    notifier: Notifier, briefings: BriefingWriter, present: Collection[str], now: float
) -> list[WaitingIncident]:
    """Return them by key; `present` are fingerprints of alerts whose conditions are true, `now` is Unix time."""
    found, records = [], notifier.incidents
    for key, watch in sorted(notifier.owners().items()):
        record = records.get(key)
        if record is None or any(name in present for name, keeps in record.members.items() if keeps):
            continue
        incident = incident_of(record, News.BEGAN)
        headline, text = briefings.held(incident, watch, now)
        subject = subject_of({**incident.labels, "alertname": key, "severity": "warning"}, about_growth=False)
        subject = subject._replace(pid=0, summary=text, silenced=notifier.is_incident_silenced(record))
        for_restart = watch.holds and watch.restarts.since is not None
        found.append(WaitingIncident(key, headline, for_restart, subject))
    return found
