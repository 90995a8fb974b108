"""Find comparisons that no figure can meet, or that mean another unit: ratios in percent, bytes in MiB.

The bounds of an expression follow from those of the families that it reads: a ratio is between 0 and 1, a flag is 0 or
1, memory is no less than nothing. They are computed by interval arithmetic, and are wide where that is not known: what
is said to be impossible is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.family import MetricType
from gpuagent.core.units import format_bytes
from gpuagent_alerts.promql.expression import Expression
from gpuagent_alerts.promql.numbers import COMPARISONS, SET_OPERATORS, power
from gpuagent_alerts.promql.syntax import Aggregation, Binary, Call, Negation, Node, Number, Selector

_MOST_BYTES = 2.0**46
"""64 TiB: more memory than a node has."""
_FEWEST_USED = 64 * 2.0**20
"""Bytes: whoever uses a GPU holds more, for its context alone."""
_FEWEST = 2.0**20
"""Bytes below which no amount of memory is worth a rule."""
_USED = frozenset(
    f"gpuagent_{name}_bytes"
    for name in ("process_memory_used", "gpu_memory_used", "mig_memory_used", "budget_used", "budget_limit")
)
_MOST_GIB, _MOST_MIB = 128.0, 1e6
"""Amounts up to these are taken for GiB and MiB, where they cannot be bytes."""
_OPPOSITES = {">": "<=", "<=": ">", "<": ">=", ">=": "<", "==": "!=", "!=": "=="}


class _Bounds(NamedTuple):
    low: float
    high: float

    @property
    def is_point(self) -> bool:
        return self.low == self.high


_ANYTHING = _Bounds(-math.inf, math.inf)
_NO_LESS_THAN_0 = _Bounds(0.0, math.inf)
_UP_TO_1 = _Bounds(0.0, 1.0)
_FAMILIES = {family.name: family for family in FAMILIES}


def implausible_comparisons(expression: Expression) -> list[str]:
    """Return what is wrong with the amounts of an expression, one text for each comparison; empty where nothing is."""
    return list(dict.fromkeys(_notes(expression.tree)))


def _notes(node: Node) -> Iterator[str]:
    if isinstance(node, Binary) and node.operator in COMPARISONS and not node.returns_bool:
        left, right = _bounds(node.left), _bounds(node.right)
        if note := _unit_note(node, left, right):
            yield note
        elif _is_never(node.operator, left, right):
            yield f"{_text(node, left, right)} can never be true{_why(node, left, right)}"
        elif _is_ratio(node) and _is_never(_OPPOSITES[node.operator], left, right):
            yield f"{_text(node, left, right)} is always true{_why(node, left, right)}"
    for child in _children(node):
        yield from _notes(child)


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Negation(operand):
            return (operand,)
        case Binary(_, left, right):
            return (left, right)
        case Aggregation(_, operand):
            return (operand,)
        case Call(_, arguments):
            return arguments
    return ()


def _is_never(operator: str, left: _Bounds, right: _Bounds) -> bool:
    return {
        ">": left.high <= right.low,
        ">=": left.high < right.low,
        "<": left.low >= right.high,
        "<=": left.low > right.high,
        "==": left.high < right.low or left.low > right.high,
        "!=": left.is_point and left == right,
    }[operator]


def _is_ratio(node: Binary) -> bool:
    return any(_unit(_family_of(side)) == "ratio" for side in (node.left, node.right))


def _family_of(node: Node) -> str:
    """Return the family whose values these are, whatever was chosen, joined or grouped; "" where they are computed."""
    match node:
        case Selector(name):
            return name or ""
        case Aggregation(("max" | "min" | "avg" | "sum" | "topk" | "bottomk"), operand):
            return _family_of(operand)
        case Call(("sort" | "sort_desc" | "label_replace" | "label_join"), (first, *_)):
            return _family_of(first)
        case Binary("*", left, right) if _is_one(right) or _is_one(left):
            return _family_of(left if _is_one(right) else right)
        case Binary(operator, left) if operator in {*COMPARISONS, "and", "unless"} and not node.returns_bool:
            return _family_of(left)
    return ""


def _is_one(node: Node) -> bool:
    """Return whether this is a family that is multiplied with for its labels alone."""
    return isinstance(node, Selector) and (node.name or "").endswith("_info")


def _text(node: Binary, left: _Bounds, right: _Bounds) -> str:
    """Return a comparison in short: names, and numbers where a side is one."""
    return f"{_side(node.left, left)} {node.operator} {_side(node.right, right)}"


def _side(node: Node, bounds: _Bounds) -> str:
    if bounds.is_point:
        return _number(bounds.low)
    if name := _family_of(node):
        return name
    names = [name for name in dict.fromkeys(_names(node)) if name]
    return f"({' ... '.join(names)})" if names else "(...)"


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:g}"


def _names(node: Node) -> Iterator[str | None]:
    if isinstance(node, Selector):
        yield node.name
    for child in _children(node):
        yield from _names(child)


def _why(node: Binary, left: _Bounds, right: _Bounds) -> str:
    """Return the reason with a way out, where one side is a number and the other can be told."""
    amount = next((side.low for side in (right, left) if side.is_point), None)
    if amount is None:
        return ""
    if _is_ratio(node):
        instead = f"; write {amount / 100:g}" if 1 < amount <= 100 else ""  # percent
        return f": a ratio is between 0 and 1{instead}"
    other = left if right.is_point else right
    if other.high == _MOST_BYTES:
        return f": it is between 0 B and {format_bytes(_MOST_BYTES)}"
    if math.isfinite(other.high):
        return f": it is between {other.low:g} and {other.high:g}"
    return f": it is never below {other.low:g}"


def _unit_note(node: Binary, left: _Bounds, right: _Bounds) -> str:
    """Return a note on an amount of memory that is too small to be in bytes; "" where there is none."""
    for side, other in ((node.left, right), (node.right, left)):
        name = _family_of(side)
        if other.is_point and _is_memory(name) and 1 < other.low < (_FEWEST_USED if name in _USED else _FEWEST):
            unit, factor = _unit_meant(other.low)
            return (
                f"{_text(node, left, right)} compares bytes with {format_bytes(other.low)}: if {unit} are meant, write"
                f" {_number(other.low)} * {factor}"
            )
    return ""


def _unit_meant(amount: float) -> tuple[str, str]:
    """Guess the unit, by what GPUs have: nvidia-smi shows MiB."""
    if amount <= _MOST_GIB:
        return "GiB", "1024^3"
    return ("MiB", "1024^2") if amount < _MOST_MIB else ("KiB", "1024")


def _is_memory(name: str) -> bool:
    family = _FAMILIES.get(name)
    return family is not None and family.unit == "bytes" and family.kind is MetricType.GAUGE


def _unit(name: str) -> str:
    family = _FAMILIES.get(name)
    return family.unit if family is not None else ""


@cache
def _of_family(name: str) -> _Bounds:
    family = _FAMILIES.get(name)
    if family is None or family.unit == "celsius" or "growth" in name:
        return _ANYTHING
    if family.kind is MetricType.GAUGE:
        if family.help.startswith("1 "):
            return _UP_TO_1
        if family.unit == "ratio" and "fan" not in name:  # a fan may turn faster than it should
            return _UP_TO_1
        if family.unit == "bytes":
            return _Bounds(0.0, _MOST_BYTES)
    return _NO_LESS_THAN_0


def _bounds(node: Node) -> _Bounds:
    """Return between which values an expression is, where it has a result."""
    found = _ANYTHING
    match node:
        case Number(value):
            found = _Bounds(value, value)
        case Selector(name):
            found = _of_family(name) if name is not None else _ANYTHING
        case Negation(operand):
            inner = _bounds(operand)
            found = _Bounds(-inner.high, -inner.low)
        case Binary(operator, left, right):
            found = _of_binary(operator, _bounds(left), _bounds(right), returns_bool=node.returns_bool)
        case Aggregation(operator, operand):
            found = _of_aggregation(operator, _bounds(operand))
        case Call(function, arguments):
            found = _of_call(function, [_bounds(each) for each in arguments])
    return _ANYTHING if math.isnan(found.low) or math.isnan(found.high) else found


def _of_binary(operator: str, left: _Bounds, right: _Bounds, *, returns_bool: bool) -> _Bounds:
    if operator in COMPARISONS:
        return _UP_TO_1 if returns_bool else left
    if operator in SET_OPERATORS:
        return _hull((*left, *right)) if operator == "or" else left
    found = _ANYTHING
    match operator:
        case "+":
            found = _Bounds(left.low + right.low, left.high + right.high)
        case "-":
            found = _Bounds(left.low - right.high, left.high - right.low)
        case "*":
            found = _hull([a * b for a in left for b in right])
        case "/" if right.low > 0 or right.high < 0:
            found = _hull([a / b for a in left for b in right])
        case "^" if left.is_point and right.is_point:
            found = _hull([power(left.low, right.low)])
    return found


def _of_aggregation(operator: str, operand: _Bounds) -> _Bounds:
    if operator in {"max", "min", "avg", "topk", "bottomk"}:
        return operand
    if operator == "group":
        return _Bounds(1.0, 1.0)
    if operator in {"count", "count_values", "stddev", "stdvar"} or (operator == "sum" and operand.low >= 0):
        return _NO_LESS_THAN_0
    return _ANYTHING


def _of_call(function: str, arguments: list[_Bounds]) -> _Bounds:
    found = _ANYTHING
    match function, arguments:
        case (("scalar" | "vector" | "sort" | "sort_desc" | "label_replace" | "label_join"), [first, *_]):
            found = first
        case "abs", [first]:
            found = first if first.low >= 0 else _NO_LESS_THAN_0
        case "clamp_min", [first, least]:
            found = _Bounds(max(first.low, least.low), max(first.high, least.high))
        case "clamp_max", [first, most]:
            found = _Bounds(min(first.low, most.low), min(first.high, most.high))
    return found


def _hull(values: Sequence[float]) -> _Bounds:
    return _ANYTHING if any(map(math.isnan, values)) else _Bounds(min(values), max(values))
