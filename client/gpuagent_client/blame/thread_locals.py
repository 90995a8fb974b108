"""The values of threading.local in other threads, which a forked child would lose.

After a fork, Python ends all threads but one, and their thread-local values with them. What the app's process refers to
at the time of the fork stays, so it must find the threading.local objects. A sweep over its heap would stop it for some
15 ms; so a child looks for them, and tells by which names they are reached.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

from gpuagent_client.blame.heap import Heap, ThreadValues, walk
from gpuagent_client.blame.paths import instance_dict
from gpuagent_client.blame.tensors import exact_types
from gpuagent_client.blame.trail import Trail, trail

MAX_FOUND = 64
WALK_SECONDS = 3.0
Names = list[list[str]]


class Named(NamedTuple):
    """A threading.local and how code reaches it: module, name, attribute ..."""

    names: Sequence[str]
    item: object


def find(objects: list[object], heap: Heap) -> bytes:
    """In a child: the names of all threading.local objects, as JSON."""
    kinds = exact_types(threading.local)
    found = [item for item in objects if type(item) in kinds][:MAX_FOUND]
    paths = walk(found, heap, WALK_SECONDS) if found else []
    named = [_names(trail(path.objects, heap, show_keys=False)) for path in paths if path.rooted]
    return json.dumps([names for names in named if names]).encode()


def _names(way: Trail) -> list[str]:
    """Empty where the way leads through keys of a dict, elements of a list or variables of a function."""
    if any(step.kind not in {"global", "attribute"} for step in way.steps if step.text):
        return []
    root = way.objects[0]
    names = [step.name for step in way.steps if step.text]
    if issubclass(type(root), type):
        assert isinstance(root, type)  # noqa: S101 - for the type checker
        return [root.__module__, *root.__qualname__.split("."), *names]
    return [way.root, *names]


def values_of(names: Names) -> list[ThreadValues]:
    """In the app: what these have now, thread by thread. Reads namespaces, and calls nothing of the app."""
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
    """CPython keeps a dict of dicts in each threading.local, one for each thread."""
    inner = [item for item in gc.get_referents(owner) if type(item) is dict]
    return [attributes for threads in inner for attributes in list(threads.values()) if type(attributes) is dict]
