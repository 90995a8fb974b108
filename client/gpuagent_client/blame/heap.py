"""Walk from tensors up to what holds them: breadth first over referrers, all samples at once.

One gc.get_referrers() goes over the whole heap, some 15 ms for 165 000 objects, whether it asks for one object or for a
hundred. So the walk asks for all of a level together, and for two to seven levels in most apps.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextvars import Context
from types import CellType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

from gpuagent_client.blame.fork import ThreadFrame

if TYPE_CHECKING:
    from typing import TypeGuard


T = TypeVar("T")


def true_instance(item: object, *kinds: type[T]) -> TypeGuard[T]:
    """Return whether the item is an instance of one of these, whatever its `__class__` says."""
    return issubclass(type(item), kinds)


def referents_of(item: object) -> list[object]:
    """Return what an object refers to; of a module its namespace alone.

    Before 3.12.6 and 3.13.0 the module _asyncio also names iterators that are free to be used again. To hold one and to
    let go of it frees it twice, and from then on the collector goes round in a circle for ever
    (https://github.com/python/cpython/issues/122695).
    """
    if true_instance(item, ModuleType):
        return [object.__getattribute__(item, "__dict__")]
    return gc.get_referents(item)


HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement or by type()


def module_of(kind: type) -> str:
    """Return the name of the module of a class, past any metaclass; empty where the class has none, or no text."""
    try:
        module: object = type.__dict__["__module__"].__get__(kind)
    except AttributeError:  # deleted, or never set: a class made by exec() in a namespace without a name
        return ""
    return module if type(module) is str else ""


def base_named(kind: type, module: str, name: str) -> type | None:
    """Return the class of this module and name that a class is or derives from, past any metaclass; None if none."""
    name_of = type.__dict__["__name__"].__get__
    bases: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return next((one for one in bases if name_of(one) == name and module_of(one) == module), None)


def _names(kind: type) -> tuple[str, str]:
    """Return module and qualified name of a class, past any metaclass; the module is empty where it is no text."""
    return module_of(kind), type.__dict__["__qualname__"].__get__(kind)


def _is_in_its_module(kind: type) -> bool:
    """Return whether the module of a class knows the class by its name."""
    module, name = _names(kind)
    known: object = sys.modules.get(module)
    for part in name.split("."):
        if true_instance(known, ModuleType):
            names = object.__getattribute__(known, "__dict__")
        elif true_instance(known, type):
            names = type.__dict__["__dict__"].__get__(known)
        else:
            return False
        known = names.get(part)
    return known is kind


def unnamed_classes(objects: Iterable[object]) -> frozenset[int]:
    """Return the ids of classes that no name of a module leads to: made at run time, they live as instances do.

    The only class that a function has made is named by the function, as if it were a class of the module.
    """
    kinds = [
        item for item in objects if true_instance(item, type) and type.__dict__["__flags__"].__get__(item) & HEAP_TYPE
    ]
    found = [kind for kind in kinds if not _is_in_its_module(kind)]
    counts = Counter(map(_names, found))
    return frozenset(id(kind) for kind in found if "<locals>" not in _names(kind)[1] or counts[_names(kind)] > 1)


CONTAINERS = (list, tuple, dict, set, frozenset, type)


class Chains:
    """Chains of objects of one class that refer to each other; read once for each class that needs it."""

    def __init__(self, known: frozenset[int]) -> None:
        self._known = known
        self._above: dict[type, dict[int, object]] = {}

    def head(self, item: object) -> object:
        """Return the head of the chain that this is in, or the item itself."""
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


WRAPPERS = (FunctionType, CellType)
"""A function that wraps another one, which it knows as `__wrapped__`, or by a variable of its closure."""


def can_be_chained(kind: type) -> bool:
    """Return whether its instances are made by the app, and no containers; or are exceptions or functions."""
    if issubclass(kind, (BaseException, *WRAPPERS)):
        return True
    return bool(kind.__flags__ & HEAP_TYPE) and not issubclass(kind, CONTAINERS)


def are_links(kind: type, other: type) -> bool:
    """Return whether instances of these classes can be links of a chain: exceptions of any class, else of one."""
    if issubclass(kind, BaseException):
        return issubclass(other, BaseException)
    return kind is other and can_be_chained(kind)


def same_below(item: object) -> list[object]:
    """Return the objects of the same class that this one refers to as an attribute; functions that a function wraps."""
    if true_instance(item, FunctionType):
        return wrapped_by(item)
    found: list[object] = []
    for child in gc.get_referents(item):
        if type(child) is type(item):
            found.append(child)
        elif type(child) is dict:  # the attributes
            found += [value for value in list(child.values()) if type(value) is type(item)]
    return found


def wrapped_function(function: FunctionType) -> object:
    """Return the `__wrapped__` of a function; None if it has none.

    Through the collector: to ask a function for its `__dict__` gives it one, for good.
    """
    names = function.__globals__, function.__kwdefaults__
    known = (
        one for one in gc.get_referents(function) if type(one) is dict and all(one is not other for other in names)
    )
    return next((one["__wrapped__"] for one in known if "__wrapped__" in one), None)


def wrapped_by(function: FunctionType) -> list[object]:
    """Return the functions that a function knows as `__wrapped__`, or by a variable of its closure."""
    found = [wrapped_function(function)]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # nothing is in it, yet
            continue
    return [one for one in found if true_instance(one, FunctionType)]


MAX_LEVELS = 16
MAX_WIDTH = 400
ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None)})


class HolderPath(NamedTuple):
    """Path that holds a sample: the objects from a root down to the tensor."""

    objects: tuple[object, ...]
    rooted: bool  # False: the walk found nothing further up
    exhausted: bool  # nothing further up exists, as against: the limits ended the walk
    in_cycle: bool  # somebody on the way is held by somebody below


class ThreadValues(NamedTuple):
    """Values of a threading.local in one thread."""

    owner: object
    attributes: dict[str, object]


Carried = Union[ThreadValues, Context]
"""What the app holds on to over a fork, which would be gone in the child."""


class Heap(NamedTuple):
    """Heap of the app as the child found it; made before anything of ours could be mistaken for a holder."""

    known: frozenset[int]  # ids of all objects of the app
    modules: Mapping[int, str]  # id of a module's namespace -> the module's name
    frames: Mapping[int, ThreadFrame]  # id of a running frame -> itself
    locals: Mapping[int, tuple[FrameType, ...]]  # id of a value -> running frames that have it in a variable
    thread_values: Mapping[int, object]  # id of the attributes in one thread -> their threading.local
    values: tuple[ThreadValues, ...] = ()
    unnamed: frozenset[int] = frozenset()  # ids of classes that no name of a module leads to
    tasks: tuple[object, ...] = ()  # of asyncio
    contexts: tuple[Context, ...] = ()  # of threads and tasks, where the app uses context variables

    def is_named_class(self, item: object) -> bool:
        """Return whether this is a class that its module knows by name, so that it is named by itself."""
        return true_instance(item, type) and id(item) not in self.unnamed

    def is_root(self, item: object) -> bool:
        """Return whether this is held by the interpreter itself: modules, classes, and functions that are running.

        By the real type: isinstance() would ask a lazy proxy what it claims to be.
        """
        if true_instance(item, type):
            return self.is_named_class(item)
        return true_instance(item, ModuleType) or id(item) in self.modules or id(item) in self.frames


def index_heap(objects: list[object], frames: list[ThreadFrame], carried: list[Carried]) -> Heap:
    """Index the heap as it was before the census made objects of its own."""
    known = frozenset(map(id, objects))
    modules: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if true_instance(module, ModuleType):
            modules.setdefault(id(object.__getattribute__(module, "__dict__")), name)  # aliases: the first wins
    running = {id(one.frame): one for one in frames}
    holders: dict[int, tuple[FrameType, ...]] = {}
    for one in frames:
        if one.frame.f_code.co_name == "<module>":  # its locals are the module's namespace
            continue
        for value in list(one.frame.f_locals.values()):
            if type(value) not in ATOMS:
                holders[id(value)] = (*holders.get(id(value), ()), one.frame)
    values = [one for one in carried if type(one) is not Context]
    contexts = tuple(one for one in carried if type(one) is Context)
    ours = {id(objects), id(frames), id(carried), *map(id, values)}
    owners = {id(one.attributes): one.owner for one in values}
    kind = getattr(sys.modules.get("_asyncio"), "Task", None)  # from 3.14 on asyncio has no set of them
    tasks = tuple(item for item in objects if type(item) is kind)
    unnamed = unnamed_classes(objects)
    return Heap(known - ours, modules, running, holders, owners, tuple(values), unnamed, tasks, contexts)


class _Walk:
    """State of a walk: which sample was reached through whom."""

    def __init__(self, samples: list[object]) -> None:
        self.below: list[dict[int, object]] = [{id(sample): None} for sample in samples]  # referrer -> whom it holds
        self.ends: list[object] = list(samples)  # the highest object found so far
        self.rooted = [False] * len(samples)
        self.in_cycle = [False] * len(samples)

    def note(self, sample: int, referrer: object, child: object) -> None:
        self.below[sample][id(referrer)] = child
        self.ends[sample] = referrer

    def is_chained(self, sample: int, referrer: object, child: object) -> bool:
        """Return whether the referrer holds one of its own class, directly or in its attributes."""
        under = self.below[sample][id(child)] if type(child) is dict else child
        return type(under) is type(referrer) and can_be_chained(type(referrer))

    def path(self, sample: int, exhausted: bool) -> HolderPath:
        objects = []
        item = self.ends[sample]
        while item is not None:
            objects.append(item)
            item = self.below[sample][id(item)]
        return HolderPath(tuple(objects), self.rooted[sample], exhausted, self.in_cycle[sample])


def walk(samples: list[object], heap: Heap, seconds: float) -> list[HolderPath]:
    """Return what holds each of these, as far as 16 levels, 400 objects a level and the time allow."""
    state = _Walk(samples)
    frontier: dict[int, object] = {}
    tracks: dict[int, set[int]] = {}
    for index, sample in enumerate(samples):
        frontier[id(sample)] = sample
        tracks.setdefault(id(sample), set()).add(index)
    until = time.monotonic() + seconds
    exhausted = False
    chains = Chains(heap.known)
    for _ in range(MAX_LEVELS):
        if not frontier or time.monotonic() > until:
            exhausted = not frontier
            break
        frontier, tracks = _one_level(state, heap, chains, frontier, tracks)
    return [state.path(index, exhausted) for index in range(len(samples))]


def _one_level(
    state: _Walk, heap: Heap, chains: Chains, frontier: dict[int, object], tracks: dict[int, set[int]]
) -> tuple[dict[int, object], dict[int, set[int]]]:
    above: dict[int, object] = {}
    above_tracks: dict[int, set[int]] = {}
    for referrer, children in _referrers(heap, frontier):
        is_root = heap.is_root(referrer)
        for child in children:
            for sample in tracks[id(child)]:
                if state.rooted[sample]:
                    continue
                if id(referrer) in state.below[sample]:
                    state.in_cycle[sample] = True
                    continue
                state.note(sample, referrer, child)
                state.rooted[sample] = is_root
                highest = referrer
                if not is_root and state.is_chained(sample, referrer, child):
                    highest = chains.head(referrer)
                    if highest is not referrer and id(highest) not in state.below[sample]:
                        state.note(sample, highest, referrer)
                if not is_root and (id(highest) in above or len(above) < MAX_WIDTH):
                    above[id(highest)] = highest
                    above_tracks.setdefault(id(highest), set()).add(sample)
    going_on = {
        key: {sample for sample in indices if not state.rooted[sample]} for key, indices in above_tracks.items()
    }
    return {key: item for key, item in above.items() if going_on[key]}, going_on


def _referrers(heap: Heap, frontier: dict[int, object]) -> list[tuple[object, list[object]]]:
    """Return the objects of the app that refer to these, and to which of them."""
    found: list[tuple[object, list[object]]] = []
    for key, item in frontier.items():  # running frames are invisible to the collector from Python 3.11 on
        found.extend((frame, [item]) for frame in heap.locals.get(key, ()))
        if key in heap.thread_values:  # the link was cut by the fork
            found.append((heap.thread_values[key], [item]))
    for referrer in gc.get_referrers(*frontier.values()):
        if id(referrer) in heap.known and id(referrer) not in heap.frames:
            children = {id(child): child for child in referents_of(referrer) if id(child) in frontier}
            found.append((referrer, list(children.values())))
    return found
