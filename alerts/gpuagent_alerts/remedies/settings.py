"""What the configuration says about remedies, as the remedies take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits
from gpuagent_alerts.remedies.safeguards.policy import Policy
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from gpuagent_alerts.remedies.steps import RemedyStep


@dataclass(frozen=True, slots=True)
class LadderRule:
    """One ladder of the configuration."""

    matches: Callable[[Mapping[str, str]], bool]
    steps: tuple[RemedyStep, ...]
    dry_run: bool
    victim: VictimPolicy | None = None
    """Whom to choose where the alert names none; None: nobody."""
    scope: str = "process"


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How much memory on one GPU the processes may use that match all keys that are given."""

    label: str
    """The `budget` label of its series, which no other budget has."""
    memory_bytes: int
    unit: str | None = None
    container: str | None = None
    user: str | None = None
    app: str | None = None


@dataclass(frozen=True, slots=True)
class RemedyRules:
    """Who may be acted on, and how often."""

    policy: Policy
    limits: RemedyLimits


@dataclass(frozen=True, slots=True)
class RemedySettings:
    """Everything that a reload of the configuration replaces."""

    ladders: tuple[LadderRule, ...]
    """Ladders in the order of the file: the first that matches is taken."""
    rules: RemedyRules
    proof_seconds: float
    """How long to watch for the memory to come back."""
    dry_run: bool
    """Whether ladders only rehearse by default."""
    budgets: tuple[MemoryBudget, ...]
    poll_interval_seconds: float
    longest_gap_seconds: float
    """How far apart two readings may be that are taken for one observation."""
    list_processes: Callable[[Snapshot | None, float], dict[str, Any]]
    """Returns the document of `GET /api/v1/processes/identified` for a snapshot, at a time by CLOCK_BOOTTIME."""
    off: str = ""
    """Why nothing may be done, in words for people; "" where nothing forbids it."""
