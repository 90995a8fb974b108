"""What the configuration says about remedies, as the remedies take it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.remedies.candidates import MemoryBudget
from gpuagent_alerts.remedies.plan import RemedyRules
from gpuagent_alerts.remedies.selection import LadderRule


@dataclass(frozen=True, slots=True)
class RemedySettings:
    """All that a reload replaces."""

    ladders: tuple[LadderRule, ...]
    """In the order of the file: the first that matches is taken."""
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
