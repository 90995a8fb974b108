"""Where a piece of code changes something that it knows by a name: reads the bytecode that runs, not the source file.

The source may have been edited since the app started, or not be there at all. A name is followed through attributes,
subscripts and local aliases by the depth of the stack: a value that was pushed stays at its place until it is used up.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

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
LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST", "LOAD_ATTR", "LOAD_METHOD")
ASSIGNS = ("STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "STORE_ATTR", "STORE_FAST")
METHODS = ("LOAD_METHOD", "LOAD_ATTR")
# How deep the stack is when these come, counted from what is stored into.
STORES = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_SLICE": 3}
MAX_INSTRUCTIONS = 200_000


class Use(NamedTuple):
    """One place in a function that changes the thing."""

    how: str  # added, carried, assigned, passed on, taken
    line: int


class _Op(NamedTuple):
    name: str
    value: object
    line: int
    effect: int
    leaves: bool  # what comes next in the code does not come next when it runs


def uses(code: CodeType, name: str, loads: tuple[str, ...]) -> list[Use]:
    """How this code changes what it loads under `name` by one of these instructions."""
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
    """3.13 fuses two loads into one instruction, whose value is then a pair; the last of them is on top."""
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
    """A jump in any case; a jump on a condition goes on with the next instruction, as far as we follow."""
    jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
    return one.opname.startswith("RETURN") or (jumps and "_IF_" not in one.opname)


def _assigned(ops: list[_Op], name: str, loads: tuple[str, ...]) -> Iterator[Use]:
    """The name itself gets another value, one that may be made from its last: `total = total + loss`."""
    kinds = {load.replace("LOAD", "STORE").replace("CLASSDEREF", "DEREF") for load in loads}
    carried = any(op.name.startswith(loads) and _is_named(op, name) for op in ops)
    for op in ops:
        if op.name in kinds and op.name in ASSIGNS and op.value == name:
            yield Use("carried" if carried else "assigned", op.line)


def _follow(ops: list[_Op], index: int) -> tuple[Use | None, str | None]:
    """What becomes of the value that instruction `index` leaves on top of the stack: a use of it, or another name."""
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
    """This code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)
