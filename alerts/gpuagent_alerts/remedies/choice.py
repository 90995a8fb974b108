"""Whom a ladder is for when an alert fires: the process that it names, the best of a ranking, or nobody, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_duration
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.remedies.attempts import Attempts
from gpuagent_alerts.remedies.steps import Step
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.victim import Candidate, VictimPolicy, rank


@dataclass(frozen=True, slots=True)
class LadderRule:
    """One ladder of the configuration."""

    matches: Callable[[Mapping[str, str]], bool]
    steps: tuple[Step, ...]
    dry_run: bool
    victim: VictimPolicy | None = None
    """Whom to choose where the alert names none; None: nobody."""
    scope: str = "process"


@dataclass(frozen=True, slots=True)
class Firing:
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
    """How long a process must have been at rest, where the rule is true because it does not work."""
    objection: str = ""
    """Why it is no reason to act now; "" if it is one."""
    nobody: str = ""
    """Why `processes` is empty, where it is."""
    gpu_used_ratio: float = 0.0
    """How full its GPU is, from 0 to 1: the fuller one comes first."""
    newcomers: Mapping[ProcessId, str] = field(default_factory=dict)
    """Those of `processes` that have not held their memory for as long as the rule asks for, and why that is so."""


class Chosen(NamedTuple):
    """Whom to act on."""

    target: Target
    passed_over: frozenset[ProcessId] = frozenset()
    """Those before it in the ranking that root's allow list does not name."""


def choose(
    ladder: LadderRule, firing: Firing, attempts: Attempts, now_seconds: float, idle_for_seconds: float
) -> Chosen | str:
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


def _best(ladder: LadderRule, firing: Firing, attempts: Attempts, ranking: Sequence[Candidate]) -> Chosen | str:
    """Return the best of a ranking, except those that root's allow list does not name."""
    passed_over: set[ProcessId] = set()
    for candidate in ranking:
        identity = candidate.target.id
        if newcomer := firing.newcomers.get(identity):
            return newcomer  # the next one is no answer: its memory is not what filled the GPU
        if attempts.is_due(firing.alert.fingerprint, identity, dry_run=ladder.dry_run):
            return Chosen(candidate.target, frozenset(passed_over))
        if not attempts.was_refused_itself(firing.alert.fingerprint, identity, dry_run=ladder.dry_run):
            # something was done to it, or nobody may be acted on now: the next one is no answer
            return _tried(ladder, firing, attempts, candidate.target)
        passed_over.add(identity)
    return f"remedies.allow means none of those that victim: {ladder.victim} could choose"


_NOBODY = {
    VictimPolicy.LEAKING: "victim: leaking finds nobody: no process there leaks by the driver's own figures",
    VictimPolicy.LARGEST: "victim: largest finds nobody",
    VictimPolicy.NEWEST: "victim: newest finds nobody",
    VictimPolicy.IDLE: (
        "victim: idle finds nobody: no process there has been observed at 0 % in every reading of the last {idle_for}"
    ),
}


def _named(ladder: LadderRule, firing: Firing, attempts: Attempts) -> Chosen | str:
    """Return the process of the alert: not one that was given its pid since the alert's expression became true."""
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
    return Chosen(target)


def _tried(ladder: LadderRule, firing: Firing, attempts: Attempts, target: Target) -> str:
    came_to, wait = attempts.last(firing.alert.fingerprint, target.id, dry_run=ladder.dry_run)
    return f"pid {target.pid} was tried: {came_to}; the next try is due in {format_duration(wait)}"
