"""Write what the child found about each holder: its path, the line that fills it, and the classic cause by name."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.code_index import CodeIndex
from gpuagent_client.blame.findings import Comparison, Finding, Holder
from gpuagent_client.blame.fork import ThreadFrame
from gpuagent_client.blame.graphs import exposes_saved_tensors
from gpuagent_client.blame.heap import Carried, true_instance
from gpuagent_client.blame.indirect import (
    DOUBT,
    REGISTERING,
    handles_of,
    line_of_cached_property,
    lines_by_calls,
    lines_by_made_names,
    lines_in_own_methods,
    lines_that_register,
    lines_that_replace,
)
from gpuagent_client.blame.judgment import ALTERNATIVES
from gpuagent_client.blame.lines import ADDRESSES, addresses
from gpuagent_client.blame.look import Look, Table, take_look
from gpuagent_client.blame.paths import (
    Handle,
    Trail,
    cell_contents,
    class_name,
    code_name,
    instance_dict,
    is_tensor_type,
    relative,
    type_name,
)
from gpuagent_client.blame.sites import AT_EXIT, BACKWARD, HOWS, MAX_SITES, Site, lines_that_say, sites
from gpuagent_client.blame.tensors import Key, described, exact_types
from gpuagent_client.blame.watch import encode, length_of


class Cause(NamedTuple):
    """Why memory stays, and what to do about it."""

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
ASYNC_GENERATOR = Cause("a suspended generator holds tensors", "exhaust or aclose() it")
PARTIAL = Cause("a functools.partial holds tensors", "drop the partial when it is done")
LOCAL = Cause("a running function keeps it in a variable", "del the variable, or bound what it collects")
CLASS = Cause("a class attribute only grows", "make it an attribute of an instance, or bound it")
CYCLE = Cause("reference cycle, freed only by gc", "break the cycle (weakref, del), or gc.collect() between requests")
SOME_GRAPH = Cause("an autograd graph holds it", "some output is kept with its graph: detach() or no_grad()")
GRADIENT = Cause(
    "outputs kept with their graph",
    "a gradient keeps the graph that keeps the gradient (create_graph=True): use torch.autograd.grad(), or set .grad to"
    " None",
)
NATIVE = Cause("held by native code", "")
CHAIN = Cause("a linked list that only grows", "bound it, or cut it behind what is still needed")
LONGER = Cause(
    "a container that only grows",
    "it is a tensor that is replaced by a longer one: keep the last N of it, or start anew at the end of each request",
)
ATTRIBUTE = Cause("an attribute keeps it", "set it to None, or detach() what it keeps")


def hook_codes(torch: ModuleType, objects: Iterable[object]) -> set[types.CodeType]:
    """Return the code of every hook that is registered on a module."""
    kinds = exact_types(torch.nn.Module)
    found: set[types.CodeType] = set()
    for item in objects:
        if type(item) in kinds:
            attributes = instance_dict(item) or {}
            for name in REGISTERING:
                hooks = attributes.get(name)
                if true_instance(hooks, dict):
                    found.update(code for hook in dict.values(hooks) for code in _callable_codes(hook))
    return found


def _callable_codes(hook: object) -> Iterator[types.CodeType]:
    if true_instance(hook, functools.partial):
        yield from _callable_codes(hook.func)
    elif true_instance(hook, types.MethodType):
        yield from _callable_codes(hook.__func__)
    elif true_instance(hook, types.FunctionType):
        yield hook.__code__
        for cell in hook.__closure__ or ():  # a wrapped hook is in there
            inner = cell_contents(cell)
            if true_instance(inner, types.FunctionType):
                yield inner.__code__
    else:
        call = getattr(type(hook), "__call__", None)  # noqa: B004 - the method is what is wanted
        if true_instance(call, types.FunctionType):
            yield call.__code__


class Case(NamedTuple):
    """Facts by which a cause is recognized."""

    kinds: frozenset[str]  # names of the classes on the way
    inside: tuple[object, ...]  # the container and what is below it
    steps: frozenset[str]
    root: object
    by_hook: bool
    in_graph: bool  # they carry a graph, or are in one
    carried: bool  # in one long graph, of a single result
    in_container: bool
    in_closure: bool = False  # the container is, and nothing of asyncio's is between them

    def through(self, *prefixes: str) -> bool:
        """Return whether the path leads through an object of such a class."""
        return any(kind.startswith(prefixes) for kind in self.kinds)

    def keeps(self, *kinds: type) -> bool:
        """Return whether what is in the container is held by one of these."""
        return any(true_instance(item, *kinds) for item in self.inside)

    def keeps_defaults(self) -> bool:
        """Return whether it is the default value of an argument: `lambda event, batch=batch: ...`."""
        return any(
            true_instance(item, types.FunctionType)
            and any(one is below for one in (item.__defaults__, item.__kwdefaults__))
            for item, below in zip(self.inside, self.inside[1:])
        )


# In this order: what the elements of a container are tells more than the container, and that more than where it is.
RULES: tuple[tuple[Callable[[Case], bool], Cause], ...] = (
    (lambda case: case.by_hook, HOOK),
    (lambda case: case.through("torch.utils.data."), DATALOADER),
    (lambda case: case.keeps(BaseException, types.TracebackType), EXCEPTION),
    (lambda case: case.in_closure and case.through("_asyncio."), CLOSURE),  # an endpoint of a server, not its task
    (lambda case: case.through("_asyncio.") or case.keeps(types.CoroutineType), TASK),
    (lambda case: case.keeps(types.AsyncGeneratorType), ASYNC_GENERATOR),
    (lambda case: case.keeps(types.GeneratorType), GENERATOR),
    (lambda case: case.keeps(types.CellType), CLOSURE),
    (lambda case: case.keeps(functools.partial), PARTIAL),
    (lambda case: case.in_container and case.keeps_defaults(), CLOSURE),
    (lambda case: case.through("functools._lru"), LRU),
    (lambda case: case.through("_queue.SimpleQueue", "queue."), WORKER),
    (lambda case: case.in_graph and case.carried, NO_GRAD),
    (lambda case: case.in_graph, GRAPH),
    (lambda case: "thread_local" in case.steps, THREAD_LOCAL),
    (lambda case: case.through("concurrent.futures.", "threading."), WORKER),
    (lambda case: "cell" in case.steps, CLOSURE),
    (lambda case: true_instance(case.root, type), CLASS),
    (lambda case: "chain" in case.steps, CHAIN),
    (lambda case: "local" in case.steps, LOCAL),
    (lambda case: case.in_container, CONTAINER),
)


def cause_of(way: Trail, *, container: int | None, in_graph: bool, carried: bool, added_by_hook: bool) -> Cause:
    """Return what keeps the tensors at the end of this path."""
    above = list(zip(way.objects, way.steps))[: container or 0]
    tasks = [at for at, (item, _) in enumerate(above) if class_name(type(item)).startswith("_asyncio.")]
    case = Case(
        kinds=frozenset(class_name(type(item)) for item in way.objects),
        inside=way.objects[container or 0 :],
        steps=frozenset(step.kind for step in way.steps),
        root=way.objects[0],
        by_hook=added_by_hook or any(step.name in REGISTERING for step in way.steps),
        in_graph=in_graph,
        carried=carried,
        in_container=container is not None,
        in_closure=any(one.kind == "cell" for _, one in above[max(tasks, default=-1) + 1 :]),
    )
    return next((cause for applies, cause in RULES if applies(case)), ATTRIBUTE)


class SecondLookInput(NamedTuple):
    """What the second look needs to know."""

    frames: list[ThreadFrame]
    carried: list[Carried]
    then: bytes
    whole: bool = True
    """Whether the first look had the time to see everything; else what it did not see would seem to have grown."""
    clock_seconds: float = 60.0


def report_holders(
    torch: ModuleType, told: SecondLookInput, *, show_keys: bool, top: int, with_addresses: bool = False
) -> Iterator[bytes]:
    """Yield as JSON what holds more than at the first look, and how the app can watch it; the last one is the whole.

    `with_addresses` adds where the tensors lie, for `add_allocating_lines`.
    """
    look = take_look(torch, told.frames, told.carried, told.clock_seconds)
    then = Table.decode(told.then)
    functions = [item for item in look.objects if type(item) is types.FunctionType]
    writer = _Writer(functions, [one.frame for one in told.frames], hook_codes(torch, look.objects))
    if look.has_graphs or not told.whole:  # there may be no time to read them; what they hold has no holder yet
        yield _report(look, then, writer, show_keys=show_keys, top=top, with_addresses=with_addresses, whole=False)
    if not told.whole:
        return
    look.read_graphs()
    yield _report(look, then, writer, show_keys=show_keys, top=top, with_addresses=with_addresses)


def _report(
    look: Look, then: Table, writer: _Writer, *, show_keys: bool, top: int, with_addresses: bool, whole: bool = True
) -> bytes:
    written = []
    for holder in Comparison(look, then, show_keys=show_keys).holders(2 * top):
        if not whole and not holder.candidates[0].rooted:
            continue
        group = writer.group(holder)
        if with_addresses:
            group[ADDRESSES] = addresses(look.torch, holder.candidates[0].tensors)
        written.append(group)
    notes = [] if exposes_saved_tensors(look.torch) else ["this torch does not let one look into autograd graphs"]
    if not look.marking.complete:
        notes.append("the app has more objects than there was time for: what is deep in it was not seen")
    if look.partly_read:
        notes.append(f"{look.partly_read} autograd graphs were longer than there was time for")
    now = look.table()
    grown = sum(one.bytes for one in now.entries.values()) - sum(one.bytes for one in then.entries.values())
    answer = {"groups": written, "notes": notes, "grown_bytes": grown}
    return json.dumps(answer).encode()


# Added to that of a line: a name further up says less about the container, and a library only does what it is told.
DOUBT_PER_NAME = 0.3
DOUBT_OF_LIBRARY = 4.0
DOUBT_OF_HEAD = 0.5
"""Doubt of a line that assigns the first of a chain, beside what it has by whose name it is."""
CALLED_AT_EXIT = (tuple, dict, types.FunctionType, types.MethodType, functools.partial)


class _Writer:
    def __init__(
        self, functions: list[types.FunctionType], frames: list[types.FrameType], hooks: set[types.CodeType]
    ) -> None:
        self._index = CodeIndex(functions, frames)
        self._hooks = hooks

    def group(self, holder: Holder) -> dict[str, object]:
        """Return one holder, for the wire."""
        return {
            "growth_bytes": holder.bytes,
            "growth_count": sum(one.more for one in holder.growths),
            "bytes": sum(live.storage_bytes for live in holder.candidates[0].tensors),
            "count": len(holder.candidates[0].tensors),
            ALTERNATIVES: [self._candidate(one) for one in holder.candidates],
        }

    def _candidate(self, finding: Finding) -> dict[str, object]:
        way, container = finding.way, finding.container
        all_sites = self._sites(finding) if finding.rooted else self._sites_of_unrooted(finding)
        adding = [site for site in all_sites if site.how != "taken"]
        cause = self._cause(finding, adding)
        return {
            "key": described(_main_kind(finding)),
            "kind": type_name(finding.container_object) if container is not None else "",
            "container": way.text(container) if container is not None else "",
            "container_length": length_of(finding.container_object) if container is not None else None,
            "path": ("autograd graph of " if finding.in_graph else "") + way.text(element=container),
            **_place(adding, finding),
            "how": adding[0].how if adding else "",
            "others": [f"{site.file}:{site.line} in {site.function}" for site in adding[1:MAX_SITES]],
            "taken_out": [f"{site.file}:{site.line}" for site in all_sites if site.how == "taken"][:MAX_SITES],
            "cause": cause.name,
            "remedy": cause.remedy,
            "targets": encode(finding.targets),
            "gained": finding.gained,
            "bound": finding.bound,
            "rooted": finding.rooted,
            "device": str(_main_kind(finding)[0].device),
        }

    def _sites(self, finding: Finding) -> list[Site]:
        """Return the lines that most certainly fill it; those of a library only if the app has none."""
        certain = self._registering(finding) or lines_in_own_methods(finding.way.objects[finding.named])
        if certain:
            return certain
        own, doubt = self._best_sites(finding, in_libraries=False)
        if doubt < DOUBT_OF_LIBRARY:
            return own
        others, doubt_of_others = self._best_sites(finding, in_libraries=True)
        if own and doubt <= doubt_of_others + DOUBT_OF_LIBRARY:
            return own
        fillers = [site for site in others if site.how != "taken"]
        owners = [handle.owner for handle in finding.way.handles(finding.named) if handle.kind == "attribute"]
        calls = lines_by_calls(owners, fillers, self._index) if fillers else []
        return [*calls, *(site for site in others if site.how == "taken")] if calls else others

    def _registering(self, finding: Finding) -> list[Site]:
        """Return the lines that register hooks, where the container is the dict in which a module keeps them."""
        if finding.container is None:
            return []
        name = next((handle.name for handle in finding.way.handles(finding.named)), "")
        hook = next(iter(finding.way.objects[finding.container + 1 :]), None)
        return lines_that_register(name, hook, self._index) if name in REGISTERING else []

    def _best_sites(self, finding: Finding, *, in_libraries: bool) -> tuple[list[Site], float]:
        """Return the lines, and how doubtful they are; infinite where none adds."""
        best: list[Site] = []
        least = float("inf")
        held = finding.way.objects[finding.named]
        for depth, handle in enumerate(handles_of(finding.way, finding.named)):
            is_itself = (finding.container is None or finding.filled) and handle.value is held
            is_tensor = is_itself and is_tensor_type(type(held))
            # The first of a chain is replaced by a new one; of functions there may be two names.
            is_assigned = is_tensor or (
                finding.chained and (is_itself or true_instance(handle.value, types.FunctionType))
            )
            found = sites(handle, self._index, keeps_elements=not is_assigned, in_libraries=in_libraries)
            if finding.replaced and any(site.from_itself for site in found):  # not where its first value is stored
                found = [site for site in found if site.from_itself or site.how in {"carried", "grown", "taken"}]
            adding = [site for site in found if site.how != "taken"]
            if adding:
                doubt = adding[0].doubt + DOUBT_PER_NAME * depth
                # That is how a chain gets longer, and how an attribute of each object fills.
                if (finding.chained or finding.filled) and is_itself and adding[0].how == "assigned":
                    doubt -= HOWS["assigned"] - DOUBT_OF_HEAD
                if doubt < least:
                    best, least = found, doubt
            elif not best:
                best = found
            if is_tensor and not adding and not in_libraries:
                best = line_of_cached_property(handle) or best
                least = min(least, HOWS["carried"] if best and best[0].how == "carried" else least)
            made = self._by_made_names(handle) if least > DOUBT and not is_tensor and not in_libraries else []
            if made:
                best, least = made, made[0].doubt
            if least < DOUBT_PER_NAME * (depth + 1):
                break
        return best, least

    def _by_made_names(self, handle: Handle) -> list[Site]:
        is_container = true_instance(handle.value, dict, list, tuple, set)
        if handle.kind == "attribute" and (replacing := lines_that_replace(handle.name, handle.owner, self._index)):
            return replacing
        owner = handle.owner if is_container else handle.value
        return [] if true_instance(owner, dict, type) else lines_by_made_names(owner, sets=not is_container)

    def _sites_of_unrooted(self, finding: Finding) -> list[Site]:
        """Return lines that are known to make what no root leads to: gradients with a graph, and exit handlers."""
        if any(key.requires_grad for key in finding.keys):
            return lines_that_say(BACKWARD, self._index)
        if not finding.in_cycle and true_instance(finding.way.objects[0], *CALLED_AT_EXIT):
            return lines_that_say(AT_EXIT, self._index)
        return []

    def _cause(self, finding: Finding, adding: list[Site]) -> Cause:
        if not finding.rooted:
            kept_by_gradient = bool(adding) and any(key.requires_grad for key in finding.keys)
            return (
                GRADIENT
                if kept_by_gradient
                else CYCLE
                if finding.in_cycle
                else SOME_GRAPH
                if finding.has_graph
                else NATIVE
            )
        if finding.replaced:
            return LONGER
        if finding.chained:
            head = finding.way.objects[finding.named]
            wraps = true_instance(head, types.FunctionType)
            return CLOSURE if wraps else EXCEPTION if true_instance(head, BaseException) else CHAIN
        return cause_of(
            finding.way,
            container=finding.container,
            in_graph=finding.has_graph,
            carried=finding.in_graph and finding.container is None,
            added_by_hook=any(site.code in self._hooks for site in adding),
        )


def _place(adding: list[Site], finding: Finding) -> dict[str, object]:
    """Return file, line and function of the code that adds, else of the function that holds it."""
    if adding:
        return {"file": adding[0].file, "line": adding[0].line, "function": adding[0].function}
    for item in reversed(list(_codes(finding))):
        code, line = item
        return {"file": relative(code.co_filename), "line": line, "function": code_name(code)}
    return {"file": "", "line": None, "function": ""}


def _codes(finding: Finding) -> Iterable[tuple[types.CodeType, int]]:
    for item in finding.way.objects:
        for name in ("", "gi_frame", "cr_frame", "ag_frame"):
            frame = item if not name else getattr(item, name, None) if _suspends(item) else None
            if true_instance(frame, types.FrameType):
                yield frame.f_code, frame.f_lineno
        wrapped = getattr(item, "__wrapped__", None) if type_name(item) == "functools._lru_cache_wrapper" else item
        wrapped = wrapped.__func__ if true_instance(wrapped, types.MethodType) else wrapped
        if true_instance(wrapped, types.FunctionType):
            yield wrapped.__code__, wrapped.__code__.co_firstlineno


def _suspends(item: object) -> bool:
    return true_instance(item, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def _main_kind(finding: Finding) -> list[Key]:
    """Return the keys of one kind: the one with the most sizes, or else bytes."""
    kinds: dict[tuple[object, ...], int] = {}
    for live in finding.tensors:
        if live.key in finding.keys:
            kinds[live.key.kind] = kinds.get(live.key.kind, 0) + live.storage_bytes
    main = max(kinds, key=lambda kind: kinds[kind]) if kinds else next(iter(finding.keys)).kind
    return [key for key in finding.keys if key.kind == main]
