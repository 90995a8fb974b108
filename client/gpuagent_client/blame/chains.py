"""Linked lists: the way up from an element to the head, without a sweep over the heap for each element."""

from __future__ import annotations

import gc

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement
CONTAINERS = (list, tuple, dict, set, frozenset, type)


class Chains:
    """Who of a class refers to whom of the same class; read once for each class that needs it."""

    def __init__(self, known: frozenset[int]) -> None:
        self._known = known
        self._above: dict[type, dict[int, object]] = {}

    def head(self, item: object) -> object:
        """The first of the chain that this is in, or the item itself."""
        above = self._of(type(item))
        seen = set()
        while id(item) in above and id(item) not in seen:
            seen.add(id(item))
            item = above[id(item)]
        return item

    def _of(self, kind: type) -> dict[int, object]:
        if kind not in self._above:
            self._above[kind] = {
                id(below): item
                for item in gc.get_objects()
                if type(item) is kind and id(item) in self._known
                for below in same_below(item)
            }
        return self._above[kind]


def can_be_chained(kind: type) -> bool:
    """Whether its instances are made by the app, and no containers."""
    return bool(kind.__flags__ & HEAP_TYPE) and not issubclass(kind, CONTAINERS)


def same_below(item: object) -> list[object]:
    """Objects of the same class that this one refers to as an attribute."""
    found: list[object] = []
    for child in gc.get_referents(item):
        if type(child) is type(item):
            found.append(child)
        elif type(child) is dict:  # the attributes
            found += [value for value in list(child.values()) if type(value) is type(item)]
    return found
