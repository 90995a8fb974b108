"""The audit log of everything that was done to a process, and why: written before it is done.

Append-only, which a trigger in the database sees to. A run is a row `begin`, then `intent` and `result` for each step,
then `end`. An intent without a result means that the agent ended in between: the next start says so, and repeats
nothing.

A row that cannot be read may be of an action, so it counts as one: on any unit and program, as useless, and as late as
the next row that can be read. `objections` tells what the log has against a step of a rule.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from gpuagent.core.clock import Clock
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.audit_rows import (
    AUDIT,
    BEGIN,
    END,
    INTENT,
    KINDS,
    LIFT,
    RESET,
    RESULT,
    STOP,
    AuditEvent,
    OutstandingProcess,
    find_outstanding,
    outstanding_in_the_way,
    row_text,
)
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.safeguards.limits import (
    PastAction,
    RemedyLimits,
    breaker_reason,
    owner_key,
    owner_refusal,
    refusals,
)
from gpuagent_alerts.remedies.safeguards.refusals import TemporaryRefusal
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.store.cached_query import CachedQuery
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.tables import DamagedRow

log = logging.getLogger(__name__)

_SHOWN = 1000
_ACTIONS = 500
"""Twice what a configuration can permit in a day, as dry runs are among them; refusals are not, however many."""
_FOLLOWING = 100
"""Rows after a damaged one among which one that can be read is looked for."""
_DISRUPTS = '%"disrupts": true%'
"""In an intent, as `row_text` writes it: what comes from outside has its quotation marks escaped."""
_CONSIDERED = '%"considered": true%'
"""In a result: the step was forbidden at the very last look. A run that only considered one uses up no turn."""
_NO_ACTION = KINDS - {INTENT}
"""A row of such a kind that cannot be read is no action by itself."""
_AFTERWARDS = frozenset({RESULT, END, LIFT})
"""They tell of what has happened: they are written late rather than never."""


class NotRecorded(Exception):
    """What is to be done could not be written to the disk: so it is not done."""


class RecordedStop(NamedTuple):
    """A person has stopped remedies."""

    by: str
    """User and uid."""
    wall_seconds: float | None
    """Unix time; None where the record cannot tell."""


class Audit:
    """The audit log in the store. Every method may block: call it in a thread."""

    def __init__(self, store: Store, clock: Clock, boot_id: str) -> None:
        self._store = store
        self._clock = clock
        self._boot_id = boot_id
        self._damaged: tuple[int, Collection[DamagedRow]] | None = None
        """Rows that cannot be read; None before the first look. Rows are never changed, and ours can be read.

        With how often the store had moved from one database to another by then: a file may be opened late.
        """
        self._began = clock.now()
        self._begun: set[str] = set()
        self._outstanding = CachedQuery(store, self._find_outstanding)

    def begin(self, data: Mapping[str, Any]) -> str:
        """Begin a run, and return its id. Raises NotRecorded."""
        run = secrets.token_hex(6)
        self._begun.add(run)
        self.write(run, BEGIN, data)
        return run

    def write(self, run: str, kind: str, data: Mapping[str, Any]) -> None:
        """Append a row, durably. Raises NotRecorded: also when the state is only kept in memory.

        A `result` or `end` that could not be written is kept, and written as soon as the store can be written again.
        Any other row is then in no copy of the record: what was not done for want of it must not stand there later.
        """
        text = row_text(data)
        values = (run, kind, self._boot_id, self._clock.now(), self._clock.wall(), text)

        def insert() -> None:
            self._store.execute(
                "INSERT INTO remedy_audit (run, kind, boot_id, clock, wall, data) VALUES (?, ?, ?, ?, ?, ?)", values
            )

        try:
            if not self._store.pay():
                raise StoreFailure("earlier rows of the record wait to be written")
            if kind in _AFTERWARDS:
                self._store.insist(insert)  # in memory, if the file is of no use: from there it goes back to the file
                with suppress(StoreFailure):  # without it the next start calls the run interrupted
                    self._store.checkpoint()
            else:
                self._store.checkpoint()  # where that fails, there is no row either
                with self._store.transaction():  # one look and one write: the store cannot go to memory in between
                    problem = self._store.problem
                    if problem is not None and problem.in_memory:
                        raise StoreFailure(f"the audit log is not on the disk: {problem}")
                    insert()
                self._store.checkpoint()  # a write-ahead log that is lost or cut short forgets no action
                return
        except StoreFailure as error:
            if kind in _AFTERWARDS:
                self._store.owe(insert)
            raise NotRecorded(str(error)) from None
        finally:
            log.info("remedy %s: %s %s", run, kind, text, extra={"fields": {"REMEDY": run, "REMEDY_EVENT": kind}})
        problem = self._store.problem
        if problem is not None and problem.in_memory:
            raise NotRecorded(f"the audit log is not on the disk: {problem}")

    def close_open(self) -> list[str]:
        """Close the runs that a dead agent left open, which are those that were not begun here; return their ids."""
        rows = self._store.execute("SELECT seq, run, kind FROM remedy_audit WHERE kind IN (?, ?)", (BEGIN, END))
        unreadable = {_seq(row) for row in self._look_for_damage()}
        ended = {run for seq, run, kind in rows if kind == END and seq not in unreadable}.union(self._begun)
        left = [run for _, run, kind in rows if kind == BEGIN and isinstance(run, str) and run not in ended]
        for run in left:
            try:
                self.write(run, END, {"result": RunResult.INTERRUPTED, "acted": self._acted(run)})
            except NotRecorded as error:
                log.warning("run %s could not be closed: %s", run, error)
        return left

    def events(self, run: str | None = None) -> list[AuditEvent]:
        """Return the newest rows, oldest first."""
        self._look_for_damage()
        return self._store.read(AUDIT, "WHERE ? IS NULL OR run = ? ORDER BY seq DESC LIMIT ?", (run, run, _SHOWN))[::-1]

    def stop(self, by: str) -> None:
        """Record that a person has stopped remedies: until the next reset, over restarts. Raises NotRecorded."""
        self.write("", STOP, {"by": by})

    def last_stop(self) -> RecordedStop | None:
        """Return the stop that no reset has followed; None where there is none."""
        ((seq,),) = self._store.execute("SELECT ifnull(max(seq), 0) FROM remedy_audit WHERE kind = ?", (STOP,))
        if seq <= self._last_reset():
            return None
        self._look_for_damage()
        for event in self._store.read(AUDIT, "WHERE seq = ?", (seq,)):
            return RecordedStop(str(event.data.get("by", "?")), event.wall_seconds)
        return RecordedStop("?", None)

    def reset(self, by: str) -> None:
        """Record that a person has looked: the breaker is closed again. Raises NotRecorded."""
        self.write("", RESET, {"by": by})
        try:
            self._store.forget_loss()
        except StoreFailure as error:
            raise NotRecorded(str(error)) from None

    def past(self, *, dry_run: bool, since_reset: bool = False) -> list[PastAction]:
        """Return actions of one kind, newest first, with their ages by a clock that nobody can set.

        What cannot be read of the record is among them, as it may be of either kind.
        """
        after = self._last_reset() if since_reset else 0
        damaged = [row for row in self._look_for_damage() if _seq(row) > after]
        # An action counts as the newest of its rows: while it goes on, it has not ended long ago.
        events = self._store.read(
            AUDIT,
            "WHERE run IN (SELECT run FROM remedy_audit WHERE seq > ?"
            " AND ((kind = ? AND data LIKE ?) OR (kind = ? AND data LIKE ?))"
            " GROUP BY run HAVING sum(kind = ?) > sum(kind = ?) ORDER BY max(seq) DESC LIMIT ?) ORDER BY seq DESC",
            (after, INTENT, _DISRUPTS, RESULT, _CONSIDERED, INTENT, RESULT, _ACTIONS),
        )
        newest: dict[str, AuditEvent] = {}
        for event in events:
            if event.kind != LIFT:  # what is undone is no action
                newest.setdefault(event.run, event)
        begins = {event.run: event for event in events if event.kind == BEGIN}
        ends = {event.run: event for event in events if event.kind == END}
        lost_ends = {row.cells["run"] for row in damaged if row.cells["kind"] == END}
        found = [
            (begins.get(run, last).seq, self._past(begins.get(run), last, ends.get(run), useless=run in lost_ends))
            for run, last in newest.items()
            if run not in begins or bool(begins[run].data.get("dry_run")) == dry_run
        ]
        # An action whose rows are all damaged, or whose intents are.
        suspects = [row for row in damaged if row.cells["kind"] not in _NO_ACTION]
        unseen = [row for row in suspects if row.cells["run"] not in newest]
        found += [(_seq(row), PastAction(self._age_of_damaged(row), "", unknown=True, helped=False)) for row in unseen]
        marks = [PastAction(0.0, "", record_lost=True)] if self._store.has_lost_rows else []
        if since_reset and self.last_stop() is not None:
            marks.append(PastAction(0.0, "", stopped=True))
        return [*marks, *(past for _, past in sorted(found, key=itemgetter(0), reverse=True))]

    def outstanding(self) -> list[OutstandingProcess]:
        """Return every process that a step of this boot may have ended, be it alive or not. Raises StoreFailure."""
        return list(self._outstanding.get())

    def _find_outstanding(self) -> list[OutstandingProcess]:
        self._look_for_damage()
        events = self._store.read(
            AUDIT,
            "WHERE run IN (SELECT run FROM remedy_audit WHERE kind = ? AND boot_id = ? AND data LIKE ?) ORDER BY seq",
            (INTENT, self._boot_id, _DISRUPTS),
        )
        return find_outstanding(events, self._boot_id)

    def _last_reset(self) -> int:
        ((seq,),) = self._store.execute("SELECT ifnull(max(seq), 0) FROM remedy_audit WHERE kind = ?", (RESET,))
        return int(seq)

    def _past(
        self, begin: AuditEvent | None, newest: AuditEvent, end: AuditEvent | None, *, useless: bool
    ) -> PastAction:
        if begin is None:
            return PastAction(self._age(newest), "", unknown=True, helped=False if useless else _helped(end))
        data = begin.data
        return PastAction(
            age_seconds=self._age(newest),
            gpu_uuid=str(data.get("gpu_uuid", "")),
            unit=str(data.get("unit", "")),
            cooldown_key=str(data.get("cooldown_key", "")),
            owner=str(data.get("owner", "")),
            container_id=str(data.get("container_id", "")),
            helped=False if useless else _helped(end),
            failed_rights=bool(end and end.data.get("not_permitted")),
        )

    def _look_for_damage(self) -> Collection[DamagedRow]:
        moves, _ = self._store.changes
        if self._damaged is None or self._damaged[0] != moves:
            self._damaged = moves, self._store.check(AUDIT)
        return self._damaged[1]

    def _age_of_damaged(self, row: DamagedRow) -> float:
        """Return at most the age of the next row that can be read: its own time may be what is damaged."""
        following = self._store.read(AUDIT, "WHERE seq > ? ORDER BY seq LIMIT ?", (_seq(row), _FOLLOWING))
        return min((self._age(event) for event in following), default=max(self._clock.now() - self._began, 0.0))

    def _age(self, event: AuditEvent) -> float:
        """Return an age by CLOCK_BOOTTIME within a boot, else by the wall clock, never below 0: too young is safe."""
        if event.boot_id == self._boot_id:
            return max(self._clock.now() - event.clock_seconds, 0.0)
        return max(self._clock.wall() - event.wall_seconds, 0.0)

    def _acted(self, run: str) -> bool:
        return any(event.kind == INTENT and event.data.get("disrupts") for event in self.events(run))


def _seq(row: DamagedRow) -> int:
    seq = row.cells["seq"]
    return seq if isinstance(seq, int) else 0


def _helped(end: AuditEvent | None) -> bool | None:
    if end is None:
        return None
    outcome = RunOutcome(RunResult(end.data.get("result", RunResult.INTERRUPTED)), acted=bool(end.data.get("acted")))
    return outcome.helped


def objections(
    plan: Plan,
    step: RemedyStep,
    limits: RemedyLimits,
    audit: Audit,
    cooldown_key: str,
    meant: Collection[ProcessId],
    gpu_uuids: frozenset[str],
    is_alive: Callable[[ProcessId], bool],
    *,
    acted: bool,
) -> list[str]:
    """Return them all. Asks the store and /proc: for a thread. Raises StoreFailure.

    Limits bound what happens while nobody looks. A person who has confirmed the process looks: their act is counted
    against the rules that come after it, and is bounded by none of them itself. A run is one action, however many steps
    it takes.
    """
    if plan.request.by_hand or not step.disrupts:
        return []
    waits_for = outstanding_in_the_way(audit.outstanding(), meant, gpu_uuids, is_alive)
    found: list[str] = [TemporaryRefusal(waits_for)] if waits_for else []
    if acted:
        return found
    since_reset = audit.past(dry_run=False, since_reset=True)
    if why := breaker_reason(limits, since_reset):
        return [f"remedies are stopped: {why}; after a look, `gpuagent remedies reset` lets them go on"]
    if why := owner_refusal(limits, since_reset, owner_key(plan.target)):
        return [*found, why]
    past = audit.past(dry_run=plan.dry_run)
    unit = plan.target.unit
    return [*found, *refusals(limits, past, unit=unit, cooldown_key=cooldown_key, dry_run=plan.dry_run)]
