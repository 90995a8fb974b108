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
from gpuagent_alerts.rules.shares import (
    FAR_ABOVE,
    Share,
    amount_of,
    constant,
    free_share_limit,
    is_label_family,
    share_between,
    share_of,
)

_MOST_BYTES = 2.0**46
"""64 TiB: more memory than a node has."""
LEAST_HELD_BYTES = 320 * 2.0**20
"""Whoever computes on a GPU holds about as much for its context and its kernels, so that more is no finding. It is also
more than what comes of every amount of GiB that GPUs have if it is taken for MiB."""
MOST_FREE = 0.5
"""Share of the memory that may be free at most where what is free is called too little."""
_FEWEST_USED = 64 * 2.0**20
"""Bytes: whoever uses a GPU holds more, for its context alone."""
_FEWEST = 2.0**20
"""Bytes below which no amount of memory is worth a rule."""
_USED = frozenset(
    f"gpuagent_{name}_bytes"
    for name in (
        "process_memory_used", "process_resident_memory", "gpu_memory_used", "mig_memory_used", "budget_used"
    )
)  # fmt: skip
"""Families of what somebody holds."""
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
_OF_A_FAN = _Bounds(0.0, 2.0)
"""A fan may turn faster than it should."""
_FAMILIES = {family.name: family for family in FAMILIES}


def implausible_comparisons(expression: Expression) -> list[str]:
    """Return what is wrong with the amounts of an expression, one text for each comparison; empty where nothing is."""
    return list(dict.fromkeys(text for text, _ in _notes(expression.tree)))


def misread_numbers(expression: Expression) -> list[str]:
    """Return those of the texts that tell of a number in another unit, or of one that its figure never comes to.

    A condition that is merely always true, as `gpuagent_gpu_clock_hertz > 0`, is none.
    """
    return list(dict.fromkeys(text for text, is_misread in _notes(expression.tree) if is_misread))


def _notes(node: Node) -> Iterator[tuple[str, bool]]:
    """Yield a text for each comparison, and whether its number is misread."""
    if isinstance(node, Binary) and node.operator in COMPARISONS and not node.returns_bool:
        left, right = _bounds(node.left), _bounds(node.right)
        if note := _unit_note(node, left, right) or _share_note(node, left, right):
            yield note, True
        elif _is_never(node.operator, left, right):
            yield f"{_text(node, left, right)} can never be true{_why(node, left, right)}", True
        elif left.is_point != right.is_point and _is_always(node, left, right):
            number, other = (right, left) if right.is_point else (left, right)
            yield f"{_text(node, left, right)} is always true{_why(node, left, right)}", number.low > other.high
    for child in _children(node):
        yield from _notes(child)


def _is_always(node: Binary, left: _Bounds, right: _Bounds) -> bool:
    operator = node.operator
    if _is_never(_OPPOSITES[operator], left, right):
        return True
    side, limit = (node.left, right.low) if right.is_point else (node.right, left.low)
    upwards = {">", ">=", "!="} if right.is_point else {"<", "<=", "!="}
    return limit <= 0 and operator in upwards and _is_above_0(_family_of(side))


def _is_above_0(name: str) -> bool:
    """Return whether every GPU in use has more than 0 of this: a temperature, a clock, a power, a size."""
    family = _FAMILIES.get(name)
    if family is None or family.kind is not MetricType.GAUGE:
        return False
    return family.unit in {"celsius", "hertz", "watts"} or name.endswith(("_total_bytes", "_limit_bytes"))


def comparison_text(node: Binary) -> str:
    """Return a comparison in short: names, and numbers where a side is one."""
    return _text(node, _bounds(node.left), _bounds(node.right))


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
        case Binary("*", left, right) if is_label_family(right) or is_label_family(left):
            return _family_of(left if is_label_family(right) else right)
        case Binary(operator, left) if operator in {*COMPARISONS, "and", "unless"} and not node.returns_bool:
            return _family_of(left)
    return ""


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
    if (
        amount <= 0
        and not node.operator.startswith("<" if right.is_point else ">")
        and _is_above_0(_family_of(node.left if right.is_point else node.right))
    ):
        return ": it is above 0"
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
            unit, amount, factor = _unit_meant(other.low)
            return (
                f"{_text(node, left, right)} compares bytes with {format_bytes(other.low)}: if {unit} are meant, write"
                f" {_number(amount)} * {factor}"
            )
    return ""


def _share_note(node: Binary, left: _Bounds, right: _Bounds) -> str:
    """Return a note on a share that is compared with more than it can be, as with percent; "" where there is none."""
    share, limit, operator = _compared_share(node)
    if share is None:
        return ""
    most = 1.0 if share.is_bounded else FAR_ABOVE
    of = _Bounds(0.0, most)
    never = _is_never(operator, of, _Bounds(limit, limit))
    always = _is_never(_OPPOSITES[operator], of, _Bounds(limit, limit))
    if limit <= most or not (never or always):
        return ""
    instead = f"; write {limit * share.factor / 100:g}" if limit <= 100 and share.factor == 1 else ""
    is_so = "can never be true" if never else "is always true"
    if share.is_bounded:
        return f"{_text(node, left, right)} {is_so}: {share.part} is at most {share.whole}, so 1 times it{instead}"
    is_so = is_so.replace("can never", "will hardly ever").replace("always", "nearly always")
    return f"{_text(node, left, right)} {is_so}: {share.part} is seldom much more than {share.whole}{instead}"


def _compared_share(node: Binary) -> tuple[Share | None, float, str]:
    """Return the share that is compared with a number, that number without the share's factor, and the operator.

    `used > 90 * total` is the share of both, compared with 90.
    """
    turned = {">": "<", "<": ">", ">=": "<=", "<=": ">="}.get(node.operator, node.operator)
    for side, other, operator in ((node.left, node.right, node.operator), (node.right, node.left, turned)):
        limit, share = constant(other), share_of(side)
        if share is not None and limit is not None:
            return share, limit / share.factor, operator
        if (part := amount_of(side)) and (whole := amount_of(other)) and (share := share_between(part, whole)):
            return share._replace(factor=1.0), 1 / share.factor, operator
    return None, 0.0, node.operator


def small_amounts(expression: Expression) -> list[str]:
    """Return a text for each amount that is asked for and that everybody who computes on a GPU holds.

    See `LEAST_HELD_BYTES`. Anything up to 1 is none: `> 0` asks for no amount.
    """
    return list(dict.fromkeys(_small_amounts(expression.tree)))


def large_free_shares(expression: Expression) -> list[str]:
    """Return a text for each comparison that is true while most is free: the number of a used share, most often."""
    return list(dict.fromkeys(_large_free_shares(expression.tree)))


def _large_free_shares(node: Node) -> Iterator[str]:
    if isinstance(node, Binary) and (limit := free_share_limit(node)) is not None and limit > MOST_FREE:
        used = _number(round(100 * (1 - limit), 4))
        yield (
            f"{comparison_text(node)} is true as soon as more than {used} % is used: ask for a free share of"
            f" {MOST_FREE:g} at most, or compare the share that is used, as in `used / total > {limit:g}`"
        )
    for child in _children(node):
        yield from _large_free_shares(child)


def _small_amounts(node: Node) -> Iterator[str]:
    if isinstance(node, Binary) and node.operator in {">", ">=", "<", "<="}:
        side, other = (node.left, node.right) if node.operator[0] == ">" else (node.right, node.left)
        amount, limit = amount_of(side), constant(other)
        if amount is not None and amount.family in _USED and limit is not None:
            held = limit / amount.factor
            if 1 < held < LEAST_HELD_BYTES:
                meant = f": for GiB write {_number(held / 2**20)} * 1024^3" if held % 2**20 == 0 else ""
                text = _text(node, _bounds(node.left), _bounds(node.right))
                yield f"{text} asks for {format_bytes(held)}, which everybody who computes on a GPU holds{meant}"
    for child in _children(node):
        yield from _small_amounts(child)


def _unit_meant(amount: float) -> tuple[str, float, str]:
    """Guess the unit, the amount in it and its factor, by what GPUs have: nvidia-smi shows MiB."""
    if amount >= _FEWEST and amount % _FEWEST == 0:
        return "GiB", amount / _FEWEST, "1024^3"
    if amount <= _MOST_GIB:
        return "GiB", amount, "1024^3"
    return ("MiB", amount, "1024^2") if amount < _MOST_MIB else ("KiB", amount, "1024")


def _is_memory(name: str) -> bool:
    family = _FAMILIES.get(name)
    return family is not None and family.unit == "bytes" and family.kind is MetricType.GAUGE


def _unit(name: str) -> str:
    family = _FAMILIES.get(name)
    return family.unit if family is not None else ""


@cache
def _of_family(name: str) -> _Bounds:
    family = _FAMILIES.get(name)
    if family is None or family.unit == "celsius" or "growth" in name or "remaining" in name:
        return _ANYTHING
    if family.kind is MetricType.GAUGE:
        if family.help.startswith("1 "):
            return _UP_TO_1
        if family.unit == "ratio":
            return _OF_A_FAN if "fan" in name else _UP_TO_1
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
            if operator == "/" and (share := share_of(node)) and share.is_bounded:
                found = _Bounds(0.0, share.factor)
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
