"""Watch a few containers while they grow, in the app itself: a walk along a known path, and a length.

The child of the second look knows by which way each suspected container is reached, and tells the app. The app follows
names and references, calls nothing of its own code, and keeps nothing. What cannot be reached any more is no longer
there, or was replaced: it has not stayed.
"""

from __future__ import annotations

import functools
import gc
import itertools
import queue
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuagent_client.blame.arrays import array_size, holds_objects, objects_in
from gpuagent_client.blame.contexts import CONTEXT_VALUE, Context, ContextReferences, position_of
from gpuagent_client.blame.filling import BELOW, tensors_below
from gpuagent_client.blame.heap import Heap, are_links, true_instance, wrapped_by
from gpuagent_client.blame.marking import asyncio_tasks, code_of_task
from gpuagent_client.blame.paths import attribute_of, instance_dict, is_tensor_type, suspended_frame
from gpuagent_client.blame.tensors import bytes_without_storage

MAX_SCANNED = 20_000
MAX_STEPS = 60
MAX_NODES = 2_000
MAX_LINKS = 5_000
MAX_FILLED = 200_000
ATTRIBUTES = "__dict__"
LENGTH, FILLED, BYTES, GRAPH, CHAIN, FRAMES, TASKS = "length", "filled", "bytes", "graph", "chain", "frames", "tasks"
NO_CONTEXTS = ContextReferences()
LOCALS_ARE_VIEWS = sys.version_info >= (3, 13)  # PEP 667; before, they are a copy that the frame keeps


class Target(NamedTuple):
    """What is watched: a way from a root, and what is measured at its end."""

    root: tuple[object, ...]
    steps: tuple[tuple[str | None, int | None, int], ...]  # name, position, id
    measure: str
    value: int  # at the second look


def length_of(container: object) -> int | None:
    """Return how many things are in it, without asking a subclass; None where it is no container."""
    kinds: tuple[Any, ...] = (dict, list, deque, set, tuple, frozenset)
    for kind in kinds:
        if true_instance(container, kind):
            return int(kind.__len__(container))
    if true_instance(container, functools._lru_cache_wrapper):  # noqa: SLF001 - the class has no public name
        return int(container.cache_info().currsize)
    if true_instance(container, queue.SimpleQueue):
        return int(container.qsize())
    size = array_size(container)
    if size is not None:
        return size
    attributes = instance_dict(container)
    return len(attributes) if attributes is not None else None


def bound_of(container: object) -> int | None:
    """Return how many things it can hold; None where it does not say."""
    if true_instance(container, deque):
        return deque.maxlen.__get__(container)  # type: ignore[no-any-return]
    if true_instance(container, functools._lru_cache_wrapper):  # noqa: SLF001
        return container.cache_info().maxsize
    return None


def target(objects: Sequence[object], heap: Heap, measure: str, value: int) -> Target | None:
    """Return how the app reaches the last of these objects, the first of which is a root; for the child."""
    root = objects[0]
    start: tuple[object, ...]
    if id(root) in heap.modules:
        start = ("module", heap.modules[id(root)])
    elif id(root) in heap.frames:
        start = ("frame", heap.frames[id(root)].thread_id, id(root))
    elif any(task is root for task in (*asyncio_tasks(), *heap.tasks)):
        start = ("task", id(root))
    else:
        return None
    if len(objects) > MAX_STEPS:
        return None
    steps = (_step_or_context(above, below, heap.contexts) for above, below in zip(objects, objects[1:]))
    return Target(start, tuple(steps), measure, value)


def _step_or_context(parent: object, child: object, contexts: Sequence[Context]) -> tuple[str | None, int | None, int]:
    position = position_of(contexts, parent, child)
    return _step_to(parent, child) if position is None else (CONTEXT_VALUE, position, id(child))


def frames_target(frame: types.FrameType, heap: Heap) -> Target:
    """Return how the app counts the threads that are in a function, for the child."""
    same = sum(one.frame.f_code is frame.f_code for one in heap.frames.values())
    return Target(("code", id(frame.f_code)), (), FRAMES, same)


def tasks_target(task: object, heap: Heap) -> Target | None:
    """Return how the app counts the tasks of asyncio's that run the same coroutine function, for the child."""
    code = code_of_task(task)
    if code is None:
        return None
    same = {id(one) for one in (*asyncio_tasks(), *heap.tasks) if code_of_task(one) is code}
    return Target(("code", id(code)), (), TASKS, len(same))


def _tasks_of(code: object) -> int:
    return sum(id(code_of_task(task)) == code for task in asyncio_tasks())


def _frames_of(code: object) -> int:
    found = 0
    for innermost in sys._current_frames().values():  # noqa: SLF001 - documented, for debuggers
        frame: types.FrameType | None = innermost
        while frame is not None:
            found += id(frame.f_code) == code
            frame = frame.f_back
    return found


def _step_to(parent: object, child: object) -> tuple[str | None, int | None, int]:
    if true_instance(parent, dict):
        keys = enumerate(list(dict.items(parent)))
        found = next(((key, number) for number, (key, value) in keys if value is child), (None, None))
        return (found[0] if type(found[0]) is str else None), found[1], id(child)
    if true_instance(parent, list, tuple, deque) or holds_objects(parent):
        return None, next((number for number, one in enumerate(_elements(parent)) if one is child), None), id(child)
    frame = parent if true_instance(parent, types.FrameType) else suspended_frame(parent)
    if frame is not None:
        names = [name for name, value in frame.f_locals.items() if value is child]
        return (names[0] if names else None), None, id(child)
    if instance_dict(parent) is child:
        return ATTRIBUTES, None, id(child)
    name = attribute_of(parent, child)
    if name is not None:
        return name, None, id(child)
    return _slot_name(child), next((at for at, one in enumerate(_referents(parent)) if one is child), None), id(child)


def _slot_name(child: object) -> str:
    """Return what stands for the name of a slot that has none, as in the classes of extensions: what is in there."""
    return f"<{type(child).__name__}>"


def _elements(item: object) -> Iterable[object]:
    kinds: tuple[Any, ...] = (list, tuple, deque)
    for kind in kinds:
        if true_instance(item, kind):
            found: Iterable[object] = kind.__iter__(item)
            return found
    return objects_in(item)


def encode(targets: Iterable[Target]) -> list[list[object]]:
    """Return targets as they go through JSON."""
    return [list(one) for one in targets]


def decode(targets: Iterable[Sequence[Any]]) -> list[Target]:
    """Return the targets again."""
    return [
        Target(tuple(root), tuple((name, position, key) for name, position, key in steps), measure, value)
        for root, steps, measure, value in targets
    ]


def measure_all(targets: Sequence[Target], contexts: ContextReferences = NO_CONTEXTS) -> list[int | None]:
    """Return what each comes to now, in the app; None where it cannot be reached any more."""
    found: list[int | None] = []
    for one in targets:
        try:
            found.append(_measure(one, contexts))
        except Exception:  # noqa: BLE001 - changed under our eyes by another thread, or freed
            found.append(None)
    return found


def _measure(one: Target, contexts: ContextReferences) -> int | None:
    if one.measure == FRAMES:
        return _frames_of(one.root[1])
    if one.measure == TASKS:
        return _tasks_of(one.root[1])
    item = _root(one.root, one.steps[0] if one.steps else None)
    steps = one.steps[1:] if one.root[0] == "frame" else one.steps
    for name, position, key in steps:
        if item is None:
            return None
        in_context = name == CONTEXT_VALUE
        item = contexts.value(item, position) if in_context else _follow(item, name, position, key)
    return None if item is None else measure(item, one.measure)


def measure(item: object, how: str) -> int | None:
    """Return the length of a container or chain, the bytes of a tensor or the nodes of its graph, or None."""
    if how.startswith(BELOW):
        return tensors_below(item, int(how[len(BELOW) :]))
    if how == BYTES:
        return _bytes_of(item)
    if how == GRAPH:
        return _nodes_above(item)
    if how == FILLED:
        return filled_of(item)
    return _links_below(item) if how == CHAIN else length_of(item)


def filled_of(container: object) -> int | None:
    """Return how many places of a list are not None: one that was made at its full length fills up in place."""
    length = list.__len__(container) if true_instance(container, list) else array_size(container)
    if length is None or length > MAX_FILLED:
        return None
    return sum(one is not None for one in _elements(container))


def how_to_measure(container: object) -> str:
    """Return what tells whether a container got longer."""
    filled = filled_of(container)
    return FILLED if filled is not None and filled < (length_of(container) or 0) else LENGTH


def _root(root: tuple[object, ...], step: tuple[str | None, int | None, int] | None) -> object:
    """Return the namespace or task; of a frame, the value of its variable, as its locals are not to be kept."""
    if root[0] == "module":
        module = sys.modules.get(str(root[1]))
        return object.__getattribute__(module, "__dict__") if true_instance(module, types.ModuleType) else None
    if root[0] == "task":
        return next((task for task in asyncio_tasks() if id(task) == root[1]), None)
    frame = sys._current_frames().get(int(str(root[1])))  # noqa: SLF001 - documented, for debuggers
    while frame is not None and id(frame) != root[2]:
        frame = frame.f_back
    return None if frame is None or step is None else _variable(frame, step[0], step[2])


def _variable(frame: types.FrameType, name: str | None, key: int) -> object:
    """Return the value of a variable, without leaving a copy of them all behind."""
    variables = frame.f_locals
    try:
        if name is not None and name in variables:
            return variables[name]
        return next((value for value in variables.values() if id(value) == key), None)
    finally:
        if not LOCALS_ARE_VIEWS and type(variables) is dict and sys.getrefcount(variables) <= OWN_REFERENCES:
            variables.clear()  # the copy would keep what the function lets go of


OWN_REFERENCES = 3  # the frame's, ours, and the argument of getrefcount


def _follow(item: object, name: str | None, position: int | None, key: int) -> object:
    if true_instance(item, dict):
        return dict.get(item, name) if name is not None else _element(list_values(item), position, key)
    if true_instance(item, list, tuple, deque):
        return _element(item, position, key)
    if holds_objects(item):
        return _element(objects_in(item), position, key) if (array_size(item) or 0) <= MAX_SCANNED else None
    return _follow_attribute(item, name, position, key)


def _follow_attribute(item: object, name: str | None, position: int | None, key: int) -> object:
    attributes = instance_dict(item)
    if attributes is not None and (id(attributes) == key or name == ATTRIBUTES):
        return attributes
    referents = _referents(item)
    found = next((child for child in referents if id(child) == key), None)
    if found is None and position is not None:  # it has been replaced by something of the same class
        child = referents[position] if position < len(referents) else None
        return child if _slot_name(child) == name else None
    frame = suspended_frame(item) if found is None else None
    if frame is not None:  # it is running now, or the variable has another value
        return _variable(frame, name, key)
    return found if found is not None or name is None else _attribute(item, attributes, name)


def _attribute(item: object, attributes: Mapping[str, object] | None, name: str) -> object:
    if attributes is not None and name in attributes:
        return attributes[name]
    members = (vars(kind).get(name) for kind in type(item).__mro__)
    return next((member.__get__(item) for member in members if type(member) is types.MemberDescriptorType), None)


def list_values(item: dict[Any, object]) -> list[object]:
    """Return the values of a dict that is small enough to be gone through; else none."""
    return list(dict.values(item)) if dict.__len__(item) <= MAX_SCANNED else []


def _element(items: Any, position: int | None, key: int) -> object:  # noqa: ANN401 - list, tuple or deque
    if len(items) <= MAX_SCANNED:
        for one in items:
            if id(one) == key:
                return one
    if position is None:
        return None
    return next(itertools.islice(iter(items), position, None), None)


def _referents(item: object) -> list[object]:
    if true_instance(item, types.ModuleType):
        return []
    found = gc.get_referents(item)
    if true_instance(item, threading.local):
        found += [one for inner in found if type(inner) is dict for one in list(inner.values()) if type(one) is dict]
    return found


def _bytes_of(item: object) -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or not is_tensor_type(type(item)):
        return None
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - nothing of the app may run
        try:
            return int(torch.Tensor.untyped_storage(item).nbytes())
        except (RuntimeError, NotImplementedError):
            return bytes_without_storage(torch, item)


def _nodes_above(item: object) -> int | None:
    """Return how many nodes the graph of a tensor has, at most MAX_NODES."""
    torch = sys.modules.get("torch")
    if torch is None or not is_tensor_type(type(item)):
        return None
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        first = torch.Tensor.grad_fn.__get__(item)
    if first is None:
        return 0
    todo, seen = deque([first]), {first}
    while todo and len(seen) < MAX_NODES:
        for following, _ in getattr(todo.popleft(), "next_functions", ()):
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return min(len(seen), MAX_NODES)


def _links_below(item: object) -> int:
    """Return how many objects of one class, or exceptions, follow each other, at most MAX_LINKS."""
    kind, count, seen = type(item), 0, set()
    current: object | None = item
    while current is not None and id(current) not in seen and count < MAX_LINKS:
        seen.add(id(current))
        count += 1
        if true_instance(current, types.FunctionType):
            below = wrapped_by(current)
        else:
            below = gc.get_referents(current)
            below += [one for inner in below if type(inner) is dict for one in list(inner.values())]
        links = [one for one in below if are_links(kind, type(one)) and id(one) not in seen]
        current = next((one for one in links if type(one) is kind), links[0] if links else None)
    return count


LIMITS = {GRAPH: float(MAX_NODES), CHAIN: float(MAX_LINKS)}
AGAIN_PART = 0.1
"""Share of what is expected, from the growth between the looks, that has to come after the second look."""
FALL_PART = 0.3


def goes_on(values: Sequence[int | None], at_first: int, at_second: int, expected: float, limit: float) -> bool:
    """Return whether what was measured after the second look goes on growing, and has never been emptied.

    `at_first` and `at_second` are its values at the looks; `expected` is how much it should grow after the second one
    if it goes on as it did between them, and `limit` is as far as was counted.
    """
    known = [value for value in values if value is not None]
    if not known or values[-1] is None:
        return False
    if min(at_second, *known) >= limit:  # too many to be counted, all the time
        return True
    gained = at_second - at_first
    if known[-1] - at_second < max(1.0, expected * AGAIN_PART):
        return False
    highest = at_second
    for value in known:
        if highest - value > max(1.0, FALL_PART * max(gained, 1)):
            return False
        highest = max(highest, value)
    return True
