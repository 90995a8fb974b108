"""Mark the heap forward from its roots, as the garbage collector does, and remember by whom each object was found.

One pass gives every object one path. Roots come in an order: what lives long is found before the frames of functions
that happen to run, and names of the app before those of its libraries. gc.get_referrers() answers the same question
backward, but for a few samples only, and goes over the whole heap for each level.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, Callable, NamedTuple

from gpuagent_client.blame.arrays import base_of, is_array_type, objects_in
from gpuagent_client.blame.contexts import values_by_variable
from gpuagent_client.blame.heap import Heap, module_of, referents_of, true_instance
from gpuagent_client.blame.paths import SUSPENDED, is_library_file, suspended_frame

TRACKED = 1 << 14  # Py_TPFLAGS_HAVE_GC
CHECK_EVERY = 4096
NO_PARENT = -1
FUNCTION_FLAGS = 0x3  # CO_OPTIMIZED | CO_NEWLOCALS: variables that are not a namespace
GradientOf = Callable[[object], object]


class Deadline(NamedTuple):
    """When a look has to be done, by the CPU time and by the clock: on a busy host the clock is over first."""

    cpu_seconds: float
    clock_seconds: float

    @classmethod
    def after(cls, cpu_seconds: float, clock_seconds: float) -> Deadline:
        """Return the moment when the process has used that much more CPU time, or so long has passed by the clock."""
        return cls(time.process_time() + cpu_seconds, time.monotonic() + clock_seconds)

    def is_over(self) -> bool:
        """Return whether the one or the other has come."""
        return time.process_time() > self.cpu_seconds or time.monotonic() > self.clock_seconds


class Marking:
    """All objects that were found, parents before children."""

    def __init__(
        self, heap: Heap, tensor_types: set[type], leaf_gradient: GradientOf, until: Deadline, wanted: Iterable[object]
    ) -> None:
        """Mark until then at the latest; the paths to `wanted` are enough.

        What a running function has in a variable is not waited for: it may be reached in no other way.
        """
        self._wanted = {id(item) for item in wanted} - heap.locals.keys()
        self.order: list[object] = []
        self.parents = array("q")
        self.places: dict[int, int] = {}  # id -> place in order
        self.complete = True
        self._heap = heap
        self._tensors = tensor_types
        self._gradient_of = leaf_gradient
        self._until = until
        self._next = 0
        self._followed: dict[type, bool] = {}
        self._arrays: set[type] = set()
        self._thread_dicts: dict[int, list[object]] = {}
        self._caches_of_libraries: list[int] = []  # places of functools caches, which are expanded last
        self._context_values = values_by_variable(heap.contexts)
        for one in heap.values:
            self._thread_dicts.setdefault(id(one.owner), []).append(one.attributes)

    def mark_all(self) -> None:
        """Mark from all roots, in their order."""
        app, libraries = _namespaces(self._heap)
        frames = list(self._frames())
        roots: tuple[object, ...] = (*app, *libraries, *frames)
        for root in roots:
            self._add(root)
        early = self._note_thread_locals(libraries)
        self._next = len(self.order)
        for namespaces in (list[object](app), libraries):
            for namespace in namespaces:
                self._expand(self.places[id(namespace)], namespace)
            self._finish()
            self._note_context_values()
            self._finish()
        for place in early:
            self._expand(place, self.order[place])
        for task in (*asyncio_tasks(), *self._heap.tasks):
            self._add(task)
        self._finish()
        for frame in frames:
            for value in list(frame.f_locals.values()):
                self._note(value, self.places[id(frame)])
            self._finish()
        for place in self._caches_of_libraries:
            for child in referents_of(self.order[place]):
                self._note(child, place)
        self._finish()

    def path(self, place: int) -> list[int]:
        """Return the places from the root down to this one."""
        found = []
        while place != NO_PARENT:
            found.append(place)
            place = self.parents[place]
        found.reverse()
        return found

    def _finish(self) -> None:
        """Expand what was added, until there is nothing new, or all tensors have been found and expanded."""
        order = self.order
        while self._next < len(order):
            if self._next % CHECK_EVERY == 0 and self._until.is_over():
                self.complete = False
                self._next = len(order)
                return
            if not self._wanted:
                self._next = len(order)
                return
            self._expand(self._next, order[self._next])
            self._next += 1

    def _note_thread_locals(self, namespaces: Iterable[object]) -> range:
        """Note the threading.local objects of libraries, which are not waited for; return where they are."""
        first = len(self.order)
        for namespace in namespaces:
            for value in list(dict.values(namespace)) if true_instance(namespace, dict) else ():
                if true_instance(value, threading.local):
                    self._note(value, self.places[id(namespace)])
                    self._wanted.discard(id(value))
        return range(first, len(self.order))

    def _note_context_values(self) -> None:
        """Note the values of the context variables that were found, unless a name leads to the context itself."""
        for variable, values in self._context_values.items():
            if variable in self.places:
                for value in values:
                    self._note(value, self.places[variable])

    def _expand(self, place: int, item: object) -> None:
        """Note what an object refers to.

        A cache of a library may know functions of the app, as that of a web framework does: whatever else knows them
        says more.
        """
        self._wanted.discard(id(item))
        if type(item) is functools._lru_cache_wrapper and _is_of_library(item):  # noqa: SLF001 - it has no public name
            self._caches_of_libraries.append(place)
            return
        for child in self._children(item):
            self._note(child, place)

    def _note(self, child: object, place: int) -> None:
        key = id(child)
        if key in self.places:
            return
        kind = type(child)
        followed = self._followed.get(kind)
        if followed is None:
            followed = self._followed[kind] = self._is_followed(kind)
        if followed:
            self.places[key] = len(self.order)
            self.order.append(child)
            self.parents.append(place)

    def _add(self, root: object) -> None:
        if id(root) not in self.places:
            self.places[id(root)] = len(self.order)
            self.order.append(root)
            self.parents.append(NO_PARENT)

    def _is_followed(self, kind: type) -> bool:
        if issubclass(kind, (ModuleType, CodeType)):
            return False
        if is_array_type(kind):
            self._arrays.add(kind)
            return True
        return bool(_flags(kind) & TRACKED)

    def _children(self, item: object) -> Iterable[object]:
        kind = type(item)
        if kind is FrameType and id(item) in self._heap.frames:
            return ()  # expanded as a root, outermost first
        if kind in self._tensors:
            return self._children_of_tensor(item)
        if kind is BuiltinFunctionType:  # a method of an object: asyncio keeps such ones of tasks that wait
            owner = item.__self__  # type: ignore[attr-defined]
            return () if true_instance(owner, ModuleType) else (owner,)
        if kind in self._arrays:
            return (base_of(item), *objects_in(item), *referents_of(item))
        if issubclass(kind, SUSPENDED):
            return self._variables_of(item)
        extra = self._thread_dicts.get(id(item))
        return (*extra, *referents_of(item)) if extra else referents_of(item)

    def _children_of_tensor(self, item: object) -> Iterable[object]:
        gradient = self._gradient_of(item)
        if gradient is None:
            return referents_of(item)
        if id(gradient) not in self.places:
            self._wanted.add(id(gradient))
        return (*referents_of(item), gradient)

    def _variables_of(self, suspended: object) -> Iterable[object]:
        """Return what a generator or coroutine refers to: while it runs, its variables are known to its frame only."""
        frame = suspended_frame(suspended)
        if frame is None or id(frame) not in self._heap.frames:
            return referents_of(suspended)
        variables = frame.f_locals
        return (*list(variables.values()), *(one for one in referents_of(suspended) if one is not variables))

    def _frames(self) -> Iterator[FrameType]:
        """Yield running frames, thread by thread, the outermost first: what it holds lives longest."""
        threads: dict[int, list[FrameType]] = {}
        for one in self._heap.frames.values():
            threads.setdefault(one.thread_id, []).append(one.frame)
        for frames in threads.values():
            for frame in reversed(frames):
                if frame.f_code.co_flags & FUNCTION_FLAGS == FUNCTION_FLAGS:
                    yield frame


def _is_of_library(cache: functools._lru_cache_wrapper[object]) -> bool:
    """Return whether a library wrote the function whose results this cache keeps."""
    function = cache.__wrapped__
    return true_instance(function, FunctionType) and is_library_file(function.__code__.co_filename)


def _flags(kind: type) -> int:
    return int(type.__dict__["__flags__"].__get__(kind))


def _namespaces(heap: Heap) -> tuple[list[dict[str, object]], list[object]]:
    """Return the namespaces of the app's own modules, and those of its libraries."""
    app: list[dict[str, object]] = []
    libraries: list[object] = []
    for name, module in list(sys.modules.items()):
        if not true_instance(module, ModuleType):
            continue
        namespace = object.__getattribute__(module, "__dict__")
        if heap.modules.get(id(namespace)) != name:
            continue  # an alias
        file = namespace.get("__file__")
        own = name == "__main__" or (type(file) is str and not is_library_file(file))
        (app if own and not name.startswith("gpuagent_client") else libraries).append(namespace)
    # A name that several modules have is that of the one that made it: packages and the script import it from there.
    app.sort(key=lambda namespace: (heap.modules[id(namespace)] == "__main__", "__path__" in namespace))
    return app, libraries


def asyncio_tasks() -> list[object]:
    """Return the tasks that asyncio knows, past any code of theirs; from 3.14 on those of loops that run now."""
    module = sys.modules.get("asyncio.tasks")
    found: dict[int, object] = {}
    for name in ("_scheduled_tasks", "_all_tasks", "_eager_tasks"):  # 3.12 and newer; before; and those begun at once
        known = getattr(module, name, None)
        references = getattr(known, "data", known)
        for one in list(references) if true_instance(references, set) else ():
            task = one() if callable(one) else one
            if task is not None:
                found[id(task)] = task
    all_tasks: Callable[[object], Iterable[object]] | None = getattr(module, "_c_all_tasks", None)
    if sys.version_info >= (3, 14) and all_tasks is not None:
        for loop in _running_loops():
            found.update((id(task), task) for task in all_tasks(loop))
    return list(found.values())


def _running_loops() -> list[object]:
    """Return the loops that threads run now: from 3.13 on no copy of variables stays where one asks for them."""
    found: dict[int, object] = {}
    for innermost in sys._current_frames().values():  # noqa: SLF001 - documented, for debuggers
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name == "run_forever" and frame.f_globals.get("__name__") == "asyncio.base_events":
                loop = frame.f_locals.get("self")
                found[id(loop)] = loop
            frame = frame.f_back
    return list(found.values())


def code_of_task(task: object) -> CodeType | None:
    """Return the code of the coroutine that a task of asyncio's runs; None for anything else, and where it is done."""
    kind: Any = type(task)
    if module_of(kind) != "_asyncio" or type.__dict__["__name__"].__get__(kind) != "Task" or kind.done(task):
        return None
    found = (one for one in gc.get_referents(task) if true_instance(one, CoroutineType, GeneratorType))
    coroutine = next(found, None)
    if coroutine is None:
        return None
    code: CodeType = getattr(coroutine, "cr_code" if true_instance(coroutine, CoroutineType) else "gi_code")
    return code


def from_last_class(order: list[object], places: list[int], heap: Heap) -> list[int]:
    """Return the path from its last class on: a class of a module is named by itself, wherever it was found."""
    for position in range(len(places) - 1, 0, -1):
        if heap.is_named_class(order[places[position]]):
            return places[position:]
    return places


MANY_ALLOCATIONS = 50_000


def collector_frees_cycles() -> bool:
    """Return whether the collector will free reference cycles by itself before long."""
    return gc.isenabled() and 0 < gc.get_threshold()[0] <= MANY_ALLOCATIONS
