"""Find the holders of surviving tensors: walk, sort and count, in the child of the third snapshot.

The paths of several samples run together from the root on, and part in the container that keeps the samples: the last
object that they have in common. No second census is needed for that.
"""

from __future__ import annotations

import functools
import gc
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.heap import Heap, HolderPath, referents_of, true_instance, walk
from gpuagent_client.blame.paths import Trail, class_name, instance_dict, trail
from gpuagent_client.blame.tensors import AutogradGraph, Key, LiveTensor, Table, TensorGroup, graphs

# Samples that part in four directions or more have found the container. Where they part in two or three, those
# may be two containers (one hook each on two layers) or two elements of one.
FAN = 4


class Cluster(NamedTuple):
    """Samples that have one holder."""

    paths: list[HolderPath]
    common: int  # so many objects of the paths, from the root on, are the same
    container: int | None  # its place in every one of the paths; None if nothing here can grow

    @property
    def container_object(self) -> object:
        """Container that keeps the samples, or None."""
        return None if self.container is None else self.paths[0].objects[self.container]


def can_grow(item: object, owner: object) -> bool:
    """Return whether data can be put into this; `owner` is who refers to it, for a dict that holds only attributes."""
    kind = type(item)
    if issubclass(kind, dict):
        return owner is None or instance_dict(owner) is not item
    return issubclass(kind, (list, deque, set)) or class_name(kind) in {
        "functools._lru_cache_wrapper",
        "_queue.SimpleQueue",
    }


def clusters(
    paths: list[HolderPath], is_old: Callable[[object, int], bool], modules: Mapping[int, str]
) -> list[Cluster]:
    """Sort samples by who keeps them.

    `is_old(item, hops)` tells whether something this many references below the item was there before the window: a
    container that grows is older than what it got last, an element is not.
    """
    return _split(paths, 0, is_old, modules) if paths else []


def _split(
    paths: list[HolderPath], start: int, is_old: Callable[[object, int], bool], modules: Mapping[int, str]
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


def _common(paths: list[HolderPath], start: int) -> int:
    """Return how many objects from the root on all paths share."""
    length = start
    shortest = min(len(path.objects) for path in paths) - 1  # the sample itself holds nothing
    while length < shortest and all(path.objects[length] is paths[0].objects[length] for path in paths):
        length += 1
    return length


def _by_object(paths: list[HolderPath], index: int) -> dict[int, list[HolderPath]]:
    parts: dict[int, list[HolderPath]] = {}
    for path in paths:
        parts.setdefault(id(path.objects[index]), []).append(path)
    return parts


def _are_elements(parts: Mapping[int, list[HolderPath]], index: int, is_old: Callable[[object, int], bool]) -> bool:
    """Return whether the paths part into things as young as the samples: elements of one container, not containers."""
    firsts = [members[0].objects for members in parts.values()]
    return not any(is_old(objects[index], len(objects) - 1 - index) for objects in firsts)


def _can_grow_at(path: HolderPath, index: int, modules: Mapping[int, str]) -> bool:
    item = path.objects[index]
    return id(item) not in modules and can_grow(item, path.objects[index - 1] if index else None)


def _is_fixed(item: object, modules: Mapping[int, str], path: HolderPath, index: int) -> bool:
    """Return whether it holds names of a module or attributes of an object: each is a place of its own."""
    owner = path.objects[index - 1] if index else None
    return id(item) in modules or (owner is not None and instance_dict(owner) is item)


def _container(
    paths: list[HolderPath], common: int, is_old: Callable[[object, int], bool], modules: Mapping[int, str]
) -> int | None:
    """Return the lowest common container that is older than the samples; else the lowest one."""
    growable = [index for index in range(common - 1, -1, -1) if _can_grow_at(paths[0], index, modules)]
    for index in growable:
        if is_old(paths[0].objects[index], len(paths[0].objects) - 1 - index):
            return index
    return growable[0] if growable else None


def length_of(container: object) -> int | None:
    """Return how many things are in it, without asking a subclass."""
    if true_instance(container, dict):
        return dict.__len__(container)
    if true_instance(container, list):
        return list.__len__(container)
    if true_instance(container, deque):
        return deque.__len__(container)
    if true_instance(container, set):
        return set.__len__(container)
    if isinstance(container, functools._lru_cache_wrapper):  # noqa: SLF001 - the class has no public name
        return container.cache_info().currsize
    return container.qsize() if true_instance(container, queue.SimpleQueue) else None


MAX_OBJECTS = 2_000_000


def tensors_below(item: object, hops: int, live: Mapping[int, LiveTensor], heap: Heap) -> list[LiveTensor]:
    """Return the tensors at most `hops` references below; `live` is by the id of the tensor.

    The bound keeps a stray reference (request.app) from making the whole app a part of the container.
    """
    found: dict[int, LiveTensor] = {}
    seen = {id(item)}
    level = [item]
    for _ in range(hops):
        below: list[object] = []
        for parent in level:
            for child in gc.get_referents(parent):
                if id(child) in seen or len(seen) > MAX_OBJECTS or heap.is_root(child):
                    continue
                seen.add(id(child))
                if id(child) in live:
                    found[id(child)] = live[id(child)]
                else:
                    below.append(child)
        level = below
    return list(found.values())


SPREAD_SAMPLES = 16
LARGEST_SAMPLES = 4
WALK_SECONDS = 5.0
TOGETHER_SECONDS = 11.0


class Finding:
    """Holder of tensors, and what it holds."""

    def __init__(self, way: Trail, cluster: Cluster) -> None:
        self.way = way
        self.container = cluster.container
        self.held = cluster.paths[0]
        # What to look for in code: the container, else what all samples have in common.
        self.named = cluster.container if cluster.container is not None else cluster.common - (len(cluster.paths) > 1)
        self.holders = 0  # samples that are held in this way
        self.in_graph = False  # only as a part of some output's graph
        self.made_early = 0  # tensors of its kinds, where there is no container to count in
        self.made_late = 0
        self.keys: set[Key] = set()
        self.tensors: dict[int, LiveTensor] = {}  # by storage
        self.hidden_bytes = 0  # in the graph, and seen by nobody else

    @property
    def container_object(self) -> object:
        """Container that keeps the samples, or None."""
        return None if self.container is None else self.way.objects[self.container]

    @property
    def has_graph(self) -> bool:
        """Whether a graph is what makes it cost memory."""
        return self.in_graph or any(key.has_graph for key in self.keys)

    def add(self, tensors: Iterable[LiveTensor]) -> None:
        """Count these tensors as held."""
        for live in tensors:
            self.tensors[live.storage] = live


class Outputs(NamedTuple):
    """Tensors that only a graph holds, and the paths to the outputs that hold the graph."""

    group: TensorGroup
    graphs: list[AutogradGraph]
    paths: list[HolderPath]


class Search:
    """Search for holders, with everything that the child of the third snapshot knows."""

    def __init__(
        self, torch: ModuleType, heap: Heap, live: list[LiveTensor], first: Table, second: Table, *, show_keys: bool
    ) -> None:
        self._torch = torch
        self._heap = heap
        self._live = live
        self._by_id: Mapping[int, LiveTensor] = {id(one.tensor): one for one in live}
        self._first = first
        self._second = second
        self._show_keys = show_keys
        self._until = time.monotonic() + TOGETHER_SECONDS
        self._found: dict[object, Finding] = {}

    def findings(self, groups: list[TensorGroup], objects: list[object]) -> list[Finding]:
        """Return the holders of these groups, most growth first."""
        # First all walks, then the names: naming an attribute makes the dict of its instance, which then stands between
        # the two, and which no walk would take for the app's.
        walked = [(group, self._walk(group.survivors)) for group in groups if time.monotonic() < self._until]
        orphans = [group for group, paths in walked if any(map(is_orphan, paths))]
        outputs = self._outputs_above(orphans, objects) if orphans else []
        for group, paths in walked:
            self._add(self._clusters([path for path in paths if not is_orphan(path)]), group, in_graph=False)
        for output in outputs:
            self._add_graph(output)
        return list(self._found.values())

    def _walk(self, members: list[LiveTensor]) -> list[HolderPath]:
        return walk(distinct(samples(members)), self._heap, WALK_SECONDS)

    def is_new(self, live: LiveTensor) -> bool:
        """Return whether the tensor was made during the window."""
        return live.identity not in self._first.tensors

    def is_survivor(self, live: LiveTensor) -> bool:
        """Return whether the tensor was made between the first and the second snapshot."""
        return self.is_new(live) and live.identity in self._second.tensors

    def _is_old(self, item: object, hops: int) -> bool:
        return any(not self.is_new(live) for live in tensors_below(item, hops, self._by_id, self._heap))

    def _clusters(self, paths: list[HolderPath]) -> list[Cluster]:
        return clusters(paths, self._is_old, self._heap.modules)

    def _add(self, found: list[Cluster], group: TensorGroup, *, in_graph: bool) -> list[Finding]:
        """Add each to the finding with the same container, or else the same words."""
        made: dict[int, Finding] = {}
        for cluster in found:
            way = trail(cluster.paths[0].objects, self._heap, show_keys=self._show_keys)
            name = id(cluster.container_object) if cluster.container is not None else way.text()
            finding = self._found.setdefault(name, Finding(way, cluster))
            finding.holders += len(cluster.paths)
            held = self._held_by(cluster)
            finding.add(held)
            finding.keys.update(live.key for live in held if in_graph or live.key.kind == group.key.kind)
            finding.keys.add(group.key)
            if id(finding) not in made:
                finding.made_early += len(group.survivors)
                finding.made_late += group.younger
            made[id(finding)] = finding
        findings = list(made.values())
        if len(findings) == 1 and findings[0].container is None and not in_graph:
            findings[0].add(group.survivors)  # all the samples agree, so the rest is held like them
        return findings

    def _held_by(self, cluster: Cluster) -> list[LiveTensor]:
        if cluster.container is None:
            return [self._by_id[id(path.objects[-1])] for path in cluster.paths]
        hops = max(len(path.objects) - 1 - cluster.container for path in cluster.paths)
        return tensors_below(cluster.container_object, hops, self._by_id, self._heap)

    def _outputs_above(self, orphans: list[TensorGroup], objects: list[object]) -> list[Outputs]:
        """Return, for each group without a parent, the outputs in whose graph it is, and who holds those."""
        read = graphs(self._torch, self._candidates(objects))
        found = []
        for group in orphans:
            storages = {live.storage for live in group.survivors}
            holding = [graph for graph in read if not storages.isdisjoint(graph.saved)]
            longest = sorted(holding, key=lambda graph: -graph.nodes)[:LARGEST_SAMPLES]
            picked = [*samples([graph.candidate for graph in holding]), *(graph.candidate for graph in longest)]
            paths = walk(distinct(picked), self._heap, WALK_SECONDS) if holding else []
            found.append(Outputs(group, holding, [path for path in paths if path.rooted]))
        return found

    def _add_graph(self, outputs: Outputs) -> None:
        group, holding = outputs.group, outputs.graphs
        candidates = {id(graph.candidate.tensor) for graph in holding}
        found = [self._container_or_result(cluster, candidates) for cluster in self._clusters(outputs.paths)]
        made = self._add(found, group, in_graph=True)
        if not made:
            self._unexplained(group, graph=bool(holding))
        for finding in made:
            finding.in_graph = True
            finding.keys.add(group.key)
            # With one holder, all of this kind is its; with several, what was seen in the graphs of each.
            mine = [graph for graph in holding if graph.candidate.storage in finding.tensors]
            inside = {storage for graph in mine for storage in graph.saved}
            alike = [live for live in self._live if live.key.kind == group.key.kind]
            finding.add(live for live in alike if len(made) == 1 or live.storage in inside)
            finding.hidden_bytes = max(finding.hidden_bytes, self._hidden_bytes(mine))

    def _container_or_result(self, cluster: Cluster, candidates: set[int]) -> Cluster:
        """Return a container with one result that has a graph does not grow: the graph of that result does."""
        inside = sum(id(live.tensor) in candidates for live in self._held_by(cluster))
        return cluster if inside > 1 else Cluster(cluster.paths, len(cluster.paths[0].objects) - 1, None)

    def _hidden_bytes(self, holding: list[AutogradGraph]) -> int:
        """Return what native code alone has saved in these graphs."""
        visible = {live.storage for live in self._live}
        saved = {storage: live.storage_bytes for graph in holding for storage, live in graph.saved.items()}
        return sum(size for storage, size in saved.items() if storage not in visible)

    def _candidates(self, objects: list[object]) -> list[LiveTensor]:
        """Return tensors with a graph that a Python object holds: survivors first, then young ones, then old ones."""
        held = {id(child) for item in objects if id(item) not in self._by_id for child in referents_of(item)}
        held |= set(self._heap.locals)
        outputs = [live for live in self._live if live.key.has_graph and id(live.tensor) in held]
        return sorted(outputs, key=lambda live: (not self.is_survivor(live), not self.is_new(live)))

    def _unexplained(self, group: TensorGroup, *, graph: bool) -> None:
        path = HolderPath((group.survivors[0].tensor,), rooted=False, exhausted=True, in_cycle=False)
        way = trail(path.objects, self._heap, show_keys=self._show_keys)
        finding = self._found.setdefault(("unexplained", group.key.kind), Finding(way, Cluster([path], 1, None)))
        finding.in_graph = graph or group.key.has_graph
        finding.keys.add(group.key)
        finding.made_early += len(group.survivors)
        finding.made_late += group.younger
        finding.add(group.survivors)


def is_orphan(path: HolderPath) -> bool:
    """Return whether no Python object holds it, but perhaps a node of a graph."""
    return not path.rooted and (len(path.objects) == 1 or hasattr(type(path.objects[0]), "next_functions"))


def samples(members: list[LiveTensor]) -> list[LiveTensor]:
    """Return some of the tensors, evenly spread, and the largest."""
    step = max(1, (len(members) - 1) // (SPREAD_SAMPLES - 1)) if members else 1
    picked = [*members[::step][:SPREAD_SAMPLES], *members[-1:]]
    picked += sorted(members, key=lambda live: -live.storage_bytes)[:LARGEST_SAMPLES]
    return picked


def distinct(picked: list[LiveTensor]) -> list[object]:
    """Return the tensors, each once."""
    return list({id(live.tensor): live.tensor for live in picked}.values())
