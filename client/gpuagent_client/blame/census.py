"""The census: three looks at all tensors, each in a child of its own, and what outlived the window."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame import fork
from gpuagent_client.blame.answer import Group, verdict
from gpuagent_client.blame.fork import Answer, ThreadFrame, in_child
from gpuagent_client.blame.heap import ThreadValues, survey
from gpuagent_client.blame.lines import Recorder
from gpuagent_client.blame.lines import verdict as lines_verdict
from gpuagent_client.blame.recording import allocated_bytes
from gpuagent_client.blame.report import third_look
from gpuagent_client.blame.request import Context, Refused, census_request
from gpuagent_client.blame.table import encode, size_of
from gpuagent_client.blame.tensors import live_tensors, loaded_torch
from gpuagent_client.blame.thread_locals import Names, find, values_of

CHILD_SECONDS = 20.0
# A look takes a fraction of a second in most apps; this is left for three of them at the end of the deadline.
SPARE_SECONDS = 2.0
ENOUGH_REQUESTS = 100
MAX_OTHERS = 3
Look = Callable[[list[ThreadFrame], list[ThreadValues]], bytes]


def census(args: Mapping[str, object], deadline_seconds: float, context: Context) -> dict[str, object]:
    """Return who holds the tensors that outlive the window.

    Raises:
        Refused: the app cannot be looked into now.
    """
    request = census_request(args, deadline_seconds, SPARE_SECONDS)
    torch = loaded_torch()
    if torch is None:
        raise Refused("the app has not loaded torch")
    looks = _Looks(torch, context)
    before = allocated_bytes(torch)
    looks.find_thread_locals()
    recorder = Recorder(torch, context) if request.lines else None
    try:
        moments = [Moment.now(context)]
        first = looks.table()
        _wait(context, request.gaps[0])
        moments.append(Moment.now(context))
        second = looks.table()
        if recorder is not None:
            recorder.look()
        _wait(context, request.gaps[1])
        moments.append(Moment.now(context))
        if recorder is not None:
            recorder.look()
    finally:
        if recorder is not None:
            recorder.end()
    pace = pace_of(moments)
    answer = looks.take(
        lambda frames, values: third_look(
            torch, frames, values, (first, second), pace,
            show_keys=request.show_keys, top=request.top, with_addresses=recorder is not None,
        )
    )  # fmt: skip
    found = json.loads(answer.data)
    lines, line_notes = ([], []) if recorder is None else recorder.told(found["groups"])
    growing = [group for group in found["groups"] if group["growing"]]
    others = [group for group in found["groups"] if not group["growing"]][:MAX_OTHERS]
    grown = {device: now - before.get(device, 0) for device, now in allocated_bytes(torch).items()}
    notes = [*found["notes"], *_notes(moments, others), *line_notes]
    notes += [f"allocated on {device}: {change:+d} bytes in the window" for device, change in sorted(grown.items())]
    words = verdict(growing, request.window_seconds, grown)
    if lines and not growing:  # nobody of Python's holds it, and yet there is something to say
        words += f"; {lines_verdict(lines, request.gaps[0])}"
    return {
        "verdict": words,
        "groups": growing,
        "lines": lines,
        "joined": recorder is not None,
        "notes": notes,
        "stall_seconds": looks.worst_stall_seconds,
        "window_seconds": request.window_seconds,
    }


class _Looks:
    """Forks one child after the other, and remembers how long the app stood still."""

    def __init__(self, torch: ModuleType, context: Context) -> None:
        self._torch = torch
        self._context = context
        self._size: fork.Size | None = None
        self._thread_locals: Names = []
        self.worst_stall_seconds = 0.0

    def find_thread_locals(self) -> None:
        """Look for thread-locals before the first census, for what the others would lose."""
        self._thread_locals = json.loads(self.take(_thread_locals).data)

    def table(self) -> bytes:
        """Return who is there."""
        data = self.take(self._encoded).data
        self._size = size_of(data)
        return data

    def take(self, work: Look) -> Answer:
        """One look, if this is a moment for it."""
        if self._context.is_capturing():
            raise Refused("a CUDA graph is being captured")
        fork.refuse_without_memory(self._size, fork.available_bytes())
        values = values_of(self._thread_locals)  # not longer than the fork: they are the app's
        try:
            answer = in_child(
                lambda frames: work(frames, values), CHILD_SECONDS, own_threads=(self._context.thread_id,)
            )
        finally:
            values.clear()
        self.worst_stall_seconds = max(self.worst_stall_seconds, answer.stall_seconds)
        return answer

    def _encoded(self, frames: list[ThreadFrame], values: list[ThreadValues]) -> bytes:  # noqa: ARG002 - for the third
        objects = gc.get_objects()
        return encode(live_tensors(self._torch, objects), len(objects))


def _thread_locals(frames: list[ThreadFrame], values: list[ThreadValues]) -> bytes:
    objects = gc.get_objects()
    return find(objects, survey(objects, frames, values))


def _wait(context: Context, seconds: float) -> None:
    if context.wait(seconds):
        raise Refused("the app is stopping")


class Moment(NamedTuple):
    """How much the app had done by then."""

    requests: int | None
    cpu_seconds: float

    @classmethod
    def now(cls, context: Context) -> Moment:
        """Children are not counted in, ours included."""
        return cls(context.requests_served(), time.process_time())


def pace_of(moments: list[Moment]) -> float:
    """Return how much more happened in the second gap than in the first.

    By requests where they are counted, else by the CPU time of the app: seconds would take a quiet minute before a busy
    one for a cache that turns over.
    """
    first, second, third = moments
    if first.requests is not None and second.requests is not None and third.requests is not None:
        early, late = float(second.requests - first.requests), float(third.requests - second.requests)
    else:
        early, late = second.cpu_seconds - first.cpu_seconds, third.cpu_seconds - second.cpu_seconds
    return late / early if early > 0 else 1.0


def _notes(moments: list[Moment], groups: list[Group]) -> list[str]:
    notes = []
    _, second, third = moments
    if second.requests is not None and third.requests is not None:
        count = third.requests - second.requests
        if count < ENOUGH_REQUESTS:
            notes.append(
                f"only {count} requests in the longer gap: a cache with more entries than that looks like a leak"
            )
    for group in groups:
        name = group["container"] or group["path"]
        notes.append(
            f"not blamed: `{name}` has {group['growth_count']} new tensors, made once or mostly taken out again"
        )
    return notes
