"""Look at the app once, in a forked child: every tensor, by whom it is held, and a table of both for the next look.

Two looks are compared by signatures: the names that lead to a place in the heap, never by addresses, which the
allocators use again at once. Elements have no name of their own (`[*]`, `[<str>]`), digits in the names of attributes
are left out, and the links of a chain are one name; so what is added to a container has the signature of what was in
it, and the number of objects with it grows.
"""

from __future__ import annotations

import gc
import json
import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.arrays import base_of, holds_objects, is_inside_pandas
from gpuagent_client.blame.fork import ThreadFrame
from gpuagent_client.blame.graphs import GraphReader
from gpuagent_client.blame.heap import Carried, Heap, are_links, index_heap, module_of, true_instance
from gpuagent_client.blame.marking import NO_PARENT, Deadline, Marking, code_of_task
from gpuagent_client.blame.paths import (
    ATTRIBUTES_IN,
    attribute_of,
    class_name,
    closure_variable,
    code_name,
    field_of,
    frame_variable,
    instance_dict,
    step,
)
from gpuagent_client.blame.tensors import LiveTensor, exact_types, gradient_of, live_tensors, tensors_among

DIGITS = re.compile(r"\d+")
ROOT = -1
GRAPH = "<graph>"
ELEMENT = "[*]"
EXCEPTION_LINKS = ("__cause__", "__context__")


class Signatures:
    """Signatures of the places on the ways to tensors, and how many objects have each."""

    def __init__(self, marking: Marking, heap: Heap) -> None:
        self.above: list[int] = []  # signature -> the one above it, or ROOT
        self.keys: list[int] = []  # signature -> hash of its names, which is the same in another look
        self.widths: list[int] = []  # signature -> objects that have it
        self._labels: list[str] = []
        self._kinds: list[type] = []
        self._marking = marking
        self._heap = heap
        self._of_place: dict[int, int] = {}
        self._known: dict[tuple[int, str], int] = {}
        self._labels_in: dict[int, Mapping[int, str]] = {}

    def of(self, place: int) -> int:
        """Return the signature of a place, and count all objects on the way that have not been counted yet."""
        way = []
        while place != NO_PARENT and place not in self._of_place:
            way.append(place)
            if self._heap.is_named_class(self._marking.order[place]):
                place = NO_PARENT
                break
            place = self._marking.parents[place]
        current = self._of_place[place] if place != NO_PARENT else ROOT
        for one in reversed(way):
            current = self._of_place[one] = self._below(current, one)
        return current

    def seen(self, place: int) -> int:
        """Return the signature of a place that a way has led through; ROOT above a class, which is named by itself."""
        return self._of_place.get(place, ROOT)

    def special(self, above: int, label: str, width: int) -> int:
        """Return the signature of something that is no Python object, and count so many of it."""
        found = self._intern(above, label, object)
        self.widths[found] += width
        return found

    def line(self, signature: int) -> list[int]:
        """Return the signatures from the root down to this one."""
        found = []
        while signature != ROOT:
            found.append(signature)
            signature = self.above[signature]
        found.reverse()
        return found

    def label(self, signature: int) -> str:
        """Return the last of its names."""
        return self._labels[signature]

    def is_graph(self, signature: int) -> bool:
        """Return whether this is what an autograd graph holds."""
        return self._labels[signature] == GRAPH

    def _below(self, above: int, place: int) -> int:
        item = self._marking.order[place]
        label = self._root(item) if above == ROOT else self._label(place, item)
        if not label:
            return above
        kind = type(item)
        # An element of a container is no link: a signature knows the kind of the first element only.
        is_element = label.startswith("[")
        if not is_element and above != ROOT and self._labels[above] == label and are_links(kind, self._kinds[above]):
            found = above
        else:
            found = self._intern(above, label, kind)
        self.widths[found] += 1
        return found

    def _intern(self, above: int, label: str, kind: type) -> int:
        found = self._known.get((above, label))
        if found is None:
            found = self._known[above, label] = len(self.above)
            self.above.append(above)
            self.keys.append(hash((self.keys[above] if above != ROOT else 0, label)))
            self.widths.append(0)
            self._labels.append(label)
            self._kinds.append(kind)
        return found

    def _root(self, item: object) -> str:
        if id(item) in self._heap.modules:
            return DIGITS.sub("#", self._heap.modules[id(item)])
        if true_instance(item, type):
            return class_name(item)
        code = code_of_task(item)
        if code is not None:
            return f"task of {code_name(code)}"
        running = self._heap.frames.get(id(item))
        return f"frame of {code_name(running.frame.f_code)}" if running is not None else class_name(type(item))

    def _label(self, place: int, item: object) -> str:
        above = self._marking.parents[place]
        parent = self._marking.order[above]
        if true_instance(parent, dict):
            labels = self._labels_in.get(above)
            if labels is None:
                labels = self._labels_in[above] = self._labels_in_dict(above, parent)
            return labels.get(id(item), "[key]")
        if is_inside_pandas(parent, item):
            return ""
        if true_instance(parent, list, tuple, deque, set, frozenset) or (
            holds_objects(parent) and base_of(parent) is not item
        ):
            return self._label_of_element(above, parent, item)
        return self._label_of_attribute(parent, item)

    def _label_of_element(self, place: int, parent: object, item: object) -> str:
        """Return what code calls it: a field of a named tuple, or a variable of a closure; else an element."""
        if true_instance(parent, tuple):
            above = self._marking.parents[place]
            owner = self._marking.order[above] if above != NO_PARENT else None
            variable = closure_variable(owner, parent, item)
            if variable is not None:
                return f".<closure variable {variable}>"
            field = field_of(parent, item)
            if field is not None:
                return f".{field}"
        return ELEMENT

    def _label_of_attribute(self, parent: object, item: object) -> str:
        running = self._heap.frames.get(id(parent))
        if running is not None:
            return f".{frame_variable(running.frame, item)}"
        if id(item) in self._heap.thread_values:
            return ".<of a thread>"
        found = step(parent, item, show_keys=False)
        if found.name in EXCEPTION_LINKS and found.kind == "exception":
            return f".{EXCEPTION_LINKS[0]}"
        shown = "" if found.kind == "attribute" and found.name in ATTRIBUTES_IN else found.text
        return DIGITS.sub("#", shown)

    def _labels_in_dict(self, place: int, parent: dict[object, object]) -> Mapping[int, str]:
        items = list(dict.items(parent))
        if self._holds_attributes(place, parent):
            return {id(value): f".{DIGITS.sub('#', str(key))}" for key, value in items if type(key) is str}
        return {id(value): f"[<{type(key).__name__}>]" for key, value in items}

    def _holds_attributes(self, place: int, parent: object) -> bool:
        if id(parent) in self._heap.modules or id(parent) in self._heap.thread_values:
            return True
        above = self._marking.parents[place]
        if above == NO_PARENT:
            return False
        owner = self._marking.order[above]
        if instance_dict(owner) is parent:
            return True
        if true_instance(owner, dict) and self._marking.parents[above] != NO_PARENT:  # past the dict of attributes
            owner = self._marking.order[self._marking.parents[above]]
        return not true_instance(owner, dict, list, tuple) and attribute_of(owner, parent) in ATTRIBUTES_IN


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
        until = Deadline.after(MARK_SECONDS, clock_seconds * MARK_PART)
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
    carried: list[Carried],
    clock_seconds: float = 60.0,
    *,
    is_first: bool = False,
) -> Look:
    """Look at everything that the collector knows; before anything of ours could be mistaken for the app's.

    `clock_seconds` is the time that the child has: where it does not suffice, what is deep in the app is not seen.
    """
    objects = gc.get_objects()
    return Look(torch, index_heap(objects, frames, carried), objects, clock_seconds, is_first=is_first)


def _thread_locals(objects: Iterable[object]) -> list[object]:
    """Return the threading.local objects, without those that torch keeps for itself."""
    kinds = exact_types(threading.local)
    found = [item for item in objects if type(item) in kinds and not _is_torchs(module_of(type(item)))]
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
