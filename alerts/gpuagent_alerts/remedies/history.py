"""What remedies have done lately, and are about to do: the material of the series and texts that tell of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpuagent.core.clock import Clock
from gpuagent.core.metrics.remedies import OutstandingStep, RemedyNote, RemedyTarget
from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.remedies.audit_rows import LIFT, RESULT, OutstandingProcess, was_taken
from gpuagent_alerts.remedies.outcome import RemedyEnding, RunOutcome, RunResult
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.target import Target

log = logging.getLogger(__name__)

SHOWN_SECONDS = 900.0
_MOST_ENTRIES = 64
_TOLD_SECONDS = 10.0
"""Two intervals of the rules: by then an alert tells of a run that has ended."""
QUIET = frozenset({RunResult.EXITED, RunResult.RESOLVED})
"""Where no step was taken, nothing had to be done: there is nothing to say."""
_ENDED_IT = frozenset({
    RunResult.RELEASED, RunResult.STILL_LISTED, RunResult.HELD_BY_OTHER, RunResult.UNACCOUNTED, RunResult.UNREADABLE,
})  # fmt: skip
"""After these the process has ended, or its memory is back."""


class _HistoryEntry(NamedTuple):
    note: RemedyNote
    alert: str
    """Fingerprint of the alert that it was about."""
    words: str
    clock_seconds: float
    """CLOCK_BOOTTIME: a wall clock that is set neither hides it nor keeps it for ever."""
    released_bytes: int | None = None
    seconds: float | None = None
    asked_by: str = ""
    """Person who asked for it; "" where a rule did."""


class RemedyHistory:
    """Runs that ended lately and acts that are announced: rules see them as series."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: list[_HistoryEntry] = []
        self._announced: dict[str, RemedyNote] = {}

    def add_run(self, run: LadderRun, outcome: RunOutcome, *, again: bool) -> None:
        """Add a run that has ended; `again` says that it ended as the last one did, which is reported once."""
        plan = run.plan
        self._announced.pop(plan.target.key.gpu_uuid, None)
        quiet = outcome.result is RunResult.EXITED or (outcome.result in QUIET and not run.has_taken_a_step)
        if again or quiet or (plan.request.by_hand and not outcome.acted):
            return  # whoever asked by hand has the answer: a message to everybody is for what was done to a process
        step = run.name_of_step
        took, wall = run.has_taken_a_step, self._clock.wall()
        note = RemedyNote(labels_of(plan.target), run.id, step, outcome.result, plan.dry_run, wall, took)
        words = describe_end(
            step, outcome.result, outcome.released_bytes, outcome.seconds, dry_run=plan.dry_run, detail=outcome.detail
        )
        freed, seconds = outcome.released_bytes, outcome.seconds
        self._add(_HistoryEntry(
            note, plan.request.alert, words, self._clock.now(), freed, seconds,
            plan.request.asked_by if plan.request.by_hand else "",
        ))  # fmt: skip

    async def announce(self, target: Target, reason: str, seconds: float) -> None:
        """Announce an act to the owner of a process: by the log and by the series."""
        log.warning("pid %d (%s) will be acted on in %.0f s: %s", target.pid, target.name, seconds, reason)
        at = self._clock.wall() + seconds
        self._announced[target.key.gpu_uuid] = RemedyNote(labels_of(target), "", "", "", False, at)

    def restore(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """Take over what the last agent did shortly before it ended: its message may not have been written."""
        now, wall = self._clock.now(), self._clock.wall()
        for run in runs:
            end = run.get("end")
            if end is None or not (run.get("fingerprint") or end.get("acted")):
                continue
            steps = [row for row in run["steps"] if row["kind"] != LIFT]  # which come after the end
            took = has_taken_a_step(steps)
            if end["result"] == RunResult.EXITED or (end["result"] in QUIET and not took):
                continue
            # The same words as before the restart, or it would be told once more. An interrupted run ended in silence.
            step = str(end.get("step") or (steps[-1]["step"] if steps else run["ladder"][0]))
            found = RemedyTarget(
                *(str(run.get(name, "")) for name in ("gpu", "gpu_uuid", "pid", "name", "user", "unit"))
            )
            dry_run = bool(run["dry_run"])
            note = RemedyNote(found, run["id"], step, end["result"], dry_run, end["time_seconds"], took)
            words = describe_end(
                step, end["result"], end.get("released_bytes"), end.get("seconds"),
                dry_run=dry_run, detail=str(end.get("detail", "")),
            )  # fmt: skip
            age = max(wall - end["time_seconds"], 0.0)  # another agent's clock: the wall's has to do
            freed, seconds = end.get("released_bytes"), end.get("seconds")
            alert = str(run.get("fingerprint", ""))
            asked_by = "" if alert else str(run.get("asked_by", ""))
            self._add(_HistoryEntry(note, alert, words, now - age, freed, seconds, asked_by))

    def recent(self) -> tuple[RemedyNote, ...]:
        """Return the runs that have ended lately."""
        now = self._clock.now()
        self._ended = [entry for entry in self._ended if now - entry.clock_seconds < SHOWN_SECONDS]
        return tuple(entry.note for entry in self._ended)

    def last_action_text(self, alert: str, pid: str, uuid: str) -> str:
        """Return what was done last about an alert, or to the process that it names, and to whom; "" if nothing was."""
        found = [entry for entry in reversed(self._ended) if _is_about(entry, alert, pid, uuid)]
        did = next((entry for entry in found if _acted(entry.note)), None)
        said = [_with_pid(entry) for entry in (did, *found[:1]) if entry is not None]
        return "; then ".join(dict.fromkeys(said))  # a refusal does not hide what was done before it

    def ending_of(self, pid: str, uuid: str) -> RemedyEnding | None:
        """Return what ended this process, or freed its memory on this GPU.

        None where no remedy did, and after a dry run.
        """
        now = self._clock.now()
        for entry in reversed(self._ended):
            note = entry.note
            if now - entry.clock_seconds >= SHOWN_SECONDS:
                continue  # the number may be another process's by now
            if pid and (note.about.pid, note.about.uuid) == (pid, uuid) and _acted(note):
                if note.result not in _ENDED_IT:
                    return None
                freed = entry.released_bytes if note.result == RunResult.RELEASED else None
                return RemedyEnding(note.step, freed, entry.seconds, note.about.unit, entry.asked_by)
        return None

    def just_acted_on(self) -> set[tuple[str, str]]:
        """Return UUID and pid of those on which a remedy has acted so lately that no alert may tell of it yet."""
        since = self._clock.now() - _TOLD_SECONDS
        acted = (one.note.about for one in self._ended if one.clock_seconds > since and _acted(one.note))
        return {(about.uuid, about.pid) for about in acted}

    def announced(self) -> tuple[RemedyNote, ...]:
        """Return the acts that are announced."""
        return tuple(self._announced.values())

    def _add(self, entry: _HistoryEntry) -> None:
        self._ended = [*self._ended, entry][-_MOST_ENTRIES:]


def _is_about(entry: _HistoryEntry, alert: str, pid: str, uuid: str) -> bool:
    on = entry.note.about
    return bool((alert and entry.alert == alert) or (pid and (on.pid, on.uuid) == (pid, uuid)))


def _acted(note: RemedyNote) -> bool:
    """Return whether a step was taken for real."""
    is_real = not note.dry_run and note.result != RunResult.REFUSED
    return is_real and (note.step_taken or note.result == RunResult.RELEASED)


def _with_pid(entry: _HistoryEntry) -> str:
    step = entry.note.step
    return entry.words.replace(f"{step}:", f"{step} of pid {entry.note.about.pid}:", 1)


def has_taken_a_step(steps: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether something was done in a run, or may have been, by the rows of its steps."""
    under_way: str | None = None
    for row in steps:
        step = str(row["step"])
        if row["kind"] != RESULT:
            if under_way is not None:
                return True  # nobody knows what came of it
            under_way = step
        elif was_taken(row):
            return True
        elif under_way == step:
            under_way = None
    return under_way is not None


def outstanding_step_of(one: OutstandingProcess) -> OutstandingStep:
    """Return a process that a step may have ended and that is still there, for the series."""
    names = (str(one.gpu_index), one.gpu_uuid, str(one.identity.pid), one.name, one.user, one.unit)
    return OutstandingStep(RemedyTarget(*names), one.step, one.wall_seconds)


def describe_end(
    step: str, result: str, released_bytes: int | None, seconds: float | None, *, dry_run: bool, detail: str = ""
) -> str:
    """Describe the end of a remedy in a few words, with the reason of a refusal."""
    freed = f", {format_bytes(released_bytes)} came back" if released_bytes is not None and released_bytes > 0 else ""
    took = f" in {format_duration(seconds)}" if freed and seconds is not None else ""
    if result == RunResult.DRY_RUN:
        return f"{step}: dry run, nothing was done"
    why = f": {detail}" if detail and result == RunResult.REFUSED else ""
    return f"{step}: {result.replace('_', ' ')}{' (dry run)' if dry_run else ''}{freed}{took}{why}"


def labels_of(target: Target) -> RemedyTarget:
    """Return the labels that name a target."""
    return RemedyTarget(
        str(target.gpu_index), target.key.gpu_uuid, str(target.pid), target.name, target.user, target.unit
    )
