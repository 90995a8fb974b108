"""Look at the app once, in a forked child: every tensor, by whom it is held, and a table of both for the next look."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.fork import ThreadFrame
from gpuagent_client.blame.graphs import GraphReader
from gpuagent_client.blame.heap import Heap, ThreadValues, index_heap
from gpuagent_client.blame.marking import Marking, Until
from gpuagent_client.blame.signatures import GRAPH, Signatures
from gpuagent_client.blame.tensors import LiveTensor, exact_types, gradient_of, live_tensors, tensors_among

# Of CPU time: on a busy host the clock would end a look that has hardly begun.
MARK_SECONDS = 9.0
GRAPH_SECONDS = 4.0
MARK_PART = 0.5
"""Of the time by the clock that a child has, as much may be used to mark."""
UNREACHED = "unreached"


class Entry(NamedTuple):
    """What had one signature in a look: objects, and the tensors at it with their bytes."""

    width: int = 0
    bytes: int = 0
    tensors: int = 0


NOTHING = Entry()


class Table(NamedTuple):
    """What a look leaves for the next one; keys are hashes of names, the same in both."""

    entries: Mapping[int, Entry]
    objects: int
    tensors: int

    def entry(self, key: int) -> Entry:
        """Return what had this signature; zeros where nothing had."""
        return self.entries.get(key, NOTHING)

    def encode(self) -> bytes:
        """Return it as bytes, for the child of the next look."""
        return json.dumps([self.objects, self.tensors, [[key, *one] for key, one in self.entries.items()]]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Table:
        """Return the table again."""
        objects, tensors, rows = json.loads(data)
        return cls({row[0]: Entry(*row[1:]) for row in rows}, objects, tensors)


class Look:
    """One look, with everything that the child knows."""

    def __init__(
        self, torch: ModuleType, heap: Heap, objects: list[object], clock_seconds: float, *, is_first: bool
    ) -> None:
        self.torch = torch
        self.heap = heap
        self.objects = objects
        kinds = exact_types(torch.Tensor)
        self.live = live_tensors(torch, objects)
        wanted = [one.tensor for one in self.live]
        if is_first:  # the values of other threads are gone in the child, but not the objects that had them
            wanted += _thread_locals(objects)
        until = Until.after(MARK_SECONDS, clock_seconds * MARK_PART)
        self.marking = Marking(heap, kinds, lambda item: gradient_of(torch, item), until, wanted)
        self.marking.mark_all()
        self.live += tensors_among(torch, self.marking.order, {id(one.tensor) for one in self.live})
        self.signatures = Signatures(self.marking, heap)
        self.held: dict[int, list[LiveTensor]] = {}  # signature -> tensors at it, each storage once
        self.outputs: dict[int, list[LiveTensor]] = {}  # signature of a graph -> tensors that hold it
        self.unreached: dict[str, list[LiveTensor]] = {}
        self.partly_read = 0  # graphs that were longer than there was time for
        self._storages: set[int] = set()
        self._outputs: list[tuple[int, LiveTensor]] = []
        self._unplaced: dict[int, LiveTensor] = {}
        self._place_all()

    @property
    def has_graphs(self) -> bool:
        """Whether there are outputs whose graphs can be read."""
        return any(one.key.has_graph for _, one in self._outputs)

    def _place_all(self) -> None:
        places = self.marking.places
        known = ((id(one.tensor), number) for number, one in enumerate(self.live))
        reached = sorted((places[key], number) for key, number in known if key in places)
        for place, number in reached:
            one = self.live[number]
            signature = self.signatures.of(place)
            self._outputs.append((signature, one))
            if one.storage not in self._storages:
                self._storages.add(one.storage)
                self.held.setdefault(signature, []).append(one)
        self._unplaced = {id(one.tensor): one for one in self.live if id(one.tensor) not in places}
        self._list_unreached()

    def _list_unreached(self) -> None:
        self.unreached = {}
        if not self.marking.complete:  # nobody knows what would have been reached
            return
        seen = set(self._storages)
        for one in self._unplaced.values():
            if one.storage not in seen:
                seen.add(one.storage)
                self.unreached.setdefault(str(one.key.kind), []).append(one)

    def read_graphs(self) -> None:
        """Read what autograd graphs hold: what seemed to be held by nobody may be in one."""
        reader = GraphReader(self.torch, GRAPH_SECONDS)
        for signature, output, nodes, saved in reader.read_all([one for one in self._outputs if one[1].key.has_graph]):
            graph = self.signatures.special(signature, GRAPH, nodes)
            self.outputs.setdefault(graph, []).append(output)
            for inside in saved:
                if inside.storage not in self._storages:
                    self._storages.add(inside.storage)
                    self.held.setdefault(graph, []).append(inside)
        self._list_unreached()
        self.partly_read = reader.partly_read

    def table(self) -> Table:
        """Return the table of this look."""
        names = self.signatures
        rows = {names.keys[one]: Entry(names.widths[one]) for one in range(len(names.keys))}
        for signature, tensors in self.held.items():
            key = names.keys[signature]
            rows[key] = Entry(rows[key].width, bytes_of(tensors), len(tensors))
        for kind, tensors in self.unreached.items():
            rows[hash((UNREACHED, kind))] = Entry(len(tensors), bytes_of(tensors), len(tensors))
        return Table(rows, len(self.objects), len(self.live))


def take_look(
    torch: ModuleType,
    frames: list[ThreadFrame],
    values: list[ThreadValues],
    clock_seconds: float = 60.0,
    *,
    is_first: bool = False,
) -> Look:
    """Look at everything that the collector knows; before anything of ours could be mistaken for the app's.

    `clock_seconds` is the time that the child has: where it does not suffice, what is deep in the app is not seen.
    """
    objects = gc.get_objects()
    return Look(torch, index_heap(objects, frames, values), objects, clock_seconds, is_first=is_first)


def _thread_locals(objects: Iterable[object]) -> list[object]:
    """Return the threading.local objects, without those that torch keeps for itself."""
    kinds = exact_types(threading.local)
    found = [item for item in objects if type(item) in kinds and not _is_torchs(type(item).__module__)]
    of_torch: set[int] = set()
    for owner in gc.get_referrers(*found) if found else ():
        if type(owner) is dict and _is_torchs(owner.get("__module__", owner.get("__name__"))):  # of a class or module
            of_torch.update(id(value) for value in list(owner.values()))
    return [item for item in found if id(item) not in of_torch]


def _is_torchs(name: object) -> bool:
    return type(name) is str and (name == "torch" or name.startswith("torch."))


def bytes_of(tensors: Iterable[LiveTensor]) -> int:
    """Return the bytes of these tensors, each of which has a storage of its own."""
    return sum(one.storage_bytes for one in tensors)
