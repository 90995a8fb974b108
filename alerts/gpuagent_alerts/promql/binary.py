"""Binary operators where one side at least is a number, and the unary minus."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeVar

from gpuagent_alerts.promql.errors import ExpressionError
from gpuagent_alerts.promql.matching import plan_join
from gpuagent_alerts.promql.operators import ARITHMETIC, COMPARISONS, DROPS_NAME, SET_OPERATORS
from gpuagent_alerts.promql.plans import Plan, ScalarPlan, StringPlan, Tick, VectorPlan, checked
from gpuagent_alerts.promql.sets import plan_set
from gpuagent_alerts.promql.syntax import Binary, Cardinality
from gpuagent_alerts.promql.values import Element

Result = TypeVar("Result")


def plan_negation(operand: Plan) -> Plan:
    """Raises ExpressionError for a string."""
    match operand:
        case ScalarPlan(scalar):
            return ScalarPlan(lambda tick: -scalar(tick))
        case VectorPlan(vector, distinct):
            return checked(lambda tick: [("", labels, -value) for _, labels, value in vector(tick)], distinct=distinct)
        case StringPlan():
            raise ExpressionError("a string has no negative")


def plan_binary(node: Binary, left: Plan, right: Plan) -> Plan:
    """Raises ExpressionError where the operator does not suit the types of its operands."""
    _check(node, left, right)
    match left, right:
        case ScalarPlan(first), ScalarPlan(second):
            operation = ARITHMETIC.get(node.operator) or COMPARISONS[node.operator]
            return ScalarPlan(lambda tick: float(operation(first(tick), second(tick))))
        case VectorPlan(), ScalarPlan(scalar):
            return _with_scalar(node, left, scalar, swapped=False)
        case ScalarPlan(scalar), VectorPlan():
            return _with_scalar(node, right, scalar, swapped=True)
        case VectorPlan(), VectorPlan():
            plan = plan_set if node.operator in SET_OPERATORS else plan_join
            return plan(node, left, right)
        case _:
            raise ExpressionError(f"{node.operator} stands between numbers and vectors, not strings")


def _check(node: Binary, left: Plan, right: Plan) -> None:
    vectors = isinstance(left, VectorPlan) and isinstance(right, VectorPlan)
    comparison = node.operator in COMPARISONS
    if not (comparison or node.operator in ARITHMETIC or node.operator in SET_OPERATORS):
        raise ExpressionError(f"the operator {node.operator} is not available in the agent")
    if node.returns_bool and not comparison:
        raise ExpressionError("bool modifier can only be used on comparison operators")
    if node.operator in SET_OPERATORS and not vectors:
        raise ExpressionError(f"set operator {node.operator!r} not allowed in binary scalar expression")
    if node.operator in SET_OPERATORS and node.matching.cardinality is not Cardinality.ONE_TO_ONE:
        raise ExpressionError(f"no grouping allowed for {node.operator!r} operation")
    if comparison and not node.returns_bool and isinstance(left, ScalarPlan) and isinstance(right, ScalarPlan):
        raise ExpressionError("comparisons between scalars must use BOOL modifier")
    if not vectors and node.matching.labels:
        raise ExpressionError("vector matching only allowed between instant vectors")
    if node.matching.on and not set(node.matching.labels).isdisjoint(node.matching.include):
        raise ExpressionError("a label must not occur in ON and GROUP clause at once")


def _with_scalar(node: Binary, vector: VectorPlan, scalar: Callable[[Tick], float], *, swapped: bool) -> VectorPlan:
    compare = COMPARISONS.get(node.operator)
    if compare is None:
        return _arithmetic(node.operator, vector, scalar, swapped=swapped)
    if swapped:
        compare = _swap(compare)
    return _compare_bool(compare, vector, scalar) if node.returns_bool else _filter(compare, vector, scalar)


def _filter(compare: Callable[[float, float], bool], vector: VectorPlan, scalar: Callable[[Tick], float]) -> VectorPlan:
    elements = vector.run

    def run(tick: Tick) -> list[Element]:
        number = scalar(tick)
        return [element for element in elements(tick) if compare(element[2], number)]

    return VectorPlan(run, distinct=vector.distinct)


def _compare_bool(
    compare: Callable[[float, float], bool], vector: VectorPlan, scalar: Callable[[Tick], float]
) -> VectorPlan:
    elements = vector.run

    def run(tick: Tick) -> list[Element]:
        number = scalar(tick)
        return [("", labels, 1.0 if compare(value, number) else 0.0) for _, labels, value in elements(tick)]

    return checked(run, distinct=vector.distinct)


def _arithmetic(symbol: str, vector: VectorPlan, scalar: Callable[[Tick], float], *, swapped: bool) -> VectorPlan:
    elements = vector.run
    operation = _swap(ARITHMETIC[symbol]) if swapped else ARITHMETIC[symbol]

    def run(tick: Tick) -> list[Element]:
        number = scalar(tick)
        # Python's own division is several times as fast, and the same for every divisor but zero.
        operate = operator.truediv if symbol == "/" and number and not swapped else operation
        return [("", labels, operate(value, number)) for _, labels, value in elements(tick)]

    def run_with_names(tick: Tick) -> list[Element]:
        number = scalar(tick)
        return [(name, labels, operation(value, number)) for name, labels, value in elements(tick)]

    if symbol in DROPS_NAME:
        return checked(run, distinct=vector.distinct)
    return VectorPlan(run_with_names, distinct=vector.distinct)


def _swap(operation: Callable[[float, float], Result]) -> Callable[[float, float], Result]:
    return lambda left, right: operation(right, left)
