"""Rows of the audit log: what each kind holds, and what follows from them.

`runs` puts them together for people. `find_outstanding` finds steps that may end a process which is still there: its
memory may come back, so nobody else on its GPU is chosen. It goes by the log alone, so that it holds over a kill of the
agent, a restart, a reload and an upgrade.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_time
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.safeguards.limits import has_plain_digest
from gpuagent_alerts.store.tables import (
    Column,
    Table,
    array,
    byte_count,
    document,
    duration,
    finite,
    flag,
    identifier,
    integer,
    member,
    parsed,
    text,
    texts,
    unix_time,
)

BEGIN, INTENT, RESULT, END = "begin", "intent", "result", "end"
LIFT = "lift"
"""A memory limit of the run was taken off, however long after its end."""
STOP, RESET = "stop", "reset"
"""Acts of a person that belong to no run."""
MOST_ROW_BYTES: Final = 2**20
_SHORTER: Final = (100_000, 10_000, 1000, 100)
"""Characters of a text, and elements of a list, that are kept of a row that is too long."""
KINDS: Final = frozenset({BEGIN, INTENT, RESULT, END, LIFT, STOP, RESET})
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    BEGIN: ("pid", "start_ticks", "boot_id", "gpu", "gpu_uuid", "name", "dry_run", "ladder"),
    INTENT: ("disrupts", "step"),
    RESULT: ("step",),
    END: ("result",),
}
_OURS: Final = frozenset({"id", "time_seconds", "steps", "kind", "end"})
"""Fields that `runs` adds."""
_ENDING_STEPS = frozenset({"SIGTERM", "SIGKILL", "restart_unit"})
"""Steps that are in a row of an older version."""
_LAST_STEP = "SIGKILL"
"""After it nothing else helps: it is not sent twice."""
_NOT_PERMITTED = 1
"""EPERM."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One row of the audit log."""

    seq: int
    run: str
    kind: str
    boot_id: str
    clock_seconds: float
    wall_seconds: float
    data: Mapping[str, Any]


def _maybe(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


def _list_of(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: [check(one) for one in array(value)]


def _result(value: object) -> object:
    return RunResult(text(value))


def _process(value: object) -> object:
    found = document(value)
    return integer(member(found, "pid")), integer(member(found, "start_ticks")), text(member(found, "name"))


def _ladder(value: object) -> object:
    if not array(value):
        raise ValueError("a ladder without a step")
    return _list_of(text)(value)


_FIELDS: Final[Mapping[str, Callable[[object], object]]] = {
    **dict.fromkeys(
        (
            "alertname", "fingerprint", "expression", "victim", "asked_by", "scope", "boot_id", "user", "name",
            "command", "cgroup", "unit", "container_id", "container_name", "gpu_uuid", "program", "step", "note",
            "detail", "by", "cooldown_key",
        ),
        text,
    ),
    **dict.fromkeys(
        ("forced", "dry_run", "disrupts", "acted", "ok", "not_permitted", "may_end", "taken", "considered"), flag
    ),
    "value": _maybe(finite),
    "seconds": _maybe(duration),
    **dict.fromkeys(("used_bytes", "released_bytes"), _maybe(byte_count)),
    "errno": _maybe(identifier),
    **dict.fromkeys(("pid", "start_ticks", "gpu"), integer),
    **dict.fromkeys(("pids", "members"), _list_of(integer)),
    "uid": _maybe(identifier),
    **dict.fromkeys(("reasons", "gpu_uuids"), _list_of(text)),
    "processes": _list_of(_process),
    "ends_with_it": _list_of(text),
    "values": _list_of(finite),
    "waits_seconds": _list_of(duration),
    "ladder": _ladder,
    "labels": texts,
    "result": _result,
}  # fmt: skip
"""What a field is, where it is there: older versions wrote fewer."""


def _event(seq: int, run: str, kind: str, boot_id: str, clock: float, wall: float, data: str) -> AuditEvent:
    if kind not in KINDS:
        raise ValueError("an unknown kind of row")
    if not run and kind not in {STOP, RESET}:
        raise ValueError("a row of no run")
    found = document(parsed(data))
    for name in _NEEDED.get(kind, ()):
        if name not in found:
            raise ValueError(f"{name} is missing")
    if _OURS & found.keys():
        raise ValueError("a field that no row has")
    for name, value in found.items():
        if name in _FIELDS:
            try:
                _FIELDS[name](value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return AuditEvent(seq, run, kind, boot_id, clock, wall, found)


AUDIT: Final = Table(
    "remedy_audit",
    ("seq",),
    {
        "seq": Column(integer, 64),
        "run": Column(text),
        "kind": Column(text),
        "boot_id": Column(text),
        "clock": Column(duration, 64),
        "wall": Column(unix_time, 64),
        "data": Column(text, MOST_ROW_BYTES),
    },
    _event,
    append_only=True,
)


def row_text(data: Mapping[str, Any]) -> str:
    """Return the data of a row as it is written: what is too long to be read back is cut, the longest first."""
    text = json.dumps(data, default=str, ensure_ascii=True)
    for most in _SHORTER:
        if len(text) <= MOST_ROW_BYTES:
            break
        text = json.dumps(_cut(data, most), default=str, ensure_ascii=True)
    return text


def _cut(value: object, most: int) -> object:
    if isinstance(value, str):
        return value[:most]
    if isinstance(value, Mapping):
        return {name: _cut(one, most) for name, one in value.items()}
    return [_cut(one, most) for one in value[:most]] if isinstance(value, list | tuple) else value


def runs(events: Iterable[AuditEvent]) -> list[dict[str, Any]]:
    """Put rows together by run, oldest first, for `gpuagent remedies` and the API."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.kind == BEGIN:
            found[event.run] = {"id": event.run, "time_seconds": event.wall_seconds, **event.data, "steps": []}
            if has_plain_digest(str(event.data.get("cooldown_key", ""))):
                del found[event.run]["cooldown_key"]
        elif event.kind in {STOP, RESET}:
            continue
        elif (run := found.get(event.run)) is not None:
            if event.kind == END:
                run["end"] = {"time_seconds": event.wall_seconds, **event.data}
            else:
                run["steps"].append({"time_seconds": event.wall_seconds, "kind": event.kind, **event.data})
    return list(found.values())


@dataclass(frozen=True, slots=True)
class OutstandingProcess:
    """A process that a step may have ended, and the newest such step."""

    identity: ProcessId
    gpu_uuids: frozenset[str]
    gpu_uuid: str
    """UUID of the GPU that the run was about; `gpu_index` is its index."""
    gpu_index: int
    name: str
    user: str
    unit: str
    run: str
    step: str
    wall_seconds: float
    """Unix time at which the step was about to be taken."""
    is_certain: bool = False
    """Whether the step was certainly taken; if not, the agent ended before it could say so."""
    used_bytes: int = 0
    """What the process that the run was about held on that GPU before the step; 0 where that is unknown."""

    def leaves_alone(self, meant: Collection[ProcessId]) -> bool:
        """Return whether an act on those who are meant is none on somebody else, and no second SIGKILL."""
        return self.identity in meant and not (self.is_certain and self.step == _LAST_STEP)

    @property
    def reason(self) -> str:
        """Why nobody else on its GPU is chosen, in words."""
        name = f" ({self.name})" if self.name else ""
        return (
            f"pid {self.identity.pid}{name} on GPU {self.gpu_index} has not ended since {self.step} was begun for it at"
            f" {format_time(self.wall_seconds)}: its memory may still come back, so nobody else on that GPU is chosen"
            " before it has ended, or that is back"
        )


def find_outstanding(events: Iterable[AuditEvent], boot_id: str) -> list[OutstandingProcess]:
    """Return every process of this boot that a recorded step may have ended; whether it has, is for /proc to tell.

    `events` are rows of whole runs, oldest first.
    """
    rows = list(events)
    begins = {event.run: event for event in rows if event.kind == BEGIN}
    found: dict[ProcessId, OutstandingProcess] = {}
    for intent, result in _steps(rows):
        begin = begins.get(intent.run)
        if intent.boot_id != boot_id or not _may_end(intent.data) or begin is None or begin.data.get("dry_run"):
            continue
        if result is not None and not was_taken(result.data):
            continue
        for one in _processes(begin.data, intent, boot_id, is_certain=result is not None):
            before = found.get(one.identity)
            found[one.identity] = one if before is None or one.wall_seconds >= before.wall_seconds else before
    return list(found.values())


def _steps(events: Iterable[AuditEvent]) -> list[tuple[AuditEvent, AuditEvent | None]]:
    """Return each intent with its result, None where there is none. A ladder may have steps of the same name."""
    found: dict[int, tuple[AuditEvent, AuditEvent | None]] = {}
    under_way: dict[str, AuditEvent] = {}
    for event in events:
        if event.kind == INTENT:
            under_way[event.run] = event
            found[event.seq] = event, None
        elif event.kind == RESULT:
            intent = under_way.pop(event.run, None)
            if intent is not None and intent.data["step"] == event.data["step"]:  # else its intent cannot be read
                found[intent.seq] = intent, event
    return list(found.values())


def was_taken(result: Mapping[str, Any]) -> bool:
    """Return whether a step may have done something, by the row of its result."""
    if "taken" in result:
        return bool(result["taken"])
    return result.get("errno") != _NOT_PERMITTED and not str(result.get("detail", "")).startswith("not done: ")


def outstanding_in_the_way(
    outstanding: Iterable[OutstandingProcess],
    meant: Collection[ProcessId],
    gpu_uuids: frozenset[str],
    is_alive: Callable[[ProcessId], bool],
) -> str:
    """Return why those who are meant may not be chosen on these GPUs; "" where nothing is waited for.

    Who was asked to end may be asked again.
    """
    for one in outstanding:
        if one.gpu_uuids & gpu_uuids and not one.leaves_alone(meant) and is_alive(one.identity):
            return one.reason
    return ""


def _may_end(intent: Mapping[str, Any]) -> bool:
    return bool(intent.get("may_end", intent.get("step") in _ENDING_STEPS)) and not intent.get("dry_run")


def _processes(
    begin: Mapping[str, Any], intent: AuditEvent, boot_id: str, *, is_certain: bool
) -> Iterable[OutstandingProcess]:
    chosen = {"pid": begin["pid"], "start_ticks": begin["start_ticks"], "name": begin["name"]}
    gpus = frozenset(str(uuid) for uuid in intent.data.get("gpu_uuids", [begin["gpu_uuid"]]))
    for each in intent.data.get("processes", [chosen]):
        is_chosen = each["pid"] == begin["pid"]
        yield OutstandingProcess(
            ProcessId(boot_id, each["pid"], each["start_ticks"]), gpus, begin["gpu_uuid"], begin["gpu"],
            str(each.get("name", "")), str(begin.get("user", "")) if is_chosen else "",
            str(begin.get("unit", "")) if is_chosen else "",
            intent.run, str(intent.data["step"]), intent.wall_seconds, is_certain,
            int(intent.data.get("used_bytes") or 0),
        )  # fmt: skip
