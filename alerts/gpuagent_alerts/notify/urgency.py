"""How bad an alert is, in the two measures by which an incident worsens: severity, and the state of what it is about.

Fine states would make a message of every step of a forecast: from the first evidence of a leak to a full GPU there are
three that call for something else to be done. Look at it today (growing, leaking, full in hours); act now (full in
minutes); too late (full). A lost GPU, and a remedy that acts, are worse than each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

_SEVERITIES = {"": 1, "none": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_UNKNOWN_SEVERITY = 2
CRITICAL = _SEVERITIES["critical"]


class UrgencyStage(IntEnum):
    """State of what an incident is about; a higher one is worse."""

    NOTED = 0
    GROWING = 1
    """Includes a leak, and a forecast of hours."""
    FILLING = 2
    """Full in minutes or seconds."""
    FULL = 3
    """Includes an Xid that ended the work on the GPU."""
    LOST = 4
    ACTED_ON = 5
    """A remedy has acted on a process, or is about to."""


class Urgency(NamedTuple):
    """Severity and stage, each as a rank."""

    severity: int
    stage: int

    def rises_above(self, other: Urgency) -> bool:
        """Return whether one of the two is worse than in `other`."""
        return self.severity > other.severity or self.stage > other.stage

    def highest(self, other: Urgency) -> Urgency:
        """Return the worse of the two, rank by rank."""
        return Urgency(max(self.severity, other.severity), max(self.stage, other.stage))


CALM = Urgency(-1, -1)
"""Urgency below that of every alert."""

_STAGES = {
    "GpuMemoryHigh": UrgencyStage.GROWING,
    "GpuProcessMemoryLeak": UrgencyStage.GROWING,
    "GpuMemoryLeak": UrgencyStage.GROWING,
    "GpuMemoryFull": UrgencyStage.FULL,
    "GpuInstanceMemoryFull": UrgencyStage.FULL,
    "GpuXidCritical": UrgencyStage.FULL,
    "GpuLost": UrgencyStage.LOST,
    "GpuRemedyAnnounced": UrgencyStage.ACTED_ON,
    "GpuProcessUnkillable": UrgencyStage.ACTED_ON,
}
_TIERS = {"hours": UrgencyStage.GROWING, "minutes": UrgencyStage.FILLING, "seconds": UrgencyStage.FILLING}
_XID_OFF_THE_BUS = "79"
_IDLE_RESULTS = frozenset({"dry_run", "refused", "resolved", "exited"})
"""Ends of a remedy that has done nothing."""


def is_remedy_note(labels: Mapping[str, str]) -> bool:
    """Return whether an alert reports what a remedy came to."""
    return labels.get("alertname") == "GpuRemedy"


def did_nothing(labels: Mapping[str, str]) -> bool:
    """Return whether an alert reports a remedy that has not acted, as in a dry run: it keeps nothing open."""
    is_idle = labels.get("dry_run") == "true" or labels.get("result") in _IDLE_RESULTS
    return is_remedy_note(labels) and is_idle


def urgency_of(labels: Mapping[str, str]) -> Urgency:
    """Return the urgency of an alert with these labels."""
    if did_nothing(labels):
        return CALM
    return Urgency(severity_rank(labels.get("severity", "")), _stage(labels))


def worst(alerts: Iterable[Mapping[str, str]]) -> Urgency:
    """Return the worst urgency of alerts with these labels, rank by rank; `CALM` of none."""
    found = CALM
    for labels in alerts:
        found = found.highest(urgency_of(labels))
    return found


def worst_severity(alerts: Iterable[Mapping[str, str]]) -> str:
    """Return the worst severity as an alert has it written; "" where none has one."""
    severities = [labels.get("severity", "") for labels in alerts if not did_nothing(labels)]
    return max(severities, key=severity_rank, default="")


def severity_rank(severity: str) -> int:
    """Return the rank of a severity; one of a rule's own invention counts as a warning."""
    return _SEVERITIES.get(severity, _UNKNOWN_SEVERITY)


def _stage(labels: Mapping[str, str]) -> UrgencyStage:
    name = labels.get("alertname", "")
    if name == "GpuMemoryExhaustionSoon":
        return _TIERS.get(labels.get("tier", ""), UrgencyStage.FILLING)
    if name == "GpuXidCritical" and labels.get("xid") == _XID_OFF_THE_BUS:
        return UrgencyStage.LOST
    if is_remedy_note(labels):
        return UrgencyStage.ACTED_ON
    return _STAGES.get(name, UrgencyStage.NOTED)
