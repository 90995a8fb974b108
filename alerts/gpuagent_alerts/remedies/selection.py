"""Which process a ladder is for when an alert fires, and which alert comes first where several want a remedy.

The process is the one that the alert names, the best of a ranking, or none, with the reason. Rules act one at a time
over the node: the worst alert first, and none is starved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_duration
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.attempts import Attempts
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.safeguards.victim import Candidate, VictimPolicy, rank
from gpuagent_alerts.remedies.settings import LadderRule
from gpuagent_alerts.remedies.steps import StepKind
from gpuagent_alerts.remedies.target import Target

_NOBODY = {
    VictimPolicy.LEAKING: "victim: leaking finds nobody: no process there leaks by the driver's own figures",
    VictimPolicy.LARGEST: "victim: largest finds nobody",
    VictimPolicy.NEWEST: "victim: newest finds nobody",
    VictimPolicy.IDLE: (
        "victim: idle finds nobody: no process there was observed at 0 % in every reading of the last {idle_for}, with"
        " the same memory, on all of its GPUs. One without samples of its own, as an idle notebook beside a process"
        " that works, is known to be idle only while its whole GPU is at 0 %; a person can end it: gpuagent kill PID"
    ),
}
_SEVERITIES = ("critical", "page", "error", "high", "warning", "low", "info", "none")
_NEVER = float("-inf")
_MOST_CROWDS = 4096
"""Users and programs whose refusals are remembered, the oldest forgotten first."""


@dataclass(frozen=True, slots=True)
class AlertCandidates:
    """An alert, and whom it could be about: the processes of its GPU on the newest snapshot."""

    alert: Alert
    since_seconds: float
    """CLOCK_BOOTTIME since which its expression has been true without a break."""
    processes: Sequence[Target]
    expression: str = ""
    values: tuple[float, ...] = ()
    about_growth: bool = False
    """The rule goes by what the leak detector says."""
    idle_for_seconds: float | None = None
    """How long a process must have been at rest, where the rule is true because it or its GPU does not work."""
    objection: str = ""
    """Why it is no reason to act now; "" if it is one."""
    nobody: str = ""
    """Why `processes` is empty, where it is."""
    gpu_used_ratio: float = 0.0
    """How full its GPU is, from 0 to 1: the fuller one comes first."""
    newcomers: Mapping[ProcessId, str] = field(default_factory=dict)
    """Those of `processes` that have not held their memory for as long as the rule asks for, and why that is so."""


class SelectedTarget(NamedTuple):
    """The process to act on."""

    target: Target
    passed_over: frozenset[ProcessId] = frozenset()
    """Those before it in the ranking that root's allow list does not name."""


def select_target(
    ladder: LadderRule, firing: AlertCandidates, attempts: Attempts, now_seconds: float, idle_for_seconds: float
) -> SelectedTarget | str:
    """Return whom the alert names, or the best of the ranking; where there is nobody, the reason.

    `now_seconds` is CLOCK_BOOTTIME.
    """
    if not firing.processes:
        return firing.nobody or "no process on the GPU can be acted on"
    if firing.alert.labels.get("pid"):
        return _named(ladder, firing, attempts)
    if ladder.victim is None:
        return "the alert names no process, and the ladder does not say whom to choose (`victim`)"
    ranking = rank(ladder.victim, firing.processes, now_seconds, idle_for_seconds)
    if not ranking:
        return _NOBODY[ladder.victim].format(idle_for=format_duration(idle_for_seconds))
    return _best(ladder, firing, attempts, ranking)


def _best(
    ladder: LadderRule, firing: AlertCandidates, attempts: Attempts, ranking: Sequence[Candidate]
) -> SelectedTarget | str:
    """Return the best of a ranking, but for those that root's allow list does not name."""
    passed_over: set[ProcessId] = set()
    for candidate in ranking:
        identity = candidate.target.id
        if newcomer := firing.newcomers.get(identity):
            return newcomer  # the next one is no answer: its memory is not what filled the GPU
        if attempts.is_due(firing.alert.fingerprint, identity, dry_run=ladder.dry_run):
            return SelectedTarget(candidate.target, frozenset(passed_over))
        if not attempts.was_refused_itself(firing.alert.fingerprint, identity, dry_run=ladder.dry_run):
            # something was done to it, or nobody may be acted on now: the next one is no answer
            return _tried(ladder, firing, attempts, candidate.target)
        passed_over.add(identity)
    return f"remedies.allow means none of those that victim: {ladder.victim} could choose"


def _named(ladder: LadderRule, firing: AlertCandidates, attempts: Attempts) -> SelectedTarget | str:
    """Return the process of the alert: not one that was given its number since the alert's expression became true."""
    alert, pid = firing.alert, firing.alert.labels["pid"]
    target = next((each for each in firing.processes if str(each.pid) == pid), None)
    if target is None:
        return f"pid {pid} is not among the processes of the GPU that can be acted on"
    if target.started_seconds > firing.since_seconds:
        return f"pid {pid} was given to the process that has it now after the expression had become true"
    if not attempts.is_meant(alert.fingerprint, target.id):
        return f"pid {pid} was another process when this alert named it first"
    if not attempts.is_due(alert.fingerprint, target.id, dry_run=ladder.dry_run):
        return _tried(ladder, firing, attempts, target)
    return SelectedTarget(target)


def _tried(ladder: LadderRule, firing: AlertCandidates, attempts: Attempts, target: Target) -> str:
    came_to, wait = attempts.last(firing.alert.fingerprint, target.id, dry_run=ladder.dry_run)
    return f"pid {target.pid} was tried: {came_to}; the next try is due in {format_duration(wait)}"


_Crowd = tuple[int, str]
"""What a crowd has in common: its user, and its name, which it chooses itself; "" for all of the user's."""


class FairOrder:
    """The order of alerts that want a remedy, by when something was last done for each. For one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is CLOCK_BOOTTIME."""
        self._now = now
        self._last: dict[str, float] = {}
        self._refused: dict[_Crowd, int] = {}
        """The last turn of each user, and of each program of a user, that came to nothing, by their order."""
        self._turns = 0

    def forget_ended(self, firing: Collection[str]) -> None:
        """Drop what belongs to alerts that have ended."""
        self._last = {alert: at for alert, at in self._last.items() if alert in firing}
        if not firing:
            self._refused.clear()

    def record(self, alert: str) -> None:
        """Record that something was done for this alert: those that still wait come before it."""
        self._last[alert] = self._now()

    def record_refusal(self, target: Target) -> None:
        """Record that a turn for this process came to nothing: other users come before this one, other programs too.

        A crowd that is refused one by one delays no other user by more than one turn, whatever its processes call
        themselves, and no other program of its user.
        """
        self._turns += 1
        for crowd in ((target.uid, target.name), (target.uid, "")):
            self._refused.pop(crowd, None)
            self._refused[crowd] = self._turns
        for oldest in list(self._refused)[:-_MOST_CROWDS]:
            del self._refused[oldest]

    def sort(self, firing: Iterable[AlertCandidates]) -> list[AlertCandidates]:
        """Sort by who has waited longest since their last turn, then by severity, the fuller GPU, the older alert.

        Of those that wait alike, the alerts about a user come last of whom one was refused, the last one behind, and of
        that user's those about a program that was.
        """
        return sorted(firing, key=self._key)

    def _key(self, one: AlertCandidates) -> tuple[float, tuple[int, int], int, float, float, str]:
        fingerprint = one.alert.fingerprint
        severity = one.alert.labels.get("severity", "none")
        rank = _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
        refused = self._refused_turns(one) if self._refused else (0, 0)
        return self._last.get(fingerprint, _NEVER), refused, rank, -one.gpu_used_ratio, one.since_seconds, fingerprint

    def _refused_turns(self, one: AlertCandidates) -> tuple[int, int]:
        pid = one.alert.labels.get("pid")
        target = next((each for each in one.processes if str(each.pid) == pid), None) if pid else None
        if target is None:
            return 0, 0
        return self._refused.get((target.uid, ""), 0), self._refused.get((target.uid, target.name), 0)


def excludes(other: Plan, plan: Plan, *, same_gpu: bool) -> bool:
    """Return whether a plan has to wait for the end of another one.

    A dry run does nothing, and stands only in the way of its like on the same GPU: the dry runs of rules tell what
    rules would do. What rules do to processes is done one at a time over the node: how much memory came back, and
    whether a limit is used up, is known when the first has ended. A person waits for no rule, whose run takes no
    further step.
    """
    if not same_gpu:
        return _is_rules_act(other) and _is_rules_act(plan)
    if plan.request.by_hand:
        return not other.dry_run and other.request.by_hand and _same_deed(other, plan)
    if other.dry_run:
        return plan.dry_run and not other.request.by_hand
    return not plan.dry_run


def _is_rules_act(plan: Plan) -> bool:
    return not plan.dry_run and not plan.request.by_hand and any(step.disrupts for step in plan.steps)


def _same_deed(other: Plan, plan: Plan) -> bool:
    """Return whether two people, or one twice, ask for the same: an end to one process, or a restart of one unit."""
    restart = all(any(step.kind is StepKind.RESTART_UNIT for step in each.steps) for each in (other, plan))
    return other.target.id == plan.target.id or (restart and other.target.unit == plan.target.unit)
