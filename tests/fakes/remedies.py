"""Remedies and budgets with everything in use."""

from __future__ import annotations

from gpuagent.core.metrics.remedies import (
    BudgetUse,
    OutstandingStep,
    RemedyCount,
    RemedyFigures,
    RemedyNote,
    RemedyTarget,
)


def full_remedies() -> RemedyFigures:
    """Every family has a sample of it."""
    about = RemedyTarget("0", "GPU-0", "7", "python", "alice", "whisper.service")
    ended = RemedyNote(about, "r1", "SIGTERM", "released", dry_run=False, time_seconds=1.7e9)
    announced = RemedyNote(about, "", "", "", dry_run=False, time_seconds=1.7e9)
    return RemedyFigures(
        ladders=1,
        stopped=True,
        running=1,
        counts=(RemedyCount("released", dry_run=False, number=2), RemedyCount("refused", dry_run=True, number=1)),
        released_bytes=2**30,
        ended=(ended,),
        announced=(announced,),
        outstanding=(OutstandingStep(about, "SIGKILL", 1.7e9),),
        budgets=(BudgetUse("whisper", "0", "GPU-0", 2**30, 2**29),),
    )
