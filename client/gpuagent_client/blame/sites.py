"""The line that puts tensors into a container, read from the bytecode that runs.

The source may have been edited since the app started, or not be there at all. A name is followed through attributes,
subscripts and local aliases by the depth of the stack: a value that was pushed stays at its place until it is used up.
"""

from __future__ import annotations

import contextvars
import functools
import types
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from gpuagent_client.blame.bytecode import (
    ATTRIBUTE_LOADS,
    METHODS,
    Op,
    iterated_as,
    read_code,
    statement_start,
    stores_empty_container,
)
from gpuagent_client.blame.code_index import CodeIndex, nested
from gpuagent_client.blame.heap import HEAP_TYPE, module_of, true_instance, wrapped_function
from gpuagent_client.blame.paths import Handle, cell_contents, code_name, instance_dict, is_library_file, relative

ADDING = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "insert",
        "push",
        "put",
        "put_nowait",
        "setdefault",
        "update",
        "__setitem__",
    ]
)
# Methods of an object of the app's or of a library that keeps what it is given.
KEEPING = (
    "add", "append", "attach", "cache", "callback", "connect", "emit", "enter", "extend", "feed", "insert", "log",
    "observe", "on", "publish", "push", "put", "record", "register", "remember", "save", "send", "set", "store",
    "submit", "subscribe", "track", "update", "watch", "write",
)  # fmt: skip
# Methods by which a tensor gets larger in place.
GROWING = frozenset(["resize_", "set_"])
TAKING = frozenset(
    ["clear", "discard", "get_nowait", "pop", "popitem", "popleft", "remove", "task_done", "__delitem__"]
)
# Functions that only look at what they are given.
READERS = frozenset(
    [
        "bool",
        "dict",
        "enumerate",
        "id",
        "iter",
        "len",
        "list",
        "max",
        "min",
        "print",
        "repr",
        "reversed",
        "set",
        "sorted",
        "str",
        "sum",
        "tuple",
    ]
)
ASSIGNS = ("STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "STORE_ATTR", "STORE_FAST")
# How deep the stack is when these come, counted from what is stored into.
STORES = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_SLICE": 3}


# Functions of the standard library that add to what they are given.
ADDERS = frozenset(["heappush", "insort", "insort_left", "insort_right"])
# Attributes of a data frame by which its rows are stored: frame.loc[key] = row.
INDEXERS = frozenset(["at", "iat", "iloc", "loc"])


class Use(NamedTuple):
    """Instruction of a function that changes the container."""

    how: str  # added, carried, grown, assigned, passed on, taken
    line: int
    callees: tuple[str, ...] = ()  # names of what it may be passed on to
    from_itself: bool = False  # what is stored is made from what was there
    doubt: float = 0.0


def uses(code: CodeType, name: str, loads: tuple[str, ...], through: str = "") -> list[Use]:
    """Return how this code changes what it loads under `name` by one of these instructions.

    `through` is a method of it that returns what is changed, such as that of a context variable: `SPANS.get()`.
    """
    ops = list(read_code(code))
    found = list(_assigned(ops, name, loads))
    names = [(name, loads)]
    elements: set[str] = set()
    for current, kinds in names:  # grows: aliases are names too
        for index, op in enumerate(ops):
            if op.name.startswith(kinds) and _is_named(op, current) and not _is_only_read(ops, index):
                use, alias = _follow(ops, index, through if kinds is loads else "")
                if use is not None and use.how == "added" and stores_empty_container(ops, index):
                    use = use._replace(doubt=OF_EMPTY)
                if use is not None and current in elements:
                    use = use._replace(doubt=OF_ELEMENT) if use.how == "added" else None
                if use is not None:
                    again = any(_is_named(one, current) for one in ops[statement_start(ops, index) : index])
                    found.append(_passed_to(ops, index, use._replace(from_itself=use.how == "added" and again)))
                if alias is not None and (alias, ALIAS_LOADS) not in names:
                    names.append((alias, ALIAS_LOADS))
            each = iterated_as(ops, index) if op.name.startswith(kinds) and _is_named(op, current) else None
            if each is not None and (each, ALIAS_LOADS) not in names:
                names.append((each, ALIAS_LOADS))
                elements.add(each)
    return sorted(set(found), key=lambda use: use.line)


def _is_only_read(ops: list[Op], index: int) -> bool:
    """Return whether what is loaded here is the first argument of a function that only looks: len(owner.name)."""
    while index > 0 and ops[index].name.startswith(ATTRIBUTE_LOADS):  # back to where the owner is loaded
        index -= 1
    index -= 1
    if index > 0 and ops[index].name == "PUSH_NULL":  # after the function from 3.13 on
        index -= 1
    return index >= 0 and ops[index].value in READERS


def _passed_to(ops: list[Op], index: int, use: Use) -> Use:
    """Return the same use, with what the container is passed on to."""
    if use.how != "passed on":
        return use
    before = [str(op.value) for op in ops[statement_start(ops, index) : index] if op.name.startswith("LOAD_")]
    if ADDERS.intersection(before):
        return Use("added", use.line)
    return use._replace(callees=tuple(before))


def _is_named(op: Op, name: str) -> bool:
    """Return whether the instruction loads this name. 3.13 fuses two loads into one, whose value is then a pair."""
    return op.value == name or (isinstance(op.value, tuple) and op.value[-1:] == (name,))


def _assigned(ops: list[Op], name: str, loads: tuple[str, ...]) -> Iterator[Use]:
    """Yield the name itself gets another value, one that may be made from its last: `total = total + loss`."""
    kinds = {load.replace("LOAD", "STORE").replace("CLASSDEREF", "DEREF") for load in loads}
    made_from = {name}
    for index, op in enumerate(ops):  # also through variables: `new = cat([self.keys, k]); self.keys = new`
        if op.name.startswith("STORE_FAST") and _loads_any(ops, index, name, loads, made_from):
            made_from.update(op.value if isinstance(op.value, tuple) else (str(op.value),))
    for index, op in enumerate(ops):
        if op.name in kinds and op.name in ASSIGNS and op.value == name:
            carried = _loads_any(ops, index, name, loads, made_from)
            yield Use("carried" if carried else "assigned", op.line)


def _loads_any(ops: list[Op], index: int, name: str, loads: tuple[str, ...], variables: set[str]) -> bool:
    """Return whether what is stored here is made from this name, or from one of these variables."""
    for op in ops[statement_start(ops, index) : index]:
        if op.name.startswith(loads) and _is_named(op, name):
            return True
        if op.name.startswith("LOAD_FAST"):
            known = op.value if isinstance(op.value, tuple) else (op.value,)
            if any(one in variables and one != name for one in known):
                return True
    return False


def _follow(ops: list[Op], index: int, through: str) -> tuple[Use | None, str | None]:
    """Return the use of the value that instruction `index` leaves on top of the stack: a use, or another name."""
    depth = 1
    asked = False
    for before, op in zip(ops[index:], ops[index + 1 :]):
        if op.name in METHODS and depth == 1 and op.value in INDEXERS:
            continue
        if op.name in METHODS and depth == 1 and through and op.value == through:
            asked = True
        elif op.name in METHODS and depth == 1:  # not these methods: then something else is changed
            return _use(_method(str(op.value)), op), None
        if op.name == "STORE_ATTR" and depth == 1 and op.value == "data":  # of a tensor
            return _use("grown", op), None
        rotated = before.name in {"SWAP", "ROT_THREE"}  # x[k] += v
        if op.name in STORES and depth == STORES[op.name] + rotated:
            return _use("taken" if op.name == "DELETE_SUBSCR" else "added", op), None
        if op.name.startswith("STORE_FAST") and depth == 1:
            return None, str(op.value[0] if isinstance(op.value, tuple) else op.value)
        depth += op.effect
        called = op.name.startswith(("CALL", "PRECALL")) and "INTRINSIC" not in op.name
        if asked and called and depth == 1:  # what it returned is followed now
            asked = op.name == "PRECALL"
            continue
        if depth < 1 or (called and depth == 1) or op.leaves:
            return _use("passed on" if called and op.effect < 0 else None, op), None
    return None, None


def _method(name: str) -> str | None:
    """Return what a method of this name does to the container, or to what has the container."""
    if name in ADDING:
        return "added"
    if name in TAKING:
        return "taken"
    if name in GROWING:
        return "grown"
    return "called" if name.lstrip("_").split("_")[0] in KEEPING else None


def _use(how: str | None, op: Op) -> Use | None:
    return Use(how, op.line) if how is not None else None


MAX_SITES = 3
GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
ALIAS_LOADS = ("LOAD_FAST",)
CLOSURE_LOADS = ("LOAD_DEREF", "LOAD_CLASSDEREF")
LOCAL_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME")
# How certain it is that a line fills the container, by what it does and by how certain it is that it means this very
# one (see _rank): a method that appends comes before another class that appends to something of the same name, and that
# before a constructor that assigns an empty list.
HOWS = {"added": 0.0, "carried": 0.0, "grown": 0.0, "called": 2.0, "passed on": 2.0, "assigned": 3.0}
RANKS = (0.0, 0.1, 0.5, 1.5)
OF_OTHERS = 3  # from this rank on it may be another object that has an attribute of the same name
MADE_IN = frozenset(["__init__", "__new__", "__post_init__", "<module>", "setup", "reset", "clear"])
MADE = 3.0
OF_EMPTY = 1.5
"""Doubt of a line that stores an empty container: something is added to that one elsewhere."""
OF_ELEMENT = 0.2
"""Doubt of a line that adds to each element of a container."""


class Site(NamedTuple):
    """Line of the app that changes the container."""

    file: str
    line: int
    function: str
    how: str
    code: types.CodeType
    doubt: float = 0.0  # see HOWS
    from_itself: bool = False  # see Use


def sites(handle: Handle, index: CodeIndex, *, keeps_elements: bool = True, in_libraries: bool = False) -> list[Site]:
    """Return lines that put something in, most certain first; then those that take something out ("taken").

    `keeps_elements` tells a container, to which something is added, from a tensor, which is assigned as a whole. Only
    lines of libraries are returned with `in_libraries`, and only others without.
    """
    found, taking = _sites(handle, index, keeps_elements=keeps_elements, in_libraries=in_libraries)
    best = min((score for score, _ in found), default=0.0)
    near = {(_place(site), site.how): site._replace(doubt=score) for score, site in found if score == best}
    return [*sorted(near.values(), key=_place), *sorted(taking, key=_place)]


def _sites(
    handle: Handle, index: CodeIndex, *, keeps_elements: bool, in_libraries: bool
) -> tuple[list[tuple[float, Site]], list[Site]]:
    """Return the lines that put something in, with how doubtful each is, and those that take something out."""
    found: list[tuple[float, Site]] = []
    taking: list[Site] = []
    seen: set[tuple[types.CodeType, str]] = set()
    asks_an_object = _is_made_by_app(type(handle.value))
    through = "get" if true_instance(handle.value, contextvars.ContextVar) else ""
    for rank, code, name, loads in _candidates(handle, index, in_libraries=in_libraries):
        if (code, name) in seen:
            continue
        seen.add((code, name))
        for use in uses(code, name, loads, through):
            if use.how == "taken":
                if rank < OF_OTHERS:
                    taking.append(site_of(code, use))
                continue
            if use.how == "grown" and keeps_elements:  # of tensors alone
                continue
            # What a method of the app's does is written in the method.
            how = "called" if use.how == "added" and asks_an_object else use.how
            if how in {"added", "passed on", "called"} and not keeps_elements:
                continue
            if how == "assigned" and keeps_elements:  # a container is made there, and not filled
                continue
            made = how == "assigned" and code.co_name in MADE_IN
            found.append((HOWS[how] + RANKS[rank] + MADE * made + use.doubt, site_of(code, use._replace(how=how))))
            found += [(RANKS[rank], site) for site in _in_helpers(use, index)]
    return found, taking


def _is_made_by_app(kind: type) -> bool:
    """Return whether the app itself wrote methods of this class."""
    return any(not is_library(code) for one in kind.__mro__ if one.__flags__ & HEAP_TYPE for code in codes_of(one))


def _in_helpers(use: Use, index: CodeIndex) -> list[Site]:
    """Return lines of functions that add to an argument, where the container is passed on to one of that name."""
    found = []
    for function in index.own_named(use.callees):
        code = function.__code__
        for parameter in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            inner = uses(code, parameter, LOCAL_LOADS)
            found += [site_of(code, one) for one in inner if one.how == "added"]
    return found


def _place(site: Site) -> tuple[str, int]:
    return site.file, site.line


def site_of(code: types.CodeType, use: Use) -> Site:
    """Return where in the app this is."""
    return Site(relative(code.co_filename), use.line, code_name(code), use.how, code, from_itself=use.from_itself)


def _candidates(
    handle: Handle, index: CodeIndex, *, in_libraries: bool
) -> Iterator[tuple[int, types.CodeType, str, tuple[str, ...]]]:
    """Yield code that may mean this very container by a name; a lower rank is more certain."""
    owner = handle.owner
    local = owner.f_code if isinstance(owner, types.FrameType) and handle.kind == "local" else None
    if handle.kind == "default" and isinstance(owner, types.FunctionType):
        local = owner.__code__
    if (
        handle.kind == "global"
        and true_instance(owner, dict)
        and true_instance(owner.get(PARAMETERS_OF), types.FunctionType)
    ):
        local = owner[PARAMETERS_OF].__code__
    if local is not None:
        for code in nested(local) if is_library(local) == in_libraries else ():
            if handle.name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
                yield 0, code, handle.name, LOCAL_LOADS
        return
    names = index.aliases(handle.name, handle.value) if handle.kind == "global" else [handle.name]
    for name in names:
        known = handle._replace(name=name)
        for function, code in index.users(name, in_libraries=in_libraries):
            loads = _loads(known, function, code)
            rank = _rank(known, function, code) if loads else OF_OTHERS
            if loads and not (in_libraries and rank >= OF_OTHERS):  # a library knows nothing of objects of others
                yield rank, code, name, loads
    if not in_libraries:
        yield from _at_module_level(handle, index)


def _at_module_level(handle: Handle, index: CodeIndex) -> Iterator[tuple[int, types.CodeType, str, tuple[str, ...]]]:
    """Yield code of modules that is running: it is no function."""
    for frame in index.frames:
        code = frame.f_code
        if handle.kind == "global" and frame.f_globals.get(handle.name) is handle.value:
            yield 0, code, handle.name, GLOBAL_LOADS
        elif handle.kind == "attribute" and code.co_name == "<module>" and handle.name in code.co_names:
            known = {id(item) for item in (handle.owner, *handle.above)}
            knows = any(id(frame.f_globals.get(name, known)) in known for name in code.co_names)
            yield 0 if knows else OF_OTHERS, code, handle.name, ATTRIBUTE_LOADS


def _loads(handle: Handle, function: types.FunctionType, code: types.CodeType) -> tuple[str, ...]:
    """Return the instructions by which this code could load the thing."""
    if handle.kind == "cell":
        holds = any(cell_contents(cell) is handle.value for cell in function.__closure__ or ())
        return CLOSURE_LOADS if holds and handle.name in (*code.co_freevars, *code.co_cellvars) else ()
    if handle.name not in code.co_names:
        return ()
    if handle.kind == "global":
        mine = function.__globals__.get(handle.name) is handle.value
        return GLOBAL_LOADS if mine else ATTRIBUTE_LOADS if _knows_module(function, handle) else ()
    return ATTRIBUTE_LOADS


def _knows_module(function: types.FunctionType, handle: Handle) -> bool:
    """Return whether the function can say `module.NAME`."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if true_instance(value, types.ModuleType) and vars(value) is handle.owner:
            return True
    return False


def _rank(handle: Handle, function: types.FunctionType, code: types.CodeType) -> int:
    """Return how certain it is that an attribute of this name is this one."""
    if handle.kind != "attribute":
        return 0
    kinds = handle.owner.__mro__ if true_instance(handle.owner, type) else type(handle.owner).__mro__
    if any(code in set(codes_of(kind)) for kind in kinds):
        return 0  # a method of the owner
    known = {id(item) for item in (handle.owner, *handle.above)}
    if any(id(function.__globals__.get(name, known)) in known for name in code.co_names):
        return 0  # knows the owner, or whose the owner is, by a global name
    if any(cell_contents(cell) is handle.owner for cell in function.__closure__ or ()):
        return 0
    if _is_method_above(handle, function, code):
        return 1
    return 2 if function.__module__ in {module_of(kind) for kind in kinds} else OF_OTHERS


def _is_method_above(handle: Handle, function: types.FunctionType, code: types.CodeType) -> bool:
    """Return whether an object on the way has this method, but no attribute of this name: it means what it keeps."""
    if is_library(code):
        return False
    for item in handle.above:
        kinds = [kind for kind in type(item).__mro__ if kind.__flags__ & HEAP_TYPE]
        if handle.name in (instance_dict(item) or {}) or any(handle.name in vars(kind) for kind in kinds):
            continue
        if any(module_of(kind) == function.__module__ and code in set(codes_of(kind)) for kind in kinds):
            return True
    return False


def is_library(code: types.CodeType) -> bool:
    """Return whether this is code that the app brought along, and not its own."""
    return is_library_file(code.co_filename)


def lines_that_say(words: frozenset[str], index: CodeIndex) -> list[Site]:
    """Return lines of the app that use all of these names, or pass an argument by one of them."""
    found = {}
    for code in (*(code for _, code in index.own), *(frame.f_code for frame in index.frames)):
        known = {name for constant in code.co_consts if isinstance(constant, tuple) for name in constant}
        if is_library(code) or not words <= {*code.co_names, *(name for name in known if type(name) is str)}:
            continue
        for op in read_code(code):
            inside = op.value if isinstance(op.value, tuple) else (op.value,)
            if LAST_OF[words] in inside:
                found[code.co_filename, op.line] = Site(
                    relative(code.co_filename), op.line, code_name(code), "passed on", code
                )
    return sorted(found.values(), key=_place)


BACKWARD = frozenset({"create_graph"})
AT_EXIT = frozenset({"atexit", "register"})
LAST_OF = {BACKWARD: "create_graph", AT_EXIT: "register"}
MAX_WRAPPERS = 6
PARAMETERS_OF = "__parameters_of__"
"""Name of a function in a namespace whose other names are the function's parameters."""


def codes_of(kind: type) -> Iterator[types.CodeType]:
    """Yield the code of the methods of a class, also of those that decorators have wrapped."""
    for member in list(vars(kind).values()):
        for function in unwrapped(member, MAX_WRAPPERS):
            yield from nested(function.__code__)


def unwrapped(item: object, depth: int) -> Iterator[types.FunctionType]:
    """Yield the functions in a method, property, partial or decorated function, without calling anything."""
    if depth == 0:
        return
    inside: list[object] = []
    if true_instance(item, types.FunctionType):
        yield item
        inside = [wrapped_function(item), *(cell_contents(cell) for cell in item.__closure__ or ())]
    elif true_instance(item, staticmethod, classmethod):
        inside = [getattr(item, "__func__", None)]
    elif true_instance(item, property):
        inside = [item.fget, item.fset]
    elif true_instance(item, functools.partial):
        inside = [item.func]
    elif true_instance(item, types.MethodType):
        inside = [item.__func__]
    elif not true_instance(item, type):
        attributes = instance_dict(item) or {}
        inside = [attributes.get(name) for name in ("__wrapped__", "func", "fn", "_fn")]
    for one in inside:
        if one is not None and one is not item:
            yield from unwrapped(one, depth - 1)
