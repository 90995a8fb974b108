"""What remedies have done lately, and are about to do: the material of the series and texts that tell of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpuagent.core.clock import Clock
from gpuagent.core.metrics.remedies import OutstandingStep, RemedyNote, RemedyTarget
from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.remedies.audit import RESULT
from gpuagent_alerts.remedies.ending import RemedyEnding
from gpuagent_alerts.remedies.ladder import Run
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.remedies.outstanding import Outstanding, was_taken
from gpuagent_alerts.remedies.target import Target

SHOWN_SECONDS = 900.0
_KEPT = 64
log = logging.getLogger(__name__)
QUIET = frozenset({Result.EXITED, Result.RESOLVED})
"""Where no step was taken, nothing had to be done: there is nothing to say."""


class _Kept(NamedTuple):
    note: RemedyNote
    alert: str
    """Fingerprint of the alert that it was about."""
    words: str
    clock_seconds: float
    """CLOCK_BOOTTIME: a wall clock that is set neither hides it nor keeps it for ever."""
    released_bytes: int | None = None
    seconds: float | None = None


class Notes:
    """Kept for a while: rules see them as series, and receivers are told by rules."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: list[_Kept] = []
        self._announced: dict[str, RemedyNote] = {}

    def ended(self, run: Run, outcome: Outcome, *, again: bool) -> None:
        """Announce the end of a run. One that ends as the last one did (`again`) is announced once."""
        plan = run.plan
        self._announced.pop(plan.target.key.gpu_uuid, None)
        quiet = outcome.result is Result.EXITED or (outcome.result in QUIET and not run.has_taken_a_step)
        if again or quiet or (plan.order.by_hand and not outcome.acted):
            return  # whoever asked by hand has the answer: a message to everybody is for what was done to a process
        step = run.name_of_step
        took, wall = run.has_taken_a_step, self._clock.wall()
        note = RemedyNote(about(plan.target), run.id, step, outcome.result, plan.dry_run, wall, took)
        words = said(
            step, outcome.result, outcome.released_bytes, outcome.seconds, dry_run=plan.dry_run, detail=outcome.detail
        )
        freed, seconds = outcome.released_bytes, outcome.seconds
        self._add(_Kept(note, plan.order.alert, words, self._clock.now(), freed, seconds))

    async def announce(self, target: Target, reason: str, seconds: float) -> None:
        """Announce that a process is warned."""
        log.warning("pid %d (%s) will be acted on in %.0f s: %s", target.pid, target.name, seconds, reason)
        at = self._clock.wall() + seconds
        self._announced[target.key.gpu_uuid] = RemedyNote(about(target), "", "", "", False, at)

    def take_over(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """Announce what the last agent did shortly before it ended: its message may not have been written."""
        now, wall = self._clock.now(), self._clock.wall()
        for run in runs:
            end = run.get("end")
            if end is None or not (run.get("fingerprint") or end.get("acted")):
                continue
            took = has_taken_a_step(run["steps"])
            if end["result"] == Result.EXITED or (end["result"] in QUIET and not took):
                continue
            # The same words as before the restart, or it would be told once more. An interrupted run ended in silence.
            step = str(end.get("step") or (run["steps"][-1]["step"] if run["steps"] else run["ladder"][0]))
            found = RemedyTarget(
                *(str(run.get(name, "")) for name in ("gpu", "gpu_uuid", "pid", "name", "user", "unit"))
            )
            dry_run = bool(run["dry_run"])
            note = RemedyNote(found, run["id"], step, end["result"], dry_run, end["time_seconds"], took)
            words = said(
                step, end["result"], end.get("released_bytes"), end.get("seconds"),
                dry_run=dry_run, detail=str(end.get("detail", "")),
            )  # fmt: skip
            age = max(wall - end["time_seconds"], 0.0)  # another agent's clock: the wall's has to do
            freed, seconds = end.get("released_bytes"), end.get("seconds")
            self._add(_Kept(note, str(run.get("fingerprint", "")), words, now - age, freed, seconds))

    def recent(self) -> tuple[RemedyNote, ...]:
        """Return the runs that have ended lately."""
        now = self._clock.now()
        self._ended = [kept for kept in self._ended if now - kept.clock_seconds < SHOWN_SECONDS]
        return tuple(kept.note for kept in self._ended)

    def words_on(self, alert: str, pid: str, uuid: str) -> str:
        """Return what was done last about an alert, or to the process that it names; "" if nothing was."""
        for kept in reversed(self._ended):
            on = kept.note.about
            if (alert and kept.alert == alert) or (pid and (on.pid, on.uuid) == (pid, uuid)):
                return kept.words
        return ""

    def ending_of(self, pid: str, uuid: str) -> RemedyEnding | None:
        """Return what freed the memory of this process on this GPU; None where no remedy did, and after a dry run."""
        now = self._clock.now()
        for kept in reversed(self._ended):
            note = kept.note
            if now - kept.clock_seconds >= SHOWN_SECONDS:
                continue  # the number may be another process's by now
            if pid and (note.about.pid, note.about.uuid) == (pid, uuid):
                if note.dry_run or note.result != Result.RELEASED:
                    return None
                return RemedyEnding(note.step, kept.released_bytes, kept.seconds, note.about.unit)
        return None

    def announced(self) -> tuple[RemedyNote, ...]:
        """Those that will act."""
        return tuple(self._announced.values())

    def _add(self, kept: _Kept) -> None:
        self._ended = [*self._ended, kept][-_KEPT:]


def has_taken_a_step(steps: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether something was done in a run, or may have been, by the rows of its steps."""
    due: set[str] = set()
    for row in steps:
        if row["kind"] == RESULT and not was_taken(row):
            due.discard(str(row["step"]))
        elif row["kind"] == RESULT:
            return True
        else:
            due.add(str(row["step"]))
    return bool(due)


def waited_for(one: Outstanding) -> OutstandingStep:
    """Return a process that a step may have ended and that is still there, for the series."""
    names = (str(one.gpu_index), one.gpu_uuid, str(one.identity.pid), one.name, one.user, one.unit)
    return OutstandingStep(RemedyTarget(*names), one.step, one.wall_seconds)


def said(
    step: str, result: str, released_bytes: int | None, seconds: float | None, *, dry_run: bool, detail: str = ""
) -> str:
    """Describe the end of a remedy in a few words, with the reason of a refusal."""
    freed = f", {format_bytes(released_bytes)} came back" if released_bytes is not None and released_bytes > 0 else ""
    took = f" in {format_duration(seconds)}" if freed and seconds is not None else ""
    if result == Result.DRY_RUN:
        return f"{step}: dry run, nothing was done"
    why = f": {detail}" if detail and result == Result.REFUSED else ""
    return f"{step}: {result.replace('_', ' ')}{' (dry run)' if dry_run else ''}{freed}{took}{why}"


def about(target: Target) -> RemedyTarget:
    """Labels that name a target."""
    return RemedyTarget(
        str(target.gpu_index), target.key.gpu_uuid, str(target.pid), target.name, target.user, target.unit
    )
