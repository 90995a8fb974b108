"""Compare two looks: which names hold more than before, and in which container the growth takes place.

Names that lead to the same kind of place have one signature. Where the number of objects with a signature has grown
more than the number of those above it, what is above is a container that got longer.
"""

from __future__ import annotations

import sys
from types import CellType, FunctionType, MethodType
from typing import NamedTuple

from gpuagent_client.blame.filling import BELOW, elements_of
from gpuagent_client.blame.heap import HEAP_TYPE, HolderPath, are_links, true_instance, walk
from gpuagent_client.blame.look import UNREACHED, Entry, Look, Table, bytes_of
from gpuagent_client.blame.marking import NO_PARENT, from_last_class
from gpuagent_client.blame.paths import AUTOGRAD_NODE, Trail, cell_contents, instance_dict, trail
from gpuagent_client.blame.tensors import Key, LiveTensor, is_on_host
from gpuagent_client.blame.watch import (
    BYTES,
    CHAIN,
    GRAPH,
    LENGTH,
    Target,
    bound_of,
    frames_target,
    how_to_measure,
    length_of,
    measure,
    target,
    tasks_target,
)

MAX_SAMPLES = 400
MAX_WATCHED = 6
MAX_LEVELS = 3
UNREACHED_SAMPLES = 8
WALK_SECONDS = 3.0
RISE = 1.02
"""How much wider, per object above, the elements of a container have become at least."""


class Growth(NamedTuple):
    """Growth of what has one signature."""

    signature: int
    bytes: int
    more: int  # tensors more than before
    tensors: list[LiveTensor]  # all that are there now
    in_graph: bool


class Level(NamedTuple):
    """Place on the way where there are more objects than before."""

    signature: int  # of the elements
    rise: float
    gained: int


class Finding:
    """Holder, as one of the places on the way where the growth may take place."""

    def __init__(self, way: Trail, container: int | None, *, named: int, rooted: bool, in_cycle: bool) -> None:
        self.way = way
        self.container = container
        self.named = named  # what to look for in code: way.objects[named]
        self.rooted = rooted
        self.in_cycle = in_cycle
        self.in_graph = False
        self.replaced = False  # a tensor that is replaced by a longer one
        self.filled = False  # the elements of the container get more, and not the container
        self.chained = False  # the first of a chain of objects of one class
        self.targets: list[Target] = []
        self.gained = 0
        self.bound: int | None = None
        self.keys: set[Key] = set()
        self.tensors: list[LiveTensor] = []
        self.below_graph: set[int] = set()  # ids of those of its tensors that a graph holds

    @property
    def container_object(self) -> object:
        """Container that got longer, or None."""
        return None if self.container is None else self.way.objects[self.container]

    @property
    def has_graph(self) -> bool:
        """Whether a graph is what makes it cost memory: it is in one, or most of its tensors carry one."""
        carrying = sum(live.key.has_graph or id(live) in self.below_graph for live in self.tensors)
        return self.in_graph or 2 * carrying > len(self.tensors)


class Holder(NamedTuple):
    """What grew together, and the places where it may have grown, the most likely first."""

    growths: list[Growth]
    candidates: list[Finding]

    @property
    def bytes(self) -> int:
        """Bytes that it holds more than at the first look."""
        return sum(one.bytes for one in self.growths)


class Comparison:
    """Comparison of a look with the table of the one before."""

    def __init__(self, look: Look, then: Table, *, show_keys: bool) -> None:
        self._look = look
        self._then = then
        self._names = look.signatures
        self._show_keys = show_keys
        self._now = look.table()

    def grown(self) -> list[Growth]:
        """Return what holds more than before, most first; GPUs before the host."""
        found = []
        for signature, tensors in self._look.held.items():
            entry, before = self._entries(signature)
            more = entry.bytes - before.bytes
            if more > 0:
                in_graph = self._names.is_graph(signature)
                found.append(Growth(signature, more, entry.tensors - before.tensors, tensors, in_graph))
        return sorted(found, key=lambda one: (is_on_host(one.tensors[0].key), -one.bytes))

    def holders(self, most: int) -> list[Holder]:
        """Return the holders of what has grown, and of what nothing can be seen to hold."""
        together: dict[int, list[Growth]] = {}
        levels: dict[int, list[Level]] = {}
        for growth in self.grown():
            found = self._levels(growth.signature)
            key = found[0].signature if found else growth.signature
            together.setdefault(key, []).append(growth)
            levels[key] = found
        ranked = sorted(together.items(), key=lambda item: -sum(one.bytes for one in item[1]))
        holders = [Holder(growths, self._candidates(growths, levels[key])) for key, growths in ranked[:most]]
        return [*(one for one in holders if one.candidates), *self._unreached()]

    def _entries(self, signature: int) -> tuple[Entry, Entry]:
        key = self._names.keys[signature]
        return self._now.entry(key), self._then.entry(key)

    def _levels(self, signature: int) -> list[Level]:
        """Return where on the way there are more objects for each one above, the largest rise first."""
        line = self._names.line(signature)
        found = []
        for above, one in zip(line, line[1:]):
            if self._names.is_graph(one):
                continue
            (now, before), (now_above, before_above) = self._entries(one), self._entries(above)
            fan = now.width / max(1, now_above.width)
            fan_before = before.width / before_above.width if before.width and before_above.width else min(1.0, fan)
            gained = now.width - before.width
            if gained >= 1 and fan > fan_before * RISE:
                found.append(Level(one, fan / fan_before, gained))
        return sorted(found, key=lambda level: -level.rise)[:MAX_LEVELS]

    def _candidates(self, growths: list[Growth], levels: list[Level]) -> list[Finding]:
        growth = growths[0]
        visible = self._look.outputs.get(growth.signature, []) if growth.in_graph else growth.tensors
        ways = self._ways(visible)
        if not ways:
            return []
        found = [one for one in (self._container(ways, level) for level in levels) if one is not None]
        found += self._filled(ways, levels, growths) if found and not growth.in_graph else []
        if not found:
            found = [self._by_name(ways, growth)]
        for one in found:
            one.in_graph = growth.in_graph
            one.keys = {live.key for part in growths for live in (*part.tensors, *visible)}
            one.tensors = [live for part in growths for live in part.tensors]
            below = [part for part in growths if self._is_below_graph(part)]
            one.below_graph = {id(live) for part in below for live in part.tensors}
        return found

    def _is_below_graph(self, growth: Growth) -> bool:
        """Return whether a graph holds these tensors: in what it has saved, or in the context of a custom function."""
        line = self._names.line(growth.signature)
        return growth.in_graph or any(self._names.label(one) == AUTOGRAD_NODE for one in line)

    def _ways(self, tensors: list[LiveTensor]) -> list[list[int]]:
        """Return the ways to some of the tensors, evenly spread, the shortest first, and the youngest of those."""
        step = max(1, len(tensors) // MAX_SAMPLES)
        places = self._look.marking.places
        ways = [self._look.marking.path(places[id(one.tensor)]) for one in tensors[::step] if id(one.tensor) in places]
        return sorted(ways, key=lambda way: (len(way), -way[-1]))

    def _containers(self, ways: list[list[int]], level: Level) -> dict[int, list[int]]:
        """Return the containers whose elements are at this level with the way to one, those of most ways first."""
        tops: dict[int, list[int]] = {}
        counts: dict[int, int] = {}
        for way in ways:
            position = next((at for at, one in enumerate(way) if self._signature(one) == level.signature), None)
            if position:
                tops.setdefault(way[position - 1], way[: position + 1])
                counts[way[position - 1]] = counts.get(way[position - 1], 0) + 1
        return {place: tops[place] for place in sorted(tops, key=lambda place: -counts[place])}

    def _filled(self, ways: list[list[int]], levels: list[Level], growths: list[Growth]) -> list[Finding]:
        """Return the containers whose elements get more tensors, though they may be all there: watched as a whole.

        That is one some of whose elements have no tensor yet, or one of many containers, of which only a few can be
        watched by themselves.
        """
        order = self._look.marking.order
        for level in levels:
            tops = self._containers(ways, level)
            if not tops or not self._names.label(level.signature).startswith("["):
                continue
            way = next(one for one in ways if next(iter(tops)) in one)
            container = way.index(next(iter(tops)))
            if len(tops) > MAX_WATCHED:
                shared = (set(one) for one in tops.values())
                container = len(set(way).intersection(*shared)) - 1
            elif sum(length_of(order[place]) or 0 for place in tops) <= self._entries(level.signature)[0].width:
                continue
            if container < 0 or elements_of(order[way[container]]) is None:
                continue
            named = self._named_below(way, container)
            finding = self._finding(way, container, named=named)
            if (finding.container or 0) < 0:  # a class is named by itself
                continue
            finding.filled = True
            finding.gained = max(1, sum(one.more for one in growths))
            self._watch(finding, way[: container + 1], f"{BELOW}{len(way) - 1 - container}")
            if bound_of(finding.way.objects[finding.named]) is None:
                return [finding]
        return []

    def _named_below(self, way: list[int], container: int) -> int:
        """Return where on the way what code fills is: the container that a tensor is in, or an attribute with it."""
        objects = [self._look.marking.order[place] for place in way]
        last = len(objects) - 1
        above = objects[last - 2] if last >= container + 2 else None
        is_element = elements_of(objects[last - 1]) is not None and instance_dict(above) is not objects[last - 1]
        return last - 1 if is_element else last

    def _container(self, ways: list[list[int]], level: Level) -> Finding | None:
        """Return the container whose elements are at this level, and watch it, or the largest of its kind."""
        tops = self._containers(ways, level)
        if not tops:
            return None
        ranked = list(tops)[:MAX_WATCHED]
        way = tops[ranked[0]]
        position = len(way) - 2
        head = self._head_of_chain(way)
        if head is not None:
            finding = self._finding(way[: head + 1], None, named=head)
            finding.chained = True
        else:
            finding = self._finding(next(one for one in ways if ranked[0] in one), position, named=position)
        finding.gained = level.gained
        for place in ranked:
            if head is None:
                how = how_to_measure(self._look.marking.order[place])
                self._watch(finding, tops[place][:-1], how)
            else:
                self._watch(finding, way[: head + 1], CHAIN)
        finding.bound = bound_of(self._look.marking.order[ranked[0]])
        return finding

    def _head_of_chain(self, way: list[int]) -> int | None:
        """Return where on the way the object is that holds one of its own class at the end; None if it does not."""
        order = self._look.marking.order
        owner = len(way) - 2
        last, inner = order[way[-1]], order[way[owner]]
        above = order[way[owner - 1]] if owner > 0 else None
        if inner is instance_dict(above) or (true_instance(above, FunctionType) and inner is above.__closure__):
            owner -= 1
        kind = type(cell_contents(last) if true_instance(last, CellType) else last)
        return owner if are_links(kind, type(order[way[owner]])) else None

    def _by_name(self, ways: list[list[int]], growth: Growth) -> Finding:
        """Return the name of a tensor that is longer than what had the name before, or has a longer graph."""
        finding = self._finding(ways[0], None, named=len(ways[0]) - 1)
        root = self._look.marking.order[ways[0][0]]
        running = self._look.heap.frames.get(id(root))
        counted = (
            tasks_target(root, self._look.heap) if running is None else frames_target(running.frame, self._look.heap)
        )
        now, before = self._entries(self._names.line(growth.signature)[0])
        if counted is not None and now.width > before.width:  # more threads or tasks run this, and each keeps its own
            finding.gained = now.width - before.width
            finding.targets.append(counted)
            return finding
        modules = self._modules(ways[0], growth)
        if modules is not None:
            return modules
        finding.replaced = not growth.in_graph
        entry, before = self._entries(growth.signature)
        finding.gained = entry.width - before.width if growth.in_graph else growth.bytes
        for way in ways[:MAX_WATCHED]:
            self._watch(finding, way, GRAPH if growth.in_graph else BYTES)
        return finding

    def _modules(self, way: list[int], growth: Growth) -> Finding | None:
        """Return sys.modules, where there are more modules of this name, but for its number, than before."""
        order, heap = self._look.marking.order, self._look.heap
        name = heap.modules.get(id(order[way[0]]))
        now, before = self._entries(self._names.line(growth.signature)[0])
        if name is None or name not in sys.modules or not 0 < before.width < now.width:
            return None
        above = (vars(sys), sys.modules, sys.modules[name])
        words = trail((*above, *(order[place] for place in way)), heap, show_keys=self._show_keys)
        finding = Finding(words, 1, named=1, rooted=True, in_cycle=False)
        finding.gained = now.width - before.width
        one = target(above[:2], heap, LENGTH, len(sys.modules))
        finding.targets += [one] if one is not None else []
        return finding

    def _signature(self, place: int) -> int:
        return self._names.seen(place)

    def _finding(self, way: list[int], container: int | None, *, named: int) -> Finding:
        order = self._look.marking.order
        short = from_last_class(order, way[: named + 1], self._look.heap) + way[named + 1 :]
        cut = len(way) - len(short)
        objects = tuple(order[place] for place in short)
        words = trail(objects, self._look.heap, show_keys=self._show_keys)
        return Finding(
            words, None if container is None else container - cut, named=named - cut, rooted=True, in_cycle=False
        )

    def _watch(self, finding: Finding, way: list[int], how: str) -> None:
        order = self._look.marking.order
        last = order[way[-1]]
        one = target([order[place] for place in way], self._look.heap, how, measure(last, how) or 0)
        if one is not None:
            finding.targets.append(one)

    def _unreached(self) -> list[Holder]:
        """Return what no root leads to: reference cycles, and what only native code refers to."""
        found: dict[tuple[str, bool], Holder] = {}
        for kind, tensors in self._look.unreached.items():
            before = self._then.entry(hash((UNREACHED, kind)))
            more = bytes_of(tensors) - before.bytes
            if more <= 0:
                continue
            growth = Growth(NO_PARENT, more, len(tensors) - before.tensors, tensors, in_graph=False)
            samples = [live.tensor for live in tensors[:: max(1, len(tensors) // UNREACHED_SAMPLES)]]
            paths = walk(samples[:UNREACHED_SAMPLES], self._look.heap, WALK_SECONDS)
            finding = self._unrooted(max(paths, key=lambda path: (path.in_cycle, len(path.objects))), growth)
            alike = found.setdefault((finding.way.text(), finding.in_cycle), Holder([], [finding]))
            alike.growths.append(growth)
            alike.candidates[0].keys |= finding.keys
            if alike.candidates[0] is not finding:
                alike.candidates[0].tensors += finding.tensors
        return list(found.values())

    def _unrooted(self, path: HolderPath, growth: Growth) -> Finding:
        objects = from_instance(path.objects) if path.in_cycle and not path.rooted else path.objects
        words = trail(objects, self._look.heap, show_keys=self._show_keys)
        finding = Finding(words, None, named=len(objects) - 1, rooted=path.rooted, in_cycle=path.in_cycle)
        finding.tensors = list(growth.tensors)
        finding.keys = {live.key for live in growth.tensors}
        return finding


def from_instance(objects: tuple[object, ...]) -> tuple[object, ...]:
    """Return the path from the instance that it leads to first, if only a bound method or plain containers come before.

    A cycle has no beginning: an instance says more than a method that is bound to it, or a list that it is in.
    """
    for position, item in enumerate(objects[:-1]):
        if not true_instance(item, MethodType, dict, list, tuple, set):
            return objects[position:] if type(item).__flags__ & HEAP_TYPE else objects
    return objects
