"""The record of everything that was done to a process, and why: written before it is done.

Append-only, which a trigger in the database sees to. A run is a row `begin`, then `intent` and `result` for each step,
then `end`. An intent without a result means that the agent ended in between: the next start says so, and repeats
nothing.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.clock import Clock
from gpuagent_alerts.remedies.limits import Past
from gpuagent_alerts.remedies.outcome import Outcome, Result
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure

log = logging.getLogger(__name__)

BEGIN, INTENT, RESULT, END, RESET = "begin", "intent", "result", "end", "reset"
_SHOWN = 1000
_ACTIONS = 500
"""Twice what a configuration can permit in a day, as dry runs are among them; refusals are not, however many."""
_COLUMNS = "SELECT seq, run, kind, boot_id, clock, wall, data FROM remedy_audit"
_DISRUPTS = '%"disrupts": true%'
"""In an intent, as `json.dumps` writes it: what comes from outside has its quotation marks escaped."""


class NotRecorded(Exception):
    """What is to be done could not be written to the disk: so it is not done."""


@dataclass(frozen=True, slots=True)
class Event:
    """One row."""

    seq: int
    run: str
    kind: str
    boot_id: str
    clock_seconds: float
    wall_seconds: float
    data: Mapping[str, Any]


class Audit:
    """Appends and reads. Every method asks the store: for a thread."""

    def __init__(self, store: Store, clock: Clock, boot_id: str) -> None:
        self._store = store
        self._clock = clock
        self._boot_id = boot_id

    def begin(self, data: Mapping[str, Any]) -> str:
        """Begin a run, and return its id. Raises NotRecorded."""
        run = secrets.token_hex(6)
        self.write(run, BEGIN, data)
        return run

    def write(self, run: str, kind: str, data: Mapping[str, Any]) -> None:
        """Append a row, durably. Raises NotRecorded: also when the state is only kept in memory."""
        text = json.dumps(data, default=str, ensure_ascii=True)
        try:
            self._store.execute(
                "INSERT INTO remedy_audit (run, kind, boot_id, clock, wall, data) VALUES (?, ?, ?, ?, ?, ?)",
                (run, kind, self._boot_id, self._clock.now(), self._clock.wall(), text),
            )
        except StoreFailure as error:
            raise NotRecorded(str(error)) from None
        finally:
            log.info("remedy %s: %s %s", run, kind, text, extra={"fields": {"REMEDY": run, "REMEDY_EVENT": kind}})
        problem = self._store.problem
        if problem is not None and problem.in_memory:
            raise NotRecorded(f"the audit log is not on the disk: {problem}")

    def close_open(self) -> list[str]:
        """Close the runs that a dead agent left open; returns their ids."""
        rows = self._store.execute(
            "SELECT run FROM remedy_audit WHERE kind = ? AND run NOT IN (SELECT run FROM remedy_audit WHERE kind = ?)",
            (BEGIN, END),
        )
        left = [str(run) for (run,) in rows]
        for run in left:
            try:
                self.write(run, END, {"result": Result.INTERRUPTED, "acted": self._acted(run)})
            except NotRecorded as error:
                log.warning("run %s could not be closed: %s", run, error)
        return left

    def events(self, run: str | None = None) -> list[Event]:
        """The newest rows, oldest first."""
        return _read(self._store.execute(
            f"{_COLUMNS} WHERE ? IS NULL OR run = ? ORDER BY seq DESC LIMIT ?", (run, run, _SHOWN)
        ))  # fmt: skip

    def reset(self, by: str) -> None:
        """A person has looked: the breaker is closed again. Raises NotRecorded."""
        self.write("", RESET, {"by": by})

    def past(self, *, dry_run: bool, since_reset: bool = False) -> list[Past]:
        """Actions of one kind, newest first, with their ages by a clock that nobody can set."""
        after = 0
        if since_reset:
            ((after,),) = self._store.execute("SELECT ifnull(max(seq), 0) FROM remedy_audit WHERE kind = ?", (RESET,))
        # An action counts as the newest of its rows: while it goes on, it has not ended long ago.
        events = _read(self._store.execute(
            f"{_COLUMNS} WHERE run IN (SELECT run FROM remedy_audit WHERE kind = ? AND data LIKE ? AND seq > ?"  # noqa: S608  constants
            " GROUP BY run ORDER BY max(seq) DESC LIMIT ?) ORDER BY seq DESC",
            (INTENT, _DISRUPTS, after, _ACTIONS),
        ))  # fmt: skip
        newest = {event.run: event for event in events}
        ends = {event.run: event for event in events if event.kind == END}
        return [
            self._past(event, newest[event.run], ends.get(event.run))
            for event in reversed(events)
            if event.kind == BEGIN and bool(event.data.get("dry_run")) == dry_run
        ]

    def _past(self, begin: Event, newest: Event, end: Event | None) -> Past:
        data = begin.data
        return Past(
            age_seconds=self._age(newest),
            gpu_uuid=str(data.get("gpu_uuid", "")),
            unit=str(data.get("unit", "")),
            cooldown_key=str(data.get("cooldown_key", "")),
            container_id=str(data.get("container_id", "")),
            helped=_helped(end),
            failed_rights=bool(end and end.data.get("not_permitted")),
        )

    def _age(self, event: Event) -> float:
        """By CLOCK_BOOTTIME within a boot. Over a boot by the wall clock, never below zero: too young is safe."""
        if event.boot_id == self._boot_id:
            return max(self._clock.now() - event.clock_seconds, 0.0)
        return max(self._clock.wall() - event.wall_seconds, 0.0)

    def _acted(self, run: str) -> bool:
        return any(event.kind == INTENT and event.data.get("disrupts") for event in self.events(run))


def _read(rows: Iterable[tuple[Any, ...]]) -> list[Event]:
    """Rows that come newest first, oldest first."""
    events = [
        Event(int(seq), str(run), str(kind), str(boot), float(clock), float(wall), json.loads(str(data)))
        for seq, run, kind, boot, clock, wall, data in rows
    ]
    return events[::-1]


def _helped(end: Event | None) -> bool | None:
    if end is None:
        return None
    outcome = Outcome(Result(end.data.get("result", Result.INTERRUPTED)), acted=bool(end.data.get("acted")))
    return outcome.helped


def runs(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Rows put together by run, oldest first, for `gpuagent remedies` and the API."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.kind == BEGIN:
            found[event.run] = {"id": event.run, "time_seconds": event.wall_seconds, **event.data, "steps": []}
        elif event.kind == RESET:
            continue
        elif (run := found.get(event.run)) is not None:
            if event.kind == END:
                run["end"] = {"time_seconds": event.wall_seconds, **event.data}
            else:
                run["steps"].append({"time_seconds": event.wall_seconds, "kind": event.kind, **event.data})
    return list(found.values())
