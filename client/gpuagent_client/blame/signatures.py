"""Give each place in the heap a signature: the names that lead there, the same in two looks at one app.

Two looks are compared by these names, never by addresses, which the allocators use again at once. Elements have no name
of their own (`[*]`, `[<str>]`), digits in the names of attributes are left out, and the links of a chain are one name;
so what is added to a container has the signature of what was in it, and the number of objects with it grows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

from gpuagent_client.blame.heap import Heap, are_links, true_instance
from gpuagent_client.blame.marking import NO_PARENT, Marking
from gpuagent_client.blame.paths import (
    ATTRIBUTES_IN,
    attribute_of,
    class_name,
    code_name,
    frame_variable,
    instance_dict,
    step,
)

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
        if above != ROOT and self._labels[above] == label and are_links(kind, self._kinds[above]):
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
            return self._heap.modules[id(item)]
        if true_instance(item, type):
            return class_name(item)
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
        if true_instance(parent, list, tuple, deque, set, frozenset):
            return ELEMENT
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
