"""Take the census: three snapshots of all tensors, each in a child of its own, and what outlived the window.

A forked child would lose the values of threading.local in other threads: after a fork Python ends all threads but one,
and their thread-local values with them. What the app's process refers to at the time of the fork stays, so it must find
the threading.local objects. A sweep over its heap would stop it for some 15 ms; so a child looks for them, and tells by
which names they are reached.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame import fork
from gpuagent_client.blame.fork import ChildAnswer, ThreadFrame, run_in_child
from gpuagent_client.blame.heap import Heap, ThreadValues, index_heap, walk
from gpuagent_client.blame.lines import Recorder, allocated_bytes, lines_verdict
from gpuagent_client.blame.paths import Trail, instance_dict, trail
from gpuagent_client.blame.report import report_holders
from gpuagent_client.blame.tensors import encode, exact_types, live_tensors, loaded_torch, size_of
from gpuagent_client.blame.wire import Context, WireGroup, census_request, verdict
from gpuagent_client.errors import Refused

MAX_FOUND = 64
WALK_SECONDS = 3.0
Names = list[list[str]]


def find(objects: list[object], heap: Heap) -> bytes:
    """Return, in a child, the names of all threading.local objects, as JSON."""
    kinds = exact_types(threading.local)
    found = [item for item in objects if type(item) in kinds][:MAX_FOUND]
    paths = walk(found, heap, WALK_SECONDS) if found else []
    named = [_names(trail(path.objects, heap, show_keys=False)) for path in paths if path.rooted]
    return json.dumps([names for names in named if names]).encode()


def _names(way: Trail) -> list[str]:
    """Return the names on the path; empty where it leads through dict keys, list elements or local variables."""
    if any(step.kind not in {"global", "attribute"} for step in way.steps if step.text):
        return []
    root = way.objects[0]
    names = [step.name for step in way.steps if step.text]
    if issubclass(type(root), type):
        assert isinstance(root, type)  # noqa: S101 - for the type checker
        return [root.__module__, *root.__qualname__.split("."), *names]
    return [way.root, *names]


def values_of(names: Names) -> list[ThreadValues]:
    """Return, in the app, the values of these, thread by thread. Reads namespaces, and calls nothing of the app."""
    values = []
    kinds = exact_types(threading.local)
    for one in names:
        owner = _resolve(one)
        if type(owner) in kinds:
            values += [ThreadValues(owner, attributes) for attributes in _dicts_in(owner)]
    return values


def _resolve(names: Sequence[str]) -> object:
    item: object = sys.modules.get(names[0])
    for name in names[1:]:
        item = (instance_dict(item) or {}).get(name)
    return item


def _dicts_in(owner: object) -> list[dict[str, object]]:
    """Return the dicts of a threading.local: CPython keeps a dict of dicts in each, one for each thread."""
    inner = [item for item in gc.get_referents(owner) if type(item) is dict]
    return [attributes for threads in inner for attributes in list(threads.values()) if type(attributes) is dict]


CHILD_SECONDS = 20.0
# A snapshot takes a fraction of a second in most apps; this is left for three of them at the end of the deadline.
SPARE_SECONDS = 2.0
ENOUGH_REQUESTS = 100
MAX_OTHERS = 3
SnapshotTask = Callable[[list[ThreadFrame], list[ThreadValues]], bytes]


def census(args: Mapping[str, object], deadline_seconds: float, context: Context) -> dict[str, object]:
    """Return who holds the tensors that outlive the window.

    Raises:
        Refused: the app cannot be looked into now.
    """
    request = census_request(args, deadline_seconds, SPARE_SECONDS)
    torch = loaded_torch()
    if torch is None:
        raise Refused("the app has not loaded torch")
    run = _CensusRun(torch, context)
    before = allocated_bytes(torch)
    run.find_thread_locals()
    recorder = Recorder(torch, context) if request.lines else None
    try:
        moments = [Moment.now(context)]
        first = run.table()
        _wait(context, request.gaps[0])
        moments.append(Moment.now(context))
        second = run.table()
        if recorder is not None:
            recorder.take_snapshot()
        _wait(context, request.gaps[1])
        moments.append(Moment.now(context))
        if recorder is not None:
            recorder.take_snapshot()
    finally:
        if recorder is not None:
            recorder.end()
    pace = pace_of(moments)
    answer = run.perform(
        lambda frames, values: report_holders(
            torch, frames, values, (first, second), pace,
            show_keys=request.show_keys, top=request.top, with_addresses=recorder is not None,
        )
    )  # fmt: skip
    found = json.loads(answer.data)
    lines, line_notes = ([], []) if recorder is None else recorder.results(found["groups"])
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
        "stall_seconds": run.worst_stall_seconds,
        "window_seconds": request.window_seconds,
    }


class _CensusRun:
    """Fork one child after the other, and note how long the app stood still."""

    def __init__(self, torch: ModuleType, context: Context) -> None:
        self._torch = torch
        self._context = context
        self._size: fork.Size | None = None
        self._thread_locals: Names = []
        self.worst_stall_seconds = 0.0

    def find_thread_locals(self) -> None:
        """Find, in a child of its own, the thread-local values that the other children would lose."""
        self._thread_locals = json.loads(self.perform(_thread_locals).data)

    def table(self) -> bytes:
        """Return the table of a snapshot, as bytes for the third one."""
        data = self.perform(self._encoded).data
        self._size = size_of(data)
        return data

    def perform(self, work: SnapshotTask) -> ChildAnswer:
        """Run a task in a forked child, unless now is a bad time for it."""
        if self._context.is_capturing():
            raise Refused("a CUDA graph is being captured")
        fork.refuse_without_memory(self._size, fork.available_bytes())
        values = values_of(self._thread_locals)  # not longer than the fork: they are the app's
        try:
            answer = run_in_child(
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
    return find(objects, index_heap(objects, frames, values))


def _wait(context: Context, seconds: float) -> None:
    if context.wait(seconds):
        raise Refused("the app is stopping")


class Moment(NamedTuple):
    """How much the app had done by a moment."""

    requests: int | None
    cpu_seconds: float

    @classmethod
    def now(cls, context: Context) -> Moment:
        """Return the figures of now, without those of child processes."""
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


def _notes(moments: list[Moment], groups: list[WireGroup]) -> list[str]:
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
