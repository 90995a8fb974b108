"""Alerts that share a message, and the name of what they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent_alerts.alert import Alert, fingerprint
from gpuagent_alerts.incidents.record import Record
from gpuagent_alerts.routing.route import Destination
from gpuagent_alerts.routing.told import GroupKey

_EVIDENCE = "evidence"
"""How sure a rule is of one and the same thing, and so nothing that calls for a message of its own: a leak that comes
to meet a stricter standard is an update of what was told."""
_LONGEST_KEY = 400


@dataclass(slots=True)
class Group:
    """Alerts that fire, and that one receiver is told of together."""

    destination: Destination
    labels: Mapping[str, str]
    alerts: dict[str, Alert] = field(default_factory=dict)
    """By the fingerprint that the alert has on this node."""
    incident: Record | None = None
    """What all of them belong to; None where a route groups by labels, or a receiver takes them one by one."""


def group_of(
    known_as: str, alert: Alert, destination: Destination, node: str, incident: Record | None = None
) -> tuple[GroupKey, Group]:
    """The group of an alert with this fingerprint, empty.

    The node's labels are in its name: PagerDuty tells incidents apart by it, and hears from many nodes.
    """
    labels = alert.labels
    if destination.group_by:
        labels = {name: labels.get(name, "") for name in destination.group_by}
        name = f"{node}:{written(labels)}"
    elif incident is not None and not destination.recipient.one_by_one:
        key = GroupKey(destination.recipient.name, _bounded(f"{node}:incident:{incident.key}"))
        return key, Group(destination, {}, incident=incident)
    elif _EVIDENCE in labels and not destination.recipient.one_by_one:
        labels = {name: value for name, value in labels.items() if name != _EVIDENCE}
        name = f"{node}:{alert.name}:{fingerprint(labels)}"
    else:
        name = f"{node}:{alert.name}:{known_as}"
    return GroupKey(destination.recipient.name, _bounded(name)), Group(destination, labels)


def written(labels: Mapping[str, str]) -> str:
    """As Alertmanager writes the labels of a group."""
    return "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"


def _bounded(name: str) -> str:
    name = name.encode("utf-8", "replace").decode()
    return name if len(name) <= _LONGEST_KEY else f"{name[:_LONGEST_KEY]}…{fingerprint({'': name})}"
