"""Whom to choose where an alert names a GPU and no process: a ranking, with its reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from gpuagent.units import format_bytes, format_duration
from gpuagent_alerts.remedies.target import Target


class VictimPolicy(StrEnum):
    """By what the ranking goes."""

    LEAKING = "leaking"
    """Leaking processes only, the steepest first."""
    LARGEST = "largest"
    NEWEST = "newest"
    """The last to come is the one that did not fit."""
    IDLE = "idle"
    """Those whose own utilisation is known to be nil, the largest first."""


class Candidate(NamedTuple):
    """One place in the ranking."""

    target: Target
    reason: str


_IDLE_RATIO = 0.01


def rank(policy: VictimPolicy, targets: Iterable[Target], now_seconds: float) -> list[Candidate]:
    """Best first; whom the policy cannot speak about is not in it. Equal ones go by pid: it is always the same.

    `now_seconds` is CLOCK_BOOTTIME.
    """
    chosen = sorted((each for each in targets if _eligible(policy, each)), key=_key(policy))
    return [Candidate(each, _reason(policy, each, now_seconds)) for each in chosen]


def _eligible(policy: VictimPolicy, target: Target) -> bool:
    if policy is VictimPolicy.LEAKING:
        return target.leaking
    if policy is VictimPolicy.IDLE:
        # Not known is not idle, and the device's utilisation is not the process's.
        return target.sm_ratio is not None and target.sm_ratio < _IDLE_RATIO
    return True


def _key(policy: VictimPolicy) -> Callable[[Target], tuple[float, int]]:
    if policy is VictimPolicy.LEAKING:
        return lambda target: (-(target.slope_bytes_per_second or 0.0), target.pid)
    if policy is VictimPolicy.NEWEST:
        return lambda target: (-target.started_seconds, target.pid)
    return lambda target: (-target.used_bytes, target.pid)


def _reason(policy: VictimPolicy, target: Target, now_seconds: float) -> str:
    held = format_bytes(target.used_bytes)
    if policy is VictimPolicy.LEAKING:
        return f"leaks {format_bytes((target.slope_bytes_per_second or 0.0) * 3600)}/h, holds {held}"
    if policy is VictimPolicy.NEWEST:
        return f"started {format_duration(max(now_seconds - target.started_seconds, 0.0))} ago, holds {held}"
    if policy is VictimPolicy.IDLE:
        return f"does nothing, holds {held}"
    return f"holds {held}, the most"
