"""Read expressions as amounts and shares: a family times a constant, and a part over its whole or its limit.

`gpuagent_process_memory_used_bytes / 1024^3` is that family in GiB, `100 * used / total` a share in percent. What is
computed in another way is no amount here, and nothing is said of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from gpuagent.core.metrics import FAMILIES
from gpuagent_alerts.promql.numbers import COMPARISONS
from gpuagent_alerts.promql.syntax import Aggregation, Binary, Call, Negation, Node, Number, Selector

FAR_ABOVE = 5.0
"""So many times its limit no figure is: whoever writes more means percent."""
_PERCENT = 100.0
_GPU, _MIG = "gpuagent_gpu_memory_", "gpuagent_mig_memory_"
_PROCESS_USED = "gpuagent_process_memory_used_bytes"
_LIVING, _DEAD = f"{_GPU}processes_bytes", f"{_GPU}dead_processes_bytes"
_OF_USED = {_PROCESS_USED, f"{_MIG}used_bytes", f"{_GPU}unattributed_bytes", _LIVING, _DEAD}
_PARTS = {
    f"{_GPU}total_bytes": {
        *_OF_USED, *(f"{_GPU}{of}_bytes" for of in ("used", "free", "reserved")),
        *(f"{_MIG}{of}_bytes" for of in ("total", "free")),
    },
    f"{_GPU}used_bytes": _OF_USED,
    f"{_MIG}total_bytes": {_PROCESS_USED, f"{_MIG}used_bytes", f"{_MIG}free_bytes"},
    f"{_MIG}used_bytes": {_PROCESS_USED},
}  # fmt: skip
"""Families that are no more than another one."""
_LIMITED = {
    "gpuagent_budget_limit_bytes": {"gpuagent_budget_used_bytes", _PROCESS_USED},
    **{
        f"gpuagent_gpu_power_{of}limit_watts": {"gpuagent_gpu_power_watts", "gpuagent_gpu_power_instant_watts"}
        for of in ("", "enforced_", "default_", "max_")
    },
    "gpuagent_gpu_clock_max_hertz": {"gpuagent_gpu_clock_hertz"},
    "gpuagent_gpu_pcie_link_generation_max": {"gpuagent_gpu_pcie_link_generation"},
    "gpuagent_gpu_pcie_link_width_max": {"gpuagent_gpu_pcie_link_width"},
    **{
        f"gpuagent_gpu_temperature_{of}_celsius": {"gpuagent_gpu_temperature_celsius"}
        for of in ("slowdown", "shutdown", "max")
    },
}
"""Families that may exceed what limits them, by a little."""
_FREE = frozenset({f"{_GPU}free_bytes", f"{_MIG}free_bytes"})
_UNITS = {family.name: family.unit for family in FAMILIES}
_KEEPING_VALUES = frozenset({"max", "min", "avg", "topk", "bottomk"})
_KEEPING_CALLS = frozenset({"sort", "sort_desc", "label_replace", "label_join", "round", "floor", "ceil"})


class Amount(NamedTuple):
    """A family multiplied by a constant above 0."""

    family: str
    factor: float = 1.0
    summed: bool = False
    """Several elements were added up: then even a part may come to more than its whole."""


class Share(NamedTuple):
    """A part over its whole, or over what limits it, multiplied by a constant above 0."""

    part: str
    whole: str
    factor: float
    is_bounded: bool
    """Never more than 1 without the factor."""


def constant(node: Node) -> float | None:
    """Return the number that an expression of numbers alone comes to; None for any other."""
    match node:
        case Number(value):
            return value
        case Negation(operand):
            found = constant(operand)
            return None if found is None else -found
        case Call("vector" | "scalar", (inner,)):
            return constant(inner)
        case Binary("+" | "-" | "*" | "/" | "^", left, right):
            a, b = constant(left), constant(right)
            return None if a is None or b is None else _computed(node.operator, a, b)
    return None


def _computed(operator: str, left: float, right: float) -> float | None:
    try:
        found = {
            "+": lambda: left + right,
            "-": lambda: left - right,
            "*": lambda: left * right,
            "/": lambda: left / right,
            "^": lambda: math.pow(left, right),
        }[operator]()
    except (ArithmeticError, ValueError):
        return None
    return found if math.isfinite(found) else None


def amount_of(node: Node) -> Amount | None:
    """Return an expression as an amount, whatever was chosen, joined or grouped; None where it is none."""
    found: Amount | None = None
    match node:
        case Selector(name) if name in _UNITS:
            found = Amount(name)
        case Aggregation("sum", operand):
            inner = amount_of(operand)
            found = None if inner is None else inner._replace(summed=True)
        case Binary("*" | "/", left, right) if not (is_label_family(left) or is_label_family(right)):
            found = _scaled(node)
        case Binary("*", left, right):
            found = amount_of(left if is_label_family(right) else right)
        case Binary("-", left, right):
            found = _difference(amount_of(left), amount_of(right))
        case Binary("+", left, right):
            found = _whole(amount_of(left), amount_of(right))
        case _ if (same := _same_values(node)) is not None:
            found = amount_of(same)
    return found


def _same_values(node: Node) -> Node | None:
    """Return the expression of which this chooses, joins or rounds the values; None where it computes others."""
    match node:
        case Aggregation(operator, operand) if operator in _KEEPING_VALUES:
            return operand
        case Call(function, (first, *_)) if function in _KEEPING_CALLS:
            return first
        case Binary(operator, left) if operator in {*COMPARISONS, "and", "unless"} and not node.returns_bool:
            return left
    return None


def _scaled(node: Binary) -> Amount | None:
    by, other = constant(node.right), node.left
    if by is None and node.operator == "*":
        by, other = constant(node.left), node.right
    if by is None or by <= 0:
        return None
    found = amount_of(other)
    if found is None:
        return None
    return found._replace(factor=found.factor * by if node.operator == "*" else found.factor / by)


def _difference(left: Amount | None, right: Amount | None) -> Amount | None:
    """Return what is used as an amount of its own where it is total less free, and the other way round."""
    if left is None or right is None or left.factor != right.factor or left.summed or right.summed:
        return None
    for prefix in (_GPU, _MIG):
        for taken, rest in (("free", "used"), ("used", "free")):
            if (left.family, right.family) == (f"{prefix}total_bytes", f"{prefix}{taken}_bytes"):
                return left._replace(family=f"{prefix}{rest}_bytes")
    return None


def _whole(left: Amount | None, right: Amount | None) -> Amount | None:
    """Return what is used and what is free, added up, as the total."""
    if left is None or right is None or left.factor != right.factor or left.summed or right.summed:
        return None
    for prefix in (_GPU, _MIG):
        if {left.family, right.family} == {f"{prefix}used_bytes", f"{prefix}free_bytes"}:
            return left._replace(family=f"{prefix}total_bytes")
    return None


def is_label_family(node: Node) -> bool:
    """Return whether this is a family that is multiplied with for its labels alone."""
    return isinstance(node, Selector) and (node.name or "").endswith("_info")


def share_of(node: Node) -> Share | None:
    """Return an expression as a share, whatever it is multiplied by; None where it is none."""
    match node:
        case Binary("/", left, right) if (part := amount_of(left)) and (whole := amount_of(right)):
            return share_between(part, whole)
        case Binary("*" | "/"):
            return _scaled_share(node)
        case _ if (same := _same_values(node)) is not None:
            return share_of(same)
    return None


def _scaled_share(node: Binary) -> Share | None:
    by, other = constant(node.right), node.left
    if by is None and node.operator == "*":
        by, other = constant(node.left), node.right
    if by is None or by <= 0 or (found := share_of(other)) is None:
        return None
    return found._replace(factor=found.factor * by if node.operator == "*" else found.factor / by)


def share_between(part: Amount, whole: Amount) -> Share | None:
    """Return one amount over another as a share; None where the second is neither its whole nor its limit."""
    bounded = part.family in _PARTS.get(whole.family, ())
    if not bounded and part.family not in _LIMITED.get(whole.family, ()):
        return None
    return Share(part.family, whole.family, part.factor / whole.factor, bounded and not part.summed)


def free_share_limit(comparison: Binary) -> float | None:
    """Return the share of a GPU, an instance or a budget below which what is free has to be; None for any other.

    `free / total < 0.1`, `1 - used / total < 0.1` and `free < 0.1 * total` are such comparisons.
    """
    for side, other, operators in (
        (comparison.left, comparison.right, {"<", "<="}),
        (comparison.right, comparison.left, {">", ">="}),
    ):
        if comparison.operator not in operators:
            continue
        limit, factor = constant(other), _free_share_factor(side)
        if limit is not None and factor is not None:
            return limit / factor
        part, whole = amount_of(side), amount_of(other)
        if part and whole and part.family in _FREE and (share := share_between(part, whole)):
            return 1 / share.factor
    return None


def _free_share_factor(node: Node) -> float | None:
    """Return by what the free share is multiplied in an expression; None where it is something else."""
    if (share := share_of(node)) is not None:
        return share.factor if share.part in _FREE else None
    match node:
        case Binary("-", left, right) if (whole := constant(left)) is not None:
            used_factor = _used_share_factor(right)
            return whole if used_factor is not None and math.isclose(used_factor, whole) else None
        case Binary("/", Binary("-", left, right), below) if limit := amount_of(below):
            used_bytes = amount_of(right)
            is_rest = used_bytes and amount_of(left) == limit and used_bytes.factor == limit.factor
            return 1.0 if is_rest and used_bytes and used_bytes.family in _LIMITED.get(limit.family, ()) else None
        case Binary("*" | "/", left, right):
            by, other = constant(right), left
            if by is None and node.operator == "*":
                by, other = constant(left), right
            factor = _free_share_factor(other) if by else None
            return None if factor is None or not by else factor * by if node.operator == "*" else factor / by
    same = _same_values(node)
    return None if same is None else _free_share_factor(same)


def _used_share_factor(node: Node) -> float | None:
    amount = amount_of(node)
    if amount is not None:
        return amount.factor if amount.family == f"{_GPU}used_ratio" else None
    share = share_of(node)
    return share.factor if share is not None and share.part.endswith("used_bytes") else None


def small_percentage(comparison: Binary) -> float | None:
    """Return the number with which a share in percent is compared as if it were a ratio; None where none is."""
    for number, other in ((comparison.right, comparison.left), (comparison.left, comparison.right)):
        limit = constant(number)
        if limit is not None and 0 < limit <= 1 and constant(other) is None and _is_percentage(other):
            return limit
    return None


def _is_percentage(node: Node) -> bool:
    """Return whether something in an expression is multiplied by 100, in however many steps."""
    match node:
        case Binary("*" | "/"):
            return math.isclose(_constants(node), _PERCENT) or any(map(_is_percentage, _factors(node)))
        case Binary("+" | "-", left, right):
            return _is_percentage(left) or _is_percentage(right)
        case Binary(operator, left) if operator in {*COMPARISONS, "and", "unless"}:
            return _is_percentage(left)
        case Negation(operand) | Aggregation(_, operand):
            return _is_percentage(operand)
        case Call(_, arguments):
            return any(map(_is_percentage, arguments))
    return False


def _constants(node: Node) -> float:
    """Return what the constants of a product come to."""
    match node:
        case Binary("*" | "/", left, right) if constant(node) is None:
            below = _constants(right)
            return _constants(left) * (below if node.operator == "*" else 1 / below if below else math.nan)
    found = constant(node)
    return 1.0 if found is None else found


def _factors(node: Node) -> Iterator[Node]:
    match node:
        case Binary("*" | "/", left, right) if constant(node) is None:
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield node
