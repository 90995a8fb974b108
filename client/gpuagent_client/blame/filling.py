"""Count the tensors in the elements of a container: records that are all there, and fill up one by one.

A container whose length stays the same says nothing of them, and neither do a few of its elements where each gets
something only now and then. Runs in the app as well, and calls nothing of it.
"""

from __future__ import annotations

import contextvars
import gc
import threading
import types
from collections import deque
from typing import Any

from gpuagent_client.blame.arrays import holds_objects, objects_in
from gpuagent_client.blame.heap import ATOMS, true_instance
from gpuagent_client.blame.paths import is_tensor_type

BELOW = "below:"
"""Before the number of levels from the container to the tensors, in the name of the measure."""
MAX_ELEMENTS = 200_000
MAX_EXAMINED = 20_000
MAX_INNER = 10_000
"""Elements of a container that is one of the elements: a longer one is left out."""
_SIZED: tuple[Any, ...] = (dict, list, tuple, deque, set, frozenset)
SHARED = (type, types.ModuleType, types.FunctionType, types.CodeType, types.FrameType, threading.local)
"""What elements have in common with all the app."""


def elements_of(container: object) -> list[object] | None:
    """Return what a container of these kinds has in it; None for anything else."""
    if true_instance(container, dict):
        return list(dict.values(container))
    kinds: tuple[Any, ...] = (list, tuple, deque)
    for kind in kinds:
        if true_instance(container, kind):
            return list(kind.__iter__(container))
    return list(objects_in(container)) if holds_objects(container) else None


def tensors_below(container: object, levels: int) -> int | None:
    """Return how many tensors are so many levels below a container at most; of a large one by a sample."""
    if _length(container) > MAX_ELEMENTS:  # before it is copied
        return None
    level = elements_of(container)
    if level is None or len(level) > MAX_ELEMENTS:
        return None
    stride = -(-len(level) // MAX_EXAMINED) or 1
    level = level[::stride]
    tensors: dict[type, bool] = {}
    followed: dict[type, bool] = {}
    seen: set[int] = set()
    found = 0
    for _ in range(levels):
        inner = []
        for item in level:
            kind = type(item)
            if kind in ATOMS or id(item) in seen:
                continue
            seen.add(id(item))
            if kind not in tensors:
                tensors[kind] = is_tensor_type(kind)
                followed[kind] = not issubclass(kind, (*SHARED, contextvars.ContextVar))
            found += tensors[kind]
            if followed[kind] and not tensors[kind] and _length(item) <= MAX_INNER:
                inner.append(item)
        level = gc.get_referents(*inner[:MAX_EXAMINED])
        if len(level) > MAX_ELEMENTS:
            return None
    return found * stride


def _length(item: object) -> int:
    """Return how many elements a container of Python's own has; 0 for anything else."""
    return next((kind.__len__(item) for kind in _SIZED if true_instance(item, kind)), 0)
