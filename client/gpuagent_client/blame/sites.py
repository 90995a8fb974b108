"""The line that puts tensors into a container, read from the bytecode that runs.

The source may have been edited since the app started, or not be there at all. A name is followed through attributes,
subscripts and local aliases by the depth of the stack: a value that was pushed stays at its place until it is used up.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import NamedTuple

from gpuagent_client.blame.heap import true_instance
from gpuagent_client.blame.paths import Handle, cell_contents, code_name, relative

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
METHODS = ("LOAD_METHOD", "LOAD_ATTR")
# How deep the stack is when these come, counted from what is stored into.
STORES = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_SLICE": 3}
MAX_INSTRUCTIONS = 200_000


class Use(NamedTuple):
    """Instruction of a function that changes the container."""

    how: str  # added, carried, assigned, passed on, taken
    line: int


class _Op(NamedTuple):
    name: str
    value: object
    line: int
    effect: int
    leaves: bool  # what comes next in the code does not come next when it runs


def uses(code: CodeType, name: str, loads: tuple[str, ...]) -> list[Use]:
    """Return how this code changes what it loads under `name` by one of these instructions."""
    ops = list(_read(code))
    found = list(_assigned(ops, name, loads))
    names = [(name, loads)]
    for current, kinds in names:  # grows: aliases are names too
        for index, op in enumerate(ops):
            reader = index > 0 and ops[index - 1].value in READERS
            if op.name.startswith(kinds) and _is_named(op, current) and not reader:
                use, alias = _follow(ops, index)
                if use is not None:
                    found.append(use)
                if alias is not None and all(alias != known for known, _ in names):
                    names.append((alias, ("LOAD_FAST",)))
    return sorted(set(found), key=lambda use: use.line)


def _is_named(op: _Op, name: str) -> bool:
    """Return whether the instruction loads this name. 3.13 fuses two loads into one, whose value is then a pair."""
    return op.value == name or (isinstance(op.value, tuple) and op.value[-1:] == (name,))


def _read(code: CodeType) -> Iterator[_Op]:
    line = code.co_firstlineno
    starts = dict(dis.findlinestarts(code))
    for number, one in enumerate(dis.get_instructions(code)):
        line = starts.get(one.offset) or line
        if number > MAX_INSTRUCTIONS:
            return
        effect = dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        yield _Op(one.opname, one.argval, line, effect, _leaves(one))


def _leaves(one: dis.Instruction) -> bool:
    """Return whether this jumps in any case; a conditional jump is followed to the next instruction."""
    jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
    return one.opname.startswith("RETURN") or (jumps and "_IF_" not in one.opname)


def _assigned(ops: list[_Op], name: str, loads: tuple[str, ...]) -> Iterator[Use]:
    """Yield the name itself gets another value, one that may be made from its last: `total = total + loss`."""
    kinds = {load.replace("LOAD", "STORE").replace("CLASSDEREF", "DEREF") for load in loads}
    carried = any(op.name.startswith(loads) and _is_named(op, name) for op in ops)
    for op in ops:
        if op.name in kinds and op.name in ASSIGNS and op.value == name:
            yield Use("carried" if carried else "assigned", op.line)


def _follow(ops: list[_Op], index: int) -> tuple[Use | None, str | None]:
    """Return the use of the value that instruction `index` leaves on top of the stack: a use, or another name."""
    depth = 1
    for before, op in zip(ops[index:], ops[index + 1 :]):
        if op.name in METHODS and depth == 1:  # not these methods: then something else is changed
            return _use(
                {**dict.fromkeys(ADDING, "added"), **dict.fromkeys(TAKING, "taken")}.get(str(op.value)), op
            ), None
        rotated = before.name in {"SWAP", "ROT_THREE"}  # x[k] += v
        if op.name in STORES and depth == STORES[op.name] + rotated:
            return _use("taken" if op.name == "DELETE_SUBSCR" else "added", op), None
        if op.name.startswith("STORE_FAST") and depth == 1:
            return None, str(op.value[0] if isinstance(op.value, tuple) else op.value)
        depth += op.effect
        called = op.name.startswith(("CALL", "PRECALL")) and "INTRINSIC" not in op.name
        if depth < 1 or (called and depth == 1) or op.leaves:
            return _use("passed on" if called and op.effect < 0 else None, op), None
    return None, None


def _use(how: str | None, op: _Op) -> Use | None:
    return Use(how, op.line) if how is not None else None


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield this code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


MAX_SITES = 3
GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
CLOSURE_LOADS = ("LOAD_DEREF", "LOAD_CLASSDEREF")
ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
LOCAL_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME")
RANKS = ("added", "carried", "assigned", "passed on")


class Site(NamedTuple):
    """Line of the app that changes the container."""

    file: str
    line: int
    function: str
    how: str
    code: types.CodeType


def sites(handle: Handle, functions: Iterable[types.FunctionType], frames: Iterable[types.FrameType]) -> list[Site]:
    """Return lines that put something in, most certain first; then those that take something out ("taken")."""
    found: list[tuple[int, Site]] = []
    seen: set[types.CodeType] = set()
    for rank, code, loads in _candidates(handle, list(functions), list(frames)):
        if code not in seen:
            seen.add(code)
            found.extend((rank, _site(code, use)) for use in uses(code, handle.name, loads))
    adding = [(rank, site) for rank, site in found if site.how != "taken"]
    best = min(((rank, RANKS.index(site.how)) for rank, site in adding), default=(0, 0))
    near = [site for rank, site in adding if (rank, RANKS.index(site.how)) == best]
    taking = [site for rank, site in found if site.how == "taken" and rank <= best[0]]
    return [*sorted(near, key=_place), *sorted(taking, key=_place)]


def _place(site: Site) -> tuple[str, int]:
    return site.file, site.line


def _site(code: types.CodeType, use: Use) -> Site:
    return Site(relative(code.co_filename), use.line, code_name(code), use.how, code)


def _candidates(
    handle: Handle, functions: list[types.FunctionType], frames: list[types.FrameType]
) -> Iterator[tuple[int, types.CodeType, tuple[str, ...]]]:
    """Yield code that may mean this very container by the name; a lower rank is more certain."""
    if handle.kind == "local" and isinstance(handle.owner, types.FrameType):
        yield 0, handle.owner.f_code, LOCAL_LOADS
        return
    for function in functions:
        for code in nested(function.__code__):
            loads = _loads(handle, function, code)
            if loads:
                yield _rank(handle, function, code), code, loads
    for frame in frames:  # code at module level is no function, but may be running
        if handle.kind == "global" and frame.f_globals.get(handle.name) is handle.value:
            yield 0, frame.f_code, GLOBAL_LOADS


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
    if any(code in set(_codes_of(kind)) for kind in kinds):
        return 0  # a method of the owner
    known = {id(item) for item in (handle.owner, *handle.above)}
    if any(id(function.__globals__.get(name, known)) in known for name in code.co_names):
        return 0  # knows the owner, or whose the owner is, by a global name
    if any(cell_contents(cell) is handle.owner for cell in function.__closure__ or ()):
        return 0
    if function.__module__ in {kind.__module__ for kind in kinds}:
        return 1
    return 3 if is_library(code) else 2


def is_library(code: types.CodeType) -> bool:
    """Return whether this is code that the app brought along, and not its own."""
    return "site-packages" in code.co_filename or "/lib/python3" in code.co_filename or code.co_filename.startswith("<")


def _codes_of(kind: type) -> Iterator[types.CodeType]:
    for member in list(vars(kind).values()):
        plain = getattr(member, "__func__", None) if true_instance(member, staticmethod, classmethod) else member
        if true_instance(plain, types.FunctionType):
            yield from nested(plain.__code__)
