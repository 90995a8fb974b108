"""What remedies have done lately, and are about to do: the material of the series that tell of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.catalogue.remedies import About, RemedyNote
from gpuagent.clock import Clock
from gpuagent_alerts.remedies.ladder import Plan, Run
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.target import Target

SHOWN_SECONDS = 900.0
_KEPT = 64
log = logging.getLogger(__name__)
QUIET = frozenset({Result.EXITED})
"""Nothing was done, and nothing had to be: no message about it."""


class Notes:
    """Kept for a while: rules see them as series, and receivers are told by rules."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: list[RemedyNote] = []
        self._announced: dict[str, RemedyNote] = {}

    def ended(self, plan: Plan, run: Run, outcome: Outcome) -> None:
        """A run has ended."""
        self._announced.pop(plan.target.key.gpu_uuid, None)
        if outcome.result in QUIET:
            return
        step = str(run.step) if run.step is not None else ""
        now = self._clock.wall()
        self._add(RemedyNote(about(plan.target), run.id, step, outcome.result, plan.dry_run, now))

    async def announce(self, target: Target, reason: str, seconds: float) -> None:
        """A process is warned."""
        log.warning("pid %d (%s) will be acted on in %.0f s: %s", target.pid, target.name, seconds, reason)
        at = self._clock.wall() + seconds
        self._announced[target.key.gpu_uuid] = RemedyNote(about(target), "", "", "", False, at)

    def take_over(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """What the last agent did shortly before it ended: its message may not have been written."""
        for run in runs:
            end = run.get("end")
            if end is None or end["result"] in QUIET:
                continue
            step = run["steps"][-1]["step"] if run["steps"] else ""
            found = About(*(str(run.get(name, "")) for name in ("gpu", "gpu_uuid", "pid", "name", "user", "unit")))
            self._add(RemedyNote(found, run["id"], step, end["result"], bool(run["dry_run"]), end["time_seconds"]))

    def recent(self) -> tuple[RemedyNote, ...]:
        """Those that are still to be seen."""
        now = self._clock.wall()
        self._ended = [note for note in self._ended if now - note.time_seconds < SHOWN_SECONDS]
        return tuple(self._ended)

    def announced(self) -> tuple[RemedyNote, ...]:
        """Those that will act."""
        return tuple(self._announced.values())

    def _add(self, note: RemedyNote) -> None:
        self._ended = [*self._ended, note][-_KEPT:]


def about(target: Target) -> About:
    """Labels that name a target."""
    return About(str(target.gpu_index), target.key.gpu_uuid, str(target.pid), target.name, target.user, target.unit)
