"""Take the census: two looks at all tensors, each in a child of its own, and a watch on what grew between them.

A forked child would lose the values of threading.local in other threads: after a fork Python ends all threads but one,
and their thread-local values with them. What the app's process refers to at the time of the fork stays, so it must find
the threading.local objects. A sweep over its heap would stop it for some 15 ms; so the first child looks for them, and
tells by which names they are reached. For contexts, see contexts.py.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from gpuagent_client.blame import fork
from gpuagent_client.blame.contexts import ContextReferences, find_contexts, uses_context_variables
from gpuagent_client.blame.fork import ChildAnswer, ChildWork, ThreadFrame, run_in_child
from gpuagent_client.blame.heap import Carried, ThreadValues
from gpuagent_client.blame.judgment import Series, Watch, judge
from gpuagent_client.blame.lines import Recorder, allocated_bytes, grown_bytes, lines_verdict, pinned_bytes
from gpuagent_client.blame.look import Look, take_look
from gpuagent_client.blame.marking import collector_frees_cycles, from_last_class
from gpuagent_client.blame.memory_in_use import UsageSeries
from gpuagent_client.blame.paths import Trail, instance_dict, trail
from gpuagent_client.blame.pause import refuse_long_pause
from gpuagent_client.blame.report import SecondLookInput, report_holders
from gpuagent_client.blame.tensors import exact_types, loaded_torch
from gpuagent_client.blame.watch import NO_CONTEXTS
from gpuagent_client.blame.wire import CensusRequest, Context, census_request, verdict
from gpuagent_client.errors import Refused

MAX_FOUND = 64
Names = list[list[str]]


def find(look: Look) -> Names:
    """Return, in a child, the names of all threading.local objects."""
    kinds = exact_types(threading.local)
    order, places = look.marking.order, look.marking.places
    found = [place for item, place in ((item, places[id(item)]) for item in order if type(item) in kinds)][:MAX_FOUND]
    ways = (from_last_class(order, look.marking.path(place), look.heap) for place in found)
    named = [_names(trail(tuple(order[one] for one in way), look.heap, show_keys=False)) for way in ways]
    return [names for names in named if names]


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


def values_of(names: Names) -> list[Carried]:
    """Return, in the app, the values of these, thread by thread. Reads namespaces, and calls nothing of the app."""
    values: list[Carried] = []
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


# By the clock. A look takes a second of CPU time in most apps: on a host with a load of 15 that is ten by the clock.
CHILD_SECONDS = 60.0
# This is left for the looks at the end of the deadline, at least.
SPARE_SECONDS = 2.0
ENOUGH_REQUESTS = 100
SAMPLES = 8
LEAST_WATCHED_PART = 0.15  # of the window: as long as the containers are watched at least, if the deadline allows
ANSWER_SECONDS = 1.0
SnapshotTask = Callable[[list[ThreadFrame], list[Carried]], ChildWork]


def census(args: Mapping[str, object], deadline_seconds: float, context: Context) -> dict[str, object]:
    """Return who holds the tensors that have come in the window and goes on growing.

    Raises:
        Refused: the app cannot be looked into now.
    """
    request = census_request(args, deadline_seconds, SPARE_SECONDS)
    ends = time.monotonic() + deadline_seconds - ANSWER_SECONDS
    torch = loaded_torch()
    if torch is None:
        raise Refused("the app has not loaded torch")
    run = _CensusRun(torch, context, request, deadline_seconds)
    before = allocated_bytes(torch)
    moments = [Moment.now(context)]
    collections = _full_collections()
    then = run.first_look()
    recorder = Recorder(torch, context) if request.lines else None
    try:
        _wait(context, request.gaps[0])
        if recorder is not None:
            recorder.take_snapshot()
        moments.append(Moment.now(context))
        usage = UsageSeries(torch)
        found = run.second_look(then, with_addresses=recorder is not None)
        left = request.gaps[1] - (time.monotonic() - moments[1].seconds)
        left = min(max(left, request.window_seconds * LEAST_WATCHED_PART), ends - time.monotonic())
        series = _watch(Watch(found["groups"], run.contexts), context, left, usage) if request.gaps[1] > 0 else {}
        moments.append(Moment.now(context))
        if recorder is not None:
            recorder.take_snapshot()
    finally:
        if recorder is not None:
            recorder.end()
    # Asked here: in a child the collector is off. The app may also collect by itself, with the collector off.
    found["freed_by_gc"] = collector_frees_cycles() or _full_collections() > collections
    part = usage.part_of(moments[1].seconds, moments[2].seconds)
    judged = judge(found, series, pace_of(moments), usage=usage.values if series else None, usage_part=part)
    lines, line_notes = ([], []) if recorder is None else recorder.results(judged.growing)
    grown, said = grown_bytes(torch, before, allocated_bytes(torch))
    notes = [*found["notes"], *run.notes, *_request_notes(moments), *judged.notes, *line_notes]
    notes += [said] if said else []
    notes += [f"allocated on {device}: {change:+d} bytes in the window" for device, change in sorted(grown.items())]
    growing = judged.growing[: request.top]
    words = verdict(growing, request.gaps[0], grown)
    if lines and not growing:  # nobody of Python's holds it, and yet there is something to say
        words += f"; {lines_verdict(lines, request.gaps[0])}"
    return {
        "verdict": words,
        "groups": growing,
        "lines": lines,
        "joined": recorder is not None,
        "notes": notes,
        "stall_seconds": run.worst_stall_seconds,
        "foretold_stall_seconds": run.foretold_seconds,
        "forks": run.forks,
        "window_seconds": request.window_seconds,
    }


class _CensusRun:
    """Fork one child after the other, and note how long the app stood still."""

    def __init__(self, torch: ModuleType, context: Context, request: CensusRequest, deadline_seconds: float) -> None:
        self._torch = torch
        self._context = context
        self._request = request
        self._beyond_seconds = deadline_seconds - request.window_seconds
        self._size: fork.Size | None = None
        self._thread_locals: Names = []
        self._whole = True
        self.contexts = NO_CONTEXTS
        self.notes: list[str] = []
        self.forks = 0
        self.foretold_seconds = 0.0
        self.worst_stall_seconds = 0.0

    def first_look(self) -> bytes:
        """Return the table of the first look, and remember where thread-local values are found."""

        def work(frames: list[ThreadFrame], carried: list[Carried]) -> Iterator[bytes]:
            look = take_look(self._torch, frames, carried, self._seconds(), is_first=True)
            size = [len(look.objects), len(look.live)]
            if look.has_graphs:
                yield json.dumps([look.table().encode().decode(), *size, [], False]).encode()
                look.read_graphs()
            yield json.dumps([look.table().encode().decode(), *size, find(look), look.marking.complete]).encode()

        answer = self._perform(work)
        table, objects, tensors, self._thread_locals, self._whole = json.loads(answer.data)
        if not self._whole:
            self.notes.append("the first look ran out of time: what autograd graphs and native code hold is not told")
        self._size = fork.Size(objects, tensors)
        return str(table).encode()

    def second_look(self, then: bytes, *, with_addresses: bool) -> dict[str, Any]:
        """Return what holds more than at the first look."""
        answer = self._perform(
            lambda frames, carried: report_holders(
                self._torch, SecondLookInput(frames, carried, then, self._whole, self._seconds()),
                show_keys=self._request.show_keys, top=self._request.top, with_addresses=with_addresses,
            )
        )  # fmt: skip
        if not answer.complete:
            self.notes.append("the second look ran out of time: what autograd graphs hold was not read to the end")
        found: dict[str, Any] = json.loads(answer.data)
        return found

    def _perform(self, work: SnapshotTask) -> ChildAnswer:
        """Run a task in a forked child, unless now is a bad time for it."""
        if self._context.is_capturing():
            raise Refused("a CUDA graph is being captured")
        fork.refuse_without_memory(self._size, fork.available_bytes())
        fork.refuse_pinned_memory(pinned_bytes(self._torch))
        foretold = refuse_long_pause(self._request.max_pause_seconds, self.worst_stall_seconds)
        self.foretold_seconds = self.foretold_seconds or foretold  # what was known before the app stood still
        carried = values_of(self._thread_locals)  # not longer than the fork: they are the app's
        if uses_context_variables():
            found = find_contexts()
            self.contexts = ContextReferences.to(found)
            carried += found
            del found
        try:
            answer = run_in_child(
                lambda frames: work(frames, carried), self._seconds(), own_threads=(self._context.thread_id,)
            )
        finally:
            carried.clear()
            self.forks += 1
        self.worst_stall_seconds = max(self.worst_stall_seconds, answer.stall_seconds)
        return answer

    def _seconds(self) -> float:
        """Return how long a child may take: half of what the deadline leaves beyond the window."""
        return min(CHILD_SECONDS, max(SPARE_SECONDS, self._beyond_seconds / 2))


def _full_collections() -> int:
    """Return how often all generations were collected, by the interpreter or by the app."""
    return int(gc.get_stats()[-1]["collections"])


def _wait(context: Context, seconds: float) -> None:
    if context.wait(seconds):
        raise Refused("the app is stopping")


def _watch(watch: Watch, context: Context, seconds: float, usage: UsageSeries) -> Series:
    """Ask the app's containers for their lengths, several times in so many seconds; and for the memory in use.

    The latter only where some of what grew has no container that could be asked.
    """
    if watch.is_blind:
        usage.sample()
    for _ in range(SAMPLES):
        _wait(context, max(0.0, seconds) / SAMPLES)
        watch.sample()
        if watch.is_blind:
            usage.sample()
    return watch.series


class Moment(NamedTuple):
    """How much the app had done by a moment."""

    requests: int | None
    seconds: float

    @classmethod
    def now(cls, context: Context) -> Moment:
        """Return the figures of now."""
        return cls(context.requests_served(), time.monotonic())


def pace_of(moments: Sequence[Moment]) -> float:
    """Return how much more happened after the second look than before it, by requests if they are counted, or time."""
    first, second, third = moments
    if first.requests is not None and second.requests is not None and third.requests is not None:
        early, late = float(second.requests - first.requests), float(third.requests - second.requests)
    else:
        early, late = second.seconds - first.seconds, third.seconds - second.seconds
    return late / early if early > 0 else 1.0


def _request_notes(moments: Sequence[Moment]) -> list[str]:
    first, second, _ = moments
    if first.requests is None or second.requests is None:
        return []
    count = second.requests - first.requests
    if count >= ENOUGH_REQUESTS:
        return []
    return [f"only {count} requests between the looks: a cache with more entries than that looks like a leak"]
