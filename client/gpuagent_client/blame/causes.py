"""The classic causes by name, each with its remedy."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.heap import really
from gpuagent_client.blame.paths import cell_contents, class_name, instance_dict
from gpuagent_client.blame.tensors import exact_types
from gpuagent_client.blame.trail import Trail

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)


class Cause(NamedTuple):
    """Why it stays, and what to do about that."""

    name: str
    remedy: str


GRAPH = Cause("outputs kept with their graph", "the tensors carry their graph: detach() or no_grad()")
NO_GRAD = Cause(
    "no no_grad in inference",
    "each result is computed from the one before, and its graph holds them all: run it under torch.inference_mode()"
    " or no_grad(), and keep .item() of a total, detach() of a state",
)
HOOK = Cause("a hook keeps activations", "remove the hook (handle.remove()), or let it keep a detached, bounded copy")
CONTAINER = Cause("a container that only grows", "bound it (deque(maxlen=...), an LRU), or delete what is done")
EXCEPTION = Cause(
    "an exception keeps its frames",
    "keep str(error) instead of the exception, or call traceback.clear_frames(error.__traceback__)",
)
CLOSURE = Cause(
    "a closure holds tensors", "drop the callback when it is done, or bind what it needs and not the tensor"
)
DATALOADER = Cause(
    "a DataLoader holds tensors", "end its iterator (del it), and keep no batches in the dataset or sampler"
)
WORKER = Cause("a worker holds tensors", "bound its queue (Queue(maxsize=...)), and drop each item when it is done")
LRU = Cause(
    "a functools cache holds tensors", "give it a smaller maxsize, cache by id and not by tensor, or cache_clear()"
)
THREAD_LOCAL = Cause("threading.local holds tensors", "delete the attribute at the end of each request")
TASK = Cause("a task that does not end holds tensors", "await or cancel it; del the tensor before it waits")
GENERATOR = Cause("a suspended generator holds tensors", "exhaust or close() it")
PARTIAL = Cause("a functools.partial holds tensors", "drop the partial when it is done")
LOCAL = Cause("a running function keeps it in a variable", "del the variable, or bound what it collects")
CLASS = Cause("a class attribute only grows", "make it an attribute of an instance, or bound it")
CYCLE = Cause("reference cycle, freed only by gc", "break the cycle (weakref, del), or gc.collect() between requests")
SOME_GRAPH = Cause("an autograd graph holds it", "some output is kept with its graph: detach() or no_grad()")
NATIVE = Cause("held by native code", "")
CHAIN = Cause("a linked list that only grows", "bound it, or cut it behind what is still needed")
ATTRIBUTE = Cause("an attribute keeps it", "set it to None, or detach() what it keeps")


def hook_codes(torch: ModuleType, objects: Iterable[object]) -> set[types.CodeType]:
    """Return the code of every hook that is registered on a module."""
    kinds = exact_types(torch.nn.Module)
    found: set[types.CodeType] = set()
    for item in objects:
        if type(item) in kinds:
            attributes = instance_dict(item) or {}
            for name in HOOKS:
                hooks = attributes.get(name)
                if really(hooks, dict):
                    found.update(code for hook in dict.values(hooks) for code in _codes(hook))
    return found


def _codes(hook: object) -> Iterator[types.CodeType]:
    if really(hook, functools.partial):
        yield from _codes(hook.func)
    elif really(hook, types.MethodType):
        yield from _codes(hook.__func__)
    elif really(hook, types.FunctionType):
        yield hook.__code__
        for cell in hook.__closure__ or ():  # a wrapped hook is in there
            inner = cell_contents(cell)
            if really(inner, types.FunctionType):
                yield inner.__code__
    else:
        call = getattr(type(hook), "__call__", None)  # noqa: B004 - the method is what is wanted
        if really(call, types.FunctionType):
            yield call.__code__


class Case(NamedTuple):
    """What a cause is recognized by."""

    kinds: frozenset[str]  # names of the classes on the way
    inside: tuple[object, ...]  # the container and what is below it
    steps: frozenset[str]
    root: object
    by_hook: bool
    in_graph: bool  # they carry a graph, or are in one
    carried: bool  # in one long graph, of a single result
    in_container: bool

    def through(self, *prefixes: str) -> bool:
        """Return whether the way leads through an object of such a class."""
        return any(kind.startswith(prefixes) for kind in self.kinds)

    def keeps(self, *kinds: type) -> bool:
        """Return whether what is in the container is held by one of these."""
        return any(really(item, *kinds) for item in self.inside)


# In this order: what the elements of a container are tells more than the container, and that more than where it is.
RULES: tuple[tuple[Callable[[Case], bool], Cause], ...] = (
    (lambda case: case.by_hook, HOOK),
    (lambda case: case.through("torch.utils.data."), DATALOADER),
    (lambda case: case.keeps(BaseException, types.TracebackType), EXCEPTION),
    (lambda case: case.through("_asyncio.") or case.keeps(types.CoroutineType, types.AsyncGeneratorType), TASK),
    (lambda case: case.keeps(types.GeneratorType), GENERATOR),
    (lambda case: case.keeps(types.CellType), CLOSURE),
    (lambda case: case.keeps(functools.partial), PARTIAL),
    (lambda case: case.through("functools._lru"), LRU),
    (lambda case: case.through("_queue.SimpleQueue", "queue."), WORKER),
    (lambda case: case.in_graph and case.carried, NO_GRAD),
    (lambda case: case.in_graph, GRAPH),
    (lambda case: "thread_local" in case.steps, THREAD_LOCAL),
    (lambda case: case.through("concurrent.futures.", "threading."), WORKER),
    (lambda case: "cell" in case.steps, CLOSURE),
    (lambda case: really(case.root, type), CLASS),
    (lambda case: "chain" in case.steps, CHAIN),
    (lambda case: "local" in case.steps, LOCAL),
    (lambda case: case.in_container, CONTAINER),
)


def cause_of(way: Trail, *, container: int | None, in_graph: bool, carried: bool, added_by_hook: bool) -> Cause:
    """Return what keeps the tensors at the end of this path."""
    case = Case(
        kinds=frozenset(class_name(type(item)) for item in way.objects),
        inside=way.objects[container or 0 :],
        steps=frozenset(step.kind for step in way.steps),
        root=way.objects[0],
        by_hook=added_by_hook or any(step.name in HOOKS for step in way.steps),
        in_graph=in_graph,
        carried=carried,
        in_container=container is not None,
    )
    return next((cause for applies, cause in RULES if applies(case)), ATTRIBUTE)
