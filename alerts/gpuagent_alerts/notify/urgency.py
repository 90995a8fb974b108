"""How bad an alert is, in the measures by which an incident worsens: severity, the state of what it is about, and acts.

Fine states would make a message of every step of a forecast: from the first evidence of a leak to a full GPU there are
three that call for something else to be done. Look at it today (growing, leaking, full in hours); act now (full in
minutes); too late (full). Memory that is merely held, as by a server that takes 90 % at its start, is none of them: who
leaks beside that, and until when there is room, is news. A lost GPU is worse than each of them. That a remedy acts is
news in any state, and no state: a GPU that becomes full after a remedy has acted is news too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from gpuagent.core.hardware import FULL_RATIO, RECOVERY_ACTIONS
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.store.tables import integer

_SEVERITIES = {"": 1, "none": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_UNKNOWN_SEVERITY = 2
CRITICAL = _SEVERITIES["critical"]


class UrgencyStage(IntEnum):
    """State of what an incident is about; a higher one is worse."""

    NOTED = 0
    """Includes memory use above a threshold, which may be held evenly."""
    GROWING = 1
    """Includes a leak, and a forecast of hours."""
    FILLING = 2
    """Full in minutes or seconds."""
    FULL = 3
    """Includes an Xid that ended the work on the GPU."""
    LOST = 4


class Action(IntEnum):
    """What remedies did or are about to do; a higher one is worse."""

    NONE = 0
    TAKEN = 1
    """A remedy has acted on a process, or is about to."""
    WITHOUT_EFFECT = 2
    """The process cannot be killed."""


class Urgency(NamedTuple):
    """Severity, stage and action, each as a rank."""

    severity: int
    stage: int
    action: int = Action.NONE

    def rises_above(self, other: Urgency) -> bool:
        """Return whether one of them is worse than in `other`."""
        return any(own > theirs for own, theirs in zip(self, other, strict=True))

    def highest(self, other: Urgency) -> Urgency:
        """Return the worse of the two, rank by rank."""
        return Urgency(*(max(ranks) for ranks in zip(self, other, strict=True)))

    def lowest(self, other: Urgency) -> Urgency:
        """Return the lesser of the two, rank by rank."""
        return Urgency(*(min(ranks) for ranks in zip(self, other, strict=True)))


CALM = Urgency(-1, -1, -1)
"""Urgency below that of every alert."""
GROWS_AGAIN = Urgency(_SEVERITIES["warning"], UrgencyStage.GROWING)
"""Urgency of a message that what was started again grows, while no alert says so."""

FULL_ALERTS = frozenset({"GpuMemoryFull", "GpuInstanceMemoryFull"})
"""Names of shipped alerts on a full memory."""
_STAGES = {
    "GpuProcessMemoryLeak": UrgencyStage.GROWING,
    "GpuMemoryLeak": UrgencyStage.GROWING,
    "GpuMemoryFull": UrgencyStage.FULL,
    "GpuInstanceMemoryFull": UrgencyStage.FULL,
    "GpuMemoryStallImminent": UrgencyStage.FULL,
    "GpuXidCritical": UrgencyStage.FULL,
    "GpuLost": UrgencyStage.LOST,
}
_ACTIONS = {
    "GpuRemedy": Action.TAKEN, "GpuRemedyAnnounced": Action.TAKEN, "GpuProcessUnkillable": Action.WITHOUT_EFFECT,
}  # fmt: skip
_FORMER_ACTED_ON = 5
"""Stage under which states written before this version have what a remedy did."""
FAST_TIER = "seconds"
"""Label `tier` of a forecast by the growth of the last seconds: of a load as much as of a collapse."""
_TIERS = {"hours": UrgencyStage.GROWING, "minutes": UrgencyStage.FILLING, FAST_TIER: UrgencyStage.FILLING}
_XID_OFF_THE_BUS = "79"
_RECOVERY_STAGES = {
    RECOVERY_ACTIONS[3].text: UrgencyStage.GROWING,
    RECOVERY_ACTIONS[4].text: UrgencyStage.FULL,
    RECOVERY_ACTIONS[5].text: UrgencyStage.GROWING,
}
"""What the driver asks for while work goes on. All else ends it, as the loss of the GPU does."""
_IDLE_RESULTS = frozenset({"dry_run", "refused", "resolved", "exited"})
"""Ends of a remedy that has done nothing."""


def is_remedy_note(labels: Mapping[str, str]) -> bool:
    """Return whether an alert reports what a remedy came to."""
    return labels.get("alertname") == "GpuRemedy"


def did_nothing(labels: Mapping[str, str]) -> bool:
    """Return whether an alert reports a remedy that has not acted, as in a dry run: it keeps nothing open."""
    is_idle = labels.get("dry_run") == "true" or labels.get("result") in _IDLE_RESULTS
    return is_remedy_note(labels) and is_idle


def is_remedy_that_helped(labels: Mapping[str, str]) -> bool:
    """Return whether an alert reports a remedy after which the memory was back: news, and no trouble that lasts."""
    return is_remedy_note(labels) and labels.get("result") == "released"


def is_at_lower_threshold(alert: Alert) -> bool:
    """Return whether an alert has the name of a shipped one that says "full", and tells of a share that is less.

    A rule file may replace a shipped rule by one that fires at 60 %: that is above 60 %, and not full. A value that is
    no share of 1 says nothing.
    """
    return alert.name in FULL_ALERTS and 0.0 < alert.value < FULL_RATIO


def urgency_of(alert: Alert) -> Urgency:
    """Return the urgency of an alert."""
    labels = alert.labels
    if did_nothing(labels):
        return CALM
    action = _ACTIONS.get(labels.get("alertname", ""), Action.NONE)
    return Urgency(severity_rank(labels.get("severity", "")), _stage(alert), action)


def load_urgency(ranks: Sequence[object]) -> Urgency:
    """Return an urgency that was written down as a list of its ranks. Raises ValueError for anything else."""
    severity, stage, *rest = (integer(rank, -1, 100) for rank in ranks)
    if stage == _FORMER_ACTED_ON:
        return Urgency(severity, UrgencyStage.NOTED, Action.TAKEN)
    return Urgency(severity, stage, rest[0] if rest else min(stage, Action.NONE))


def worst(alerts: Iterable[Alert]) -> Urgency:
    """Return the worst urgency of these alerts, rank by rank; `CALM` of none."""
    found = CALM
    for alert in alerts:
        found = found.highest(urgency_of(alert))
    return found


def worst_severity(alerts: Iterable[Mapping[str, str]]) -> str:
    """Return the worst severity as an alert has it written; "" where none has one."""
    severities = [labels.get("severity", "") for labels in alerts if not did_nothing(labels)]
    return max(severities, key=severity_rank, default="")


def severity_rank(severity: str) -> int:
    """Return the rank of a severity; one of a rule's own invention counts as a warning."""
    return _SEVERITIES.get(severity, _UNKNOWN_SEVERITY)


def is_critical(alert: Alert) -> bool:
    """Return whether an alert is critical, or worse."""
    return severity_rank(alert.labels.get("severity", "")) >= CRITICAL


def _stage(alert: Alert) -> UrgencyStage:
    name, labels = alert.name, alert.labels
    if is_at_lower_threshold(alert):
        return UrgencyStage.NOTED
    if name == "GpuMemoryExhaustionSoon":
        return _TIERS.get(labels.get("tier", ""), UrgencyStage.FILLING)
    if name == "GpuXidCritical" and labels.get("xid") == _XID_OFF_THE_BUS:
        return UrgencyStage.LOST
    if name == "GpuRecoveryAction":
        return _RECOVERY_STAGES.get(labels.get("action", ""), UrgencyStage.LOST)
    return _STAGES.get(name, UrgencyStage.NOTED)


def urgency_of_shared(alert: Alert) -> Urgency:
    """Return the urgency that an alert of another incident has here: that the memory is full is told once."""
    found = urgency_of(alert)
    return found._replace(stage=min(found.stage, UrgencyStage.FILLING))


def by_urgency(item: tuple[str, Alert]) -> tuple[bool, int, int, int, float, str, str, str]:
    """Order alerts by fingerprint: what is true, then the most urgent, then the oldest."""
    fingerprint, alert = item
    urgency = urgency_of(alert)
    gpu = alert.labels.get("gpu", "")
    ranks = -urgency.severity, -urgency.action, -urgency.stage
    return not alert.holds, *ranks, alert.starts_at, alert.name, gpu, fingerprint
