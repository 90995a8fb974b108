"""Call a function many times, and say whether it leaks: what the memory after the calls shows, and who holds it.

What this process holds in tensors is read between two calls. On a GPU that is the allocator's own figure. The host has
no such allocator: there the storages of all tensors are counted, those that the collector knows and, in a forked child
as in a census, those that autograd graphs keep.
"""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple, Optional

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.blame.fork import ThreadFrame, run_in_child
from gpuagent_client.blame.graphs import GraphReader
from gpuagent_client.blame.judgment import Judgment
from gpuagent_client.blame.tensors import LiveTensor, gradient_of, live_tensors, loaded_torch, tensors_among
from gpuagent_client.blame.wire import WireGroup, sentence, size
from gpuagent_client.errors import Refused
from gpuagent_client.testing.holders import HolderSearch

Figures = Mapping[str, Optional[int]]
"""What is held after some calls, by device, in bytes; None where it could not be read."""
Part = Sequence[Figures]
"""What was read in the course of a part of the run."""
NODES = "autograd graphs"
"""Name of the figure that counts nodes of autograd graphs, which are in no allocator's figure."""
PARTS = 4
GRANULE_BYTES = 512
"""CUDA's caching allocator rounds each block up to this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""
LEAST_LAST_SHARE = 0.5
"""The last part must have grown by so much of what the parts before it did on average, else the growth slows down."""


class Growth(NamedTuple):
    """Growth of one figure in the calls that confirmed it."""

    name: str
    amount: int
    """In bytes, or nodes for `NODES`."""
    calls: int


def suspects(figures: Sequence[Figures], calls_in_part: int, allowed_bytes: int) -> list[str]:
    """Return the figures that grew in the second half of the run.

    `figures` has `PARTS + 1` entries: before the first part and after each one. The second half, and not the last part
    alone: what leaks in one call of ten does not grow in each part.
    """
    half = PARTS // 2
    return [
        name for name in _known(figures) if _grew(name, figures[half], figures[-1], half * calls_in_part, allowed_bytes)
    ]


def growing(names: Sequence[str], parts: Sequence[Part], calls_in_part: int, allowed_bytes: int) -> list[str]:
    """Return those of the figures that grew from each part to the next so far.

    The least of a part must be more than the most of the one before, by a granule: what goes up and down, as a cache of
    entries of different sizes does, rises from reading to reading by chance, but not so twelve times in a row.
    """
    known = set(_known([figures for part in parts for figures in part]))
    return [
        name
        for name in names
        if name in known
        and all(
            min(_values(name, after)) - max(_values(name, before)) >= _granule(name)
            and _grew(name, before[-1], after[-1], calls_in_part, allowed_bytes)
            for before, after in zip(parts, parts[1:])
        )
    ]


def confirmed(names: Sequence[str], parts: Sequence[Part], calls_in_part: int, allowed_bytes: int) -> list[Growth]:
    """Return those of the figures that grew in every part and did not slow down; GPUs first, then most growth.

    The first of `parts` is what was read before any of them.
    """
    found = []
    for name in growing(names, parts, calls_in_part, allowed_bytes):
        values = _values(name, [part[-1] for part in parts])
        before_last = (values[-2] - values[0]) / (len(values) - 2)
        if values[-1] - values[-2] >= before_last * LEAST_LAST_SHARE:
            found.append(Growth(name, values[-1] - values[0], calls_in_part * (len(values) - 1)))
    return sorted(found, key=lambda one: (one.name == NODES, one.name == "cpu", -one.amount))


def _values(name: str, part: Part) -> list[int]:
    return [figures[name] or 0 for figures in part]


def _granule(name: str) -> int:
    return GRANULE_BYTES if name.startswith("cuda") else 1


def _known(figures: Sequence[Figures]) -> list[str]:
    """Return the names that have a figure each time: a missing one is missing, and never zero."""
    names = dict.fromkeys(name for figure in figures for name in figure)
    return [name for name in names if all(figure.get(name) is not None for figure in figures)]


def _grew(name: str, before: Figures, after: Figures, calls: int, allowed_bytes: int) -> bool:
    step = (after[name] or 0) - (before[name] or 0)
    if name == NODES:
        return step > 0
    return step >= _granule(name) and step > allowed_bytes * calls


CHILD_SECONDS = 30.0
GRAPH_SECONDS = 10.0


class MemoryReader:
    """Read what is held, the same way each time."""

    def __init__(self) -> None:
        self._allocator = Allocator(Torch())
        self._unsupported = False

    def read(self) -> dict[str, int | None]:
        """Return the bytes on each device after a full collection, and the nodes of autograd graphs.

        Empty without torch. A device is missing before anything was allocated there; None is a figure that cannot be
        read now.
        """
        torch = loaded_torch()
        if torch is None:
            return {}
        gc.collect()
        held = _held_by_tensors(torch)
        reading = self._allocator.read()
        self._unsupported = self._unsupported or reading.error == "unsupported"
        if self._unsupported:  # the allocator keeps no figures: what Python knows of is all there is
            return held
        found: dict[str, int | None] = {name: held[name] for name in held if not name.startswith("cuda")}
        if reading.error:
            return {**found, **{name: None for name in held if name.startswith("cuda")}}
        for device in reading.devices:
            found[f"cuda:{device.ordinal}"] = device.figures.get("allocated_bytes")
        return found


def _held_by_tensors(torch: ModuleType) -> dict[str, int | None]:
    live = live_tensors(torch, gc.get_objects())
    try:
        return _count(torch, live)
    finally:
        live.clear()  # frames that a fork left behind would keep them until the next collection


def _count(torch: ModuleType, live: list[LiveTensor]) -> dict[str, int | None]:
    live += tensors_among(torch, [gradient_of(torch, one.tensor) for one in live], {id(one.tensor) for one in live})
    if not any(one.key.has_graph for one in live):
        return {**_bytes_by_device(live), NODES: 0}
    try:
        answer = run_in_child(lambda frames: _with_graphs(torch, live, frames), CHILD_SECONDS)
    except Refused:  # no memory for a child, or no answer in time
        return {**dict.fromkeys(_bytes_by_device(live)), NODES: None}
    found: dict[str, int | None] = json.loads(answer.data)
    return found


def _with_graphs(torch: ModuleType, live: list[LiveTensor], frames: list[ThreadFrame]) -> bytes:
    """Return, in a child, the same with what graphs hold."""
    del frames
    reader = GraphReader(torch, GRAPH_SECONDS)
    nodes = 0
    saved: list[LiveTensor] = []
    for _, _, count, tensors in reader.read_all([(0, one) for one in live if one.key.has_graph]):
        nodes += count
        saved += tensors
    found: dict[str, int | None] = {**_bytes_by_device([*live, *saved])}
    found[NODES] = nodes if not reader.partly_read else None
    return json.dumps(found if not reader.partly_read else dict.fromkeys(found)).encode()


def _bytes_by_device(live: list[LiveTensor]) -> dict[str, int]:
    """Return the bytes of the storages, each once, by device; `cpu` always, as nothing there is zero bytes."""
    storages = {one.storage: one for one in live}
    found = {"cpu": 0}
    for one in storages.values():
        name = str(one.key.device)
        found[name] = found.get(name, 0) + one.storage_bytes
    return found


FIRST_LOOK, SECOND_LOOK = 2, 3
"""Parts before which holders are looked for."""
SAMPLES = 9
"""How often what was found is asked for its length in the last part."""
READINGS = 3
"""How often memory is read in each part."""
CALLER = re.compile(r"local function of find_leak\(\) at [^`]*?gate\.py:\d+")
"""The function under test, as the root that holds what nothing else does."""
EXPLAINED_SHARE = 0.9
"""Share of the growth that containers with a bound of their own must hold for it to be no leak."""


class Settings(NamedTuple):
    """How a function is called and judged."""

    warmup: int = 5
    """Calls before anything is measured: what is made once is there after them."""
    calls: int = 20
    """Calls that are measured."""
    confirm: int = 240
    """Further calls where those grew: a cache has to level off within them."""
    allowed_bytes: int = 0
    """Growth in bytes for each call that is no leak, such as a history of losses."""
    max_seconds: float = 120.0
    """Time that the further calls may take, from what those before took: there are fewer of slow functions."""

    def checked(self) -> Settings:
        """Return the same.

        Raises:
            ValueError: a number is out of its range.
        """
        if self.warmup < 1:
            raise ValueError("warmup must be 1 or more: what is made at the first call is no leak")
        if self.calls < PARTS:
            raise ValueError(f"calls must be {PARTS} or more: the run has so many parts")
        if self.confirm < self.calls:
            raise ValueError("confirm must not be less than calls")
        if self.allowed_bytes < 0:
            raise ValueError("allowed_bytes must not be negative")
        return self


class Leak(NamedTuple):
    """Growth that does not stop, and who holds it."""

    growth: Sequence[Growth]
    calls: int
    """Number of calls between the two looks."""
    holders: Sequence[WireGroup]
    """Holders that go on growing, most growth first, as in the answer of a census."""
    notes: Sequence[str]

    def text(self) -> str:
        """Return the leak in words: how much each call leaves behind, and the line that keeps it."""
        lines = [f"leaks {_amount(one)}" for one in self.growth]
        lines += [CALLER.sub("function", sentence(group, f"{self.calls} calls")) for group in self.holders]
        if not self.holders:
            lines.append("what holds it is not known: no object of Python's that goes on growing was found")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _amount(one: Growth) -> str:
    each = one.amount / one.calls
    if one.name == NODES:
        return f"{each:.1f} nodes of autograd graphs with each call, through {one.calls} calls"
    return f"{size(round(each))} with each call on {one.name}: {size(one.amount)} in {one.calls} calls"


def find_leak(
    function: Callable[[], object],
    *,
    warmup: int = 5,
    calls: int = 20,
    confirm: int = 240,
    allowed_bytes: int = 0,
    max_seconds: float = 120.0,
) -> Leak | None:
    """Call the function again and again, and return how it leaks; None if it does not.

    A function that does not grow is called `warmup + calls` times. Where memory grew in the second half of `calls`,
    `confirm` more calls in four equal parts have to grow in each part, without slowing down. The garbage collector runs
    before each figure. See `Settings` for the numbers.

    Raises:
        ValueError: a number is out of its range.
    """
    settings = Settings(warmup, calls, confirm, allowed_bytes, max_seconds).checked()
    return _Run(function, settings).find()


class _Run:
    def __init__(self, function: Callable[[], object], settings: Settings) -> None:
        self._function = function
        self._settings = settings
        self._memory = MemoryReader()

    def find(self) -> Leak | None:
        self._call(self._settings.warmup)
        part = self._settings.calls // PARTS
        figures: list[Figures] = [self._memory.read()]
        seconds = 0.0
        for _ in range(PARTS):
            seconds += self._call(part)
            figures.append(self._memory.read())
        names = suspects(figures, part, self._settings.allowed_bytes)
        if not names:
            return None
        seconds_per_call = seconds / (PARTS * part)
        affordable = int(self._settings.max_seconds / max(seconds_per_call, 1e-9))
        return self._confirm(names, max(part, min(self._settings.confirm, affordable) // PARTS))

    def _confirm(self, names: list[str], part: int) -> Leak | None:
        """Call it in four more parts: the first two may end the suspicion, holders are looked for around the third."""
        search = _Search()
        parts: list[list[Figures]] = [[self._memory.read()]]
        for number in range(PARTS):
            parts.append([])
            if number == FIRST_LOOK:
                search.first_look()
            elif number == SECOND_LOOK:
                search.second_look()
            for done in range(SAMPLES):
                self._call(part * (done + 1) // SAMPLES - part * done // SAMPLES)
                if number >= SECOND_LOOK:
                    search.sample()
                if (done + 1) % (SAMPLES // READINGS) == 0:
                    parts[-1].append(self._memory.read())
            if not growing(names, parts, part, self._settings.allowed_bytes):
                return None
        growth = confirmed(names, parts, part, self._settings.allowed_bytes)
        if not growth:
            return None
        judgment = search.judge()
        if not judgment.growing and _is_bounded(judgment, growth):
            return None
        return Leak(growth, part, judgment.growing, judgment.notes)

    def _call(self, times: int) -> float:
        """Call the function, and return the seconds that it took."""
        began = time.perf_counter()
        for _ in range(times):
            self._function()
        return time.perf_counter() - began


def _is_bounded(judgment: Judgment, growth: Sequence[Growth]) -> bool:
    """Return whether containers that state a bound, as functools.lru_cache does, hold what grew between the looks."""
    grown = sum(one.amount for one in growth if one.name != NODES) / PARTS
    return judgment.bounded_bytes > 0 and judgment.bounded_bytes >= grown * EXPLAINED_SHARE


class _Search:
    """Search for holders that says why where it cannot be done: the growth is told all the same."""

    def __init__(self) -> None:
        torch = loaded_torch()
        self._search = HolderSearch(torch, find_leak.__code__) if torch is not None else None
        self._refusal = ""

    def first_look(self) -> None:
        self._attempt(HolderSearch.first_look)

    def second_look(self) -> None:
        self._attempt(HolderSearch.second_look)

    def sample(self) -> None:
        self._attempt(HolderSearch.sample)

    def judge(self) -> Judgment:
        if self._search is None or self._refusal:
            return Judgment([], [f"holders were not looked for: {self._refusal or 'torch is not loaded'}"])
        return self._search.judge(1.0)

    def _attempt(self, act: Callable[[HolderSearch], None]) -> None:
        if self._search is None or self._refusal:
            return
        try:
            act(self._search)
        except Refused as refusal:
            self._refusal = str(refusal)
