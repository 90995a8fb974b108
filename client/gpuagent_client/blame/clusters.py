"""Fan-out names the container.

The paths of several samples run together from the root on, and part in the container that keeps the samples: the last
object that they have in common. No second census is needed for that.
"""

from __future__ import annotations

import functools
import queue
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpuagent_client.blame.names import class_name
from gpuagent_client.blame.really import really
from gpuagent_client.blame.steps import instance_dict
from gpuagent_client.blame.walk import Held

# Samples that part in four directions or more have found the container. Where they part in two or three, those
# may be two containers (one hook each on two layers) or two elements of one.
FAN = 4


class Cluster(NamedTuple):
    """Samples with one holder."""

    paths: list[Held]
    common: int  # so many objects of the paths, from the root on, are the same
    container: int | None  # its place in every one of the paths; None if nothing here can grow

    @property
    def container_object(self) -> object:
        """The container, or None."""
        return None if self.container is None else self.paths[0].objects[self.container]


def can_grow(item: object, owner: object) -> bool:
    """Whether data can be put into this; `owner` is who refers to it, for a dict that holds only attributes."""
    kind = type(item)
    if issubclass(kind, dict):
        return owner is None or instance_dict(owner) is not item
    return issubclass(kind, (list, deque, set)) or class_name(kind) in {
        "functools._lru_cache_wrapper",
        "_queue.SimpleQueue",
    }


def clusters(paths: list[Held], is_old: Callable[[object, int], bool], modules: Mapping[int, str]) -> list[Cluster]:
    """Sort samples by who keeps them.

    `is_old(item, hops)` tells whether something this many references below the item was there before the window: a
    container that grows is older than what it got last, an element is not.
    """
    return _split(paths, 0, is_old, modules) if paths else []


def _split(
    paths: list[Held], start: int, is_old: Callable[[object, int], bool], modules: Mapping[int, str]
) -> list[Cluster]:
    common = _common(paths, start)
    if common == 0:
        return [part for members in _by_object(paths, 0).values() for part in _split(members, 1, is_old, modules)]
    if len(paths) > 1 and all(len(path.objects) > common for path in paths):
        parts = _by_object(paths, common)
        last = paths[0].objects[common - 1]
        growable = _can_grow_at(paths[0], common - 1, modules)
        if len(parts) < FAN and len(parts) < len(paths) and not _are_elements(parts, common, is_old):
            return [part for members in parts.values() for part in _split(members, common + 1, is_old, modules)]
        if not growable and _is_fixed(last, modules, paths[0], common - 1):
            return [part for members in parts.values() for part in _split(members, common + 1, is_old, modules)]
    return [Cluster(paths, common, _container(paths, common, is_old, modules))]


def _common(paths: list[Held], start: int) -> int:
    """How many objects from the root on all paths share."""
    length = start
    shortest = min(len(path.objects) for path in paths) - 1  # the sample itself holds nothing
    while length < shortest and all(path.objects[length] is paths[0].objects[length] for path in paths):
        length += 1
    return length


def _by_object(paths: list[Held], index: int) -> dict[int, list[Held]]:
    parts: dict[int, list[Held]] = {}
    for path in paths:
        parts.setdefault(id(path.objects[index]), []).append(path)
    return parts


def _are_elements(parts: Mapping[int, list[Held]], index: int, is_old: Callable[[object, int], bool]) -> bool:
    """Whether what the paths part into is as young as the samples: elements of one container, and no containers."""
    firsts = [members[0].objects for members in parts.values()]
    return not any(is_old(objects[index], len(objects) - 1 - index) for objects in firsts)


def _can_grow_at(path: Held, index: int, modules: Mapping[int, str]) -> bool:
    item = path.objects[index]
    return id(item) not in modules and can_grow(item, path.objects[index - 1] if index else None)


def _is_fixed(item: object, modules: Mapping[int, str], path: Held, index: int) -> bool:
    """Names in a module or attributes of an object: each is a place of its own."""
    owner = path.objects[index - 1] if index else None
    return id(item) in modules or (owner is not None and instance_dict(owner) is item)


def _container(
    paths: list[Held], common: int, is_old: Callable[[object, int], bool], modules: Mapping[int, str]
) -> int | None:
    """The lowest common container that is older than the samples; else the lowest one."""
    growable = [index for index in range(common - 1, -1, -1) if _can_grow_at(paths[0], index, modules)]
    for index in growable:
        if is_old(paths[0].objects[index], len(paths[0].objects) - 1 - index):
            return index
    return growable[0] if growable else None


def length_of(container: object) -> int | None:
    """How many things are in it, without asking a subclass."""
    if really(container, dict):
        return dict.__len__(container)
    if really(container, list):
        return list.__len__(container)
    if really(container, deque):
        return deque.__len__(container)
    if really(container, set):
        return set.__len__(container)
    if isinstance(container, functools._lru_cache_wrapper):  # noqa: SLF001 - the class has no public name
        return container.cache_info().currsize
    return container.qsize() if really(container, queue.SimpleQueue) else None
