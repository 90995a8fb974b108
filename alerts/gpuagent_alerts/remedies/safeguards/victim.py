"""Whom to choose where an alert names a GPU and no process: a ranking, with its reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_bytes, format_duration, format_rate
from gpuagent_alerts.remedies.target import Target

IDLE_FOR_SECONDS = 300.0
"""Default of `remedies.idle_for`."""


class VictimPolicy(StrEnum):
    """How the ranking is made."""

    LEAKING = "leaking"
    """Leaking processes only, the steepest first."""
    LARGEST = "largest"
    NEWEST = "newest"
    """The last to come is the one that did not fit."""
    IDLE = "idle"
    """Those that have been observed at 0 % for long enough, the largest first."""


class VictimChoice(NamedTuple):
    """Whom an alert that names no process would choose on one reading, by the configuration in force."""

    ranking: tuple[ProcessId, ...] = ()
    """Best first; empty where nobody may be chosen."""
    unranked_bytes: float = 0.0
    """Memory of the GPU that no ranked process is known to hold; infinite where the driver does not tell how much."""
    unranked: bool = False
    """The driver lists numbers there that are no ranked process: dead, hidden, or of an unknown start."""
    newcomers: Mapping[ProcessId, str] = MappingProxyType({})
    """Those of the ranking that have not held their memory for as long as the rule asks for, and why that is so."""

    @property
    def _held(self) -> str:
        return "unknown" if math.isinf(self.unranked_bytes) else format_bytes(self.unranked_bytes)

    def objection(self, policy: VictimPolicy, target: Target, passed_over: Collection[ProcessId]) -> str:
        """Return why the target is not, or not for certain, the one to choose; "" if it is.

        `passed_over` are those before it that root's allow list does not name.
        """
        first = next((one for one in self.ranking if one not in passed_over), None)
        if first != target.id:
            return f"it is not the one that victim: {policy} chooses any more"
        # Also of those before it: they fill the GPU, and were not there when the rule began to be true.
        up_to_it = self.ranking[: self.ranking.index(target.id) + 1]
        if newcomer := next((self.newcomers[one] for one in up_to_it if one in self.newcomers), ""):
            return newcomer
        if policy is VictimPolicy.LARGEST and self.unranked_bytes >= target.used_bytes:
            return f"whether it is the largest cannot be told: memory of no known process on its GPU: {self._held}"
        if policy is VictimPolicy.NEWEST and self.unranked:
            return "whether it is the newest cannot be told: the driver lists a process of unknown start"
        if policy is VictimPolicy.NEWEST and self.unranked_bytes >= target.used_bytes:
            return f"whether it is the newest cannot be told: memory of no known process on its GPU: {self._held}"
        return ""


class Candidate(NamedTuple):
    """One place in the ranking."""

    target: Target
    reason: str


def rank(
    policy: VictimPolicy,
    targets: Iterable[Target],
    now_seconds: float,
    idle_for_seconds: float = IDLE_FOR_SECONDS,
) -> list[Candidate]:
    """Return the ranking, best first, without those that the policy says nothing of. Equal ones go by pid.

    `now_seconds` is CLOCK_BOOTTIME.
    """
    chosen = sorted((each for each in targets if _eligible(policy, each, idle_for_seconds)), key=_key(policy))
    return [Candidate(each, _reason(policy, each, now_seconds)) for each in chosen]


def _eligible(policy: VictimPolicy, target: Target, idle_for_seconds: float) -> bool:
    if policy is VictimPolicy.LEAKING:
        return target.leaking and target.driver_confirms
    if policy is VictimPolicy.IDLE:
        # Not known is not idle: a process that the driver has not sampled may be the one that works.
        return target.idle_seconds is not None and target.idle_seconds >= idle_for_seconds
    return True


def _key(policy: VictimPolicy) -> Callable[[Target], tuple[float, int]]:
    if policy is VictimPolicy.LEAKING:
        return lambda target: (-(target.slope_bytes_per_second or 0.0), target.pid)
    if policy is VictimPolicy.NEWEST:
        return lambda target: (-target.started_seconds, -target.pid)  # of one tick the higher number came later
    return lambda target: (-target.used_bytes, target.pid)


def _reason(policy: VictimPolicy, target: Target, now_seconds: float) -> str:
    held = format_bytes(target.used_bytes)
    if policy is VictimPolicy.LEAKING:
        return f"leaks {format_rate(target.slope_bytes_per_second or 0.0)}, holds {held}"
    if policy is VictimPolicy.NEWEST:
        return f"started {format_duration(max(now_seconds - target.started_seconds, 0.0))} ago, holds {held}"
    if policy is VictimPolicy.IDLE:
        return f"idle for {format_duration(target.idle_seconds or 0.0)}, holds {held}"
    return f"holds {held}, the most"
