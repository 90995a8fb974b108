"""Which silences are in force for an alert: by its labels, by its incident, and by the process that is its cause.

A forecast names no process. While it belongs to the incident of one, whose headline it is told under, a silence that
names that (`unit="emb.service"`) holds for it too. It does not for a memory that is full: every program there has that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpuagent_alerts.alert import CauseKind
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.silences import INCIDENT_LABEL, Silence, Silences
from gpuagent_alerts.notify.urgency import FULL_ALERTS

_OF_PROCESSES = frozenset({CauseKind.PROCESS, CauseKind.GROUP})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Silencing(NamedTuple):
    """How far silences hold for an alert that fires."""

    is_silenced: bool = False
    by_incident: bool = False
    """A silence names its incident, and so holds for what joins that later."""
    pids: tuple[int, ...] = ()
    """Pids of the processes that its incident is about."""


def silencing_of(
    silences: Silences,
    labels: Mapping[str, str],
    record: IncidentRecord | None,
    node_labels: Mapping[str, str] = _NO_LABELS,
) -> Silencing:
    """Return how far silences hold for an alert with these labels, which belongs to this incident."""
    found = silences_of(silences, labels, record, node_labels)
    by_incident = any(all(one.name == INCIDENT_LABEL for one in silence.matchers) for silence in found)
    pids = (
        ()
        if record is None
        else tuple(int(one[4:]) for one in record.identities if one[4:].isdecimal() and one.startswith("pid:"))
    )
    return Silencing(bool(found), by_incident, pids)


def silences_of(
    silences: Silences,
    labels: Mapping[str, str],
    record: IncidentRecord | None,
    node_labels: Mapping[str, str] = _NO_LABELS,
) -> list[Silence]:
    """Return the silences that are active and hold for an alert with these labels, which belongs to this incident."""
    own = {**node_labels, **labels}
    if record is None:
        return silences.silencing(own)
    own[INCIDENT_LABEL] = record.key
    found = silences.silencing(own)
    has_own_say = labels.get("alertname") in FULL_ALERTS or bool(labels.get("pid"))
    if found or has_own_say or record.kind not in _OF_PROCESSES:
        return found
    of_cause = {name: value for name, value in record.labels.items() if value}
    return silences.silencing({**of_cause, **own})
