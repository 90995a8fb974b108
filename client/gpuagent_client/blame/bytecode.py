"""Read the instructions of a function: what they load and store, and which of them belong to one statement."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

MAX_INSTRUCTIONS = 200_000
STATEMENT_ENDS = ("STORE_", "POP_TOP", "POP_JUMP", "FOR_ITER", "RETURN", "DELETE_", "RESUME", "JUMP")
METHODS = ("LOAD_METHOD", "LOAD_ATTR")
ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD")


class Op(NamedTuple):
    """Instruction, with the name or constant that it has as its argument."""

    name: str
    value: object
    line: int
    effect: int
    leaves: bool  # what comes next in the code does not come next when it runs


def statement_start(ops: list[Op], index: int) -> int:
    """Return where the expression that this instruction is a part of begins."""
    while index > 0 and not ops[index - 1].name.startswith(STATEMENT_ENDS):
        index -= 1
    return index


def read_code(code: CodeType) -> Iterator[Op]:
    """Yield the instructions, each with its line and what it does to the depth of the stack."""
    line = code.co_firstlineno
    starts = dict(dis.findlinestarts(code))
    for number, one in enumerate(dis.get_instructions(code)):
        line = starts.get(one.offset) or line
        if number > MAX_INSTRUCTIONS:
            return
        effect = dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        value = code.co_consts[one.arg or 0] if one.opname == "KW_NAMES" else one.argval  # 3.11 does not tell them
        yield Op(one.opname, value, line, effect, _leaves(one))


def _leaves(one: dis.Instruction) -> bool:
    """Return whether this jumps in any case; a conditional jump is followed to the next instruction."""
    jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
    return one.opname.startswith("RETURN") or (jumps and "_IF_" not in one.opname)


PLAIN = frozenset(
    ["Counter", "LifoQueue", "OrderedDict", "PriorityQueue", "Queue", "SimpleQueue", "defaultdict", "deque", "dict",
     "list", "set"]
)  # fmt: skip
"""Classes of containers, as code calls them."""
CALLS = ("CALL", "PRECALL", "PUSH_NULL")
EMPTY = frozenset(["BUILD_LIST", "BUILD_MAP", "BUILD_SET"])


def stores_empty_container(ops: list[Op], index: int) -> bool:
    """Return whether the statement that loads something here stores an empty container in it: `self.outs[name] = []`.

    Only a container that has been made before its owner is loaded counts.
    """
    owner = index
    while owner > 0 and ops[owner].name.startswith(ATTRIBUTE_LOADS):
        owner -= 1
    value = [op for op in ops[statement_start(ops, index) : owner] if not op.name.startswith(CALLS)]
    if len(value) == 1 and value[0].name in EMPTY:
        return value[0].value == 0
    loads = all(
        op.name.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CONST", "KW_NAMES", *ATTRIBUTE_LOADS)) for op in value
    )
    return loads and any(op.value in PLAIN for op in value)


def iterated_as(ops: list[Op], index: int) -> str | None:
    """Return the variable that goes through the values of what is loaded here: `for one in self.outs.values():`."""
    at = index + 1
    while at < len(ops) and (ops[at].name.startswith(CALLS) or ops[at].value in {"values", "items"}):
        at += 1
    if [op.name for op in ops[at : at + 2]] != ["GET_ITER", "FOR_ITER"]:
        return None
    at += 2
    if at < len(ops) and ops[at].name == "UNPACK_SEQUENCE":  # of items(): the key comes first
        at += 1 if ops[at + 1].name.startswith("STORE_FAST_") else 2
    if at >= len(ops) or not ops[at].name.startswith("STORE_FAST"):
        return None
    value = ops[at].value
    return str(
        value[-1]
        if isinstance(value, tuple) and ops[at].name == "STORE_FAST_STORE_FAST"
        else value[0]
        if isinstance(value, tuple)
        else value
    )
