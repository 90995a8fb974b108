"""Steps that may end a process which is still there: its memory may come back, so nobody else on its GPU is chosen.

By the record alone, so that it holds over a kill of the agent, a restart, a reload and an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import format_time
from gpuagent_alerts.remedies.record import BEGIN, INTENT, RESULT, Event

_ENDING_STEPS = frozenset({"SIGTERM", "SIGKILL", "restart_unit"})
"""Of a row that an older version has written."""
_LAST_STEP = "SIGKILL"
"""After it nothing else helps: it is not sent twice."""
_NOT_PERMITTED = 1
"""EPERM."""


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A process that a step may have ended, and the newest such step."""

    identity: ProcessId
    gpu_uuids: frozenset[str]
    gpu_uuid: str
    """Of the GPU that the run was about, as is the index."""
    gpu_index: int
    name: str
    user: str
    unit: str
    run: str
    step: str
    wall_seconds: float
    """Unix time at which the step was about to be taken."""
    is_certain: bool = False
    """It was taken for certain; otherwise the agent ended before it could say so."""

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
            " before it has ended"
        )


def find_outstanding(events: Iterable[Event], boot_id: str) -> list[Outstanding]:
    """Return every process of this boot that a recorded step may have ended; whether it has, is for /proc to tell.

    `events` are rows of whole runs, oldest first.
    """
    begins: dict[str, Event] = {}
    due: dict[tuple[str, str], Event] = {}
    certain: set[tuple[str, str]] = set()
    for event in events:
        if event.kind == BEGIN:
            begins[event.run] = event
        elif event.kind == INTENT and event.boot_id == boot_id and _may_end(event.data):
            due[event.run, str(event.data["step"])] = event
        elif event.kind == RESULT and not was_taken(event.data):
            due.pop((event.run, str(event.data["step"])), None)
        elif event.kind == RESULT:
            certain.add((event.run, str(event.data["step"])))
    found: dict[ProcessId, Outstanding] = {}
    for key, intent in due.items():
        begin = begins.get(intent.run)
        if begin is None or begin.data.get("dry_run"):
            continue
        for one in _processes(begin.data, intent, boot_id, is_certain=key in certain):
            before = found.get(one.identity)
            found[one.identity] = one if before is None or one.wall_seconds >= before.wall_seconds else before
    return list(found.values())


def was_taken(result: Mapping[str, Any]) -> bool:
    """Return whether a step may have done something, by the row of its result."""
    if "taken" in result:
        return bool(result["taken"])
    return result.get("errno") != _NOT_PERMITTED and not str(result.get("detail", "")).startswith("not done: ")


def in_the_way(
    outstanding: Iterable[Outstanding],
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


def _processes(begin: Mapping[str, Any], intent: Event, boot_id: str, *, is_certain: bool) -> Iterable[Outstanding]:
    chosen = {"pid": begin["pid"], "start_ticks": begin["start_ticks"], "name": begin["name"]}
    gpus = frozenset(str(uuid) for uuid in intent.data.get("gpu_uuids", [begin["gpu_uuid"]]))
    for each in intent.data.get("processes", [chosen]):
        is_chosen = each["pid"] == begin["pid"]
        yield Outstanding(
            ProcessId(boot_id, each["pid"], each["start_ticks"]), gpus, begin["gpu_uuid"], begin["gpu"],
            str(each.get("name", "")), str(begin.get("user", "")) if is_chosen else "",
            str(begin.get("unit", "")) if is_chosen else "",
            intent.run, str(intent.data["step"]), intent.wall_seconds, is_certain,
        )  # fmt: skip
