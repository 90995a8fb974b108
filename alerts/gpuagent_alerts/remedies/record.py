"""Rows of the record of remedies: what each kind holds, and how they are put together for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuagent_alerts.remedies.limits import has_plain_digest
from gpuagent_alerts.remedies.outcome import Result
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
STOP, RESET = "stop", "reset"
"""By a person: of no run."""
MOST_ROW_BYTES: Final = 2**20
_SHORTER: Final = (100_000, 10_000, 1000, 100)
"""Characters of a text, and elements of a list, that are kept of a row that is too long."""
KINDS: Final = frozenset({BEGIN, INTENT, RESULT, END, STOP, RESET})


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


def _maybe(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


def _list_of(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: [check(one) for one in array(value)]


def _result(value: object) -> object:
    return Result(text(value))


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
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    BEGIN: ("pid", "start_ticks", "boot_id", "gpu", "gpu_uuid", "name", "dry_run", "ladder"),
    INTENT: ("disrupts", "step"),
    RESULT: ("step",),
    END: ("result",),
}
_OURS: Final = frozenset({"id", "time_seconds", "steps", "kind", "end"})
"""Fields that `runs` adds."""


def _event(seq: int, run: str, kind: str, boot_id: str, clock: float, wall: float, data: str) -> Event:
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
    return Event(seq, run, kind, boot_id, clock, wall, found)


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


def runs(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Rows put together by run, oldest first, for `gpuagent remedies` and the API."""
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
