"""Binary operators: between numbers, between vectors (which elements belong together), and `and`, `or`, `unless`.

What is checked is what Prometheus checks (promql/engine.go, VectorBinop): the side that has to be unique must be so
throughout, and the other side among the results that are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuagent_alerts.promql.numbers import ARITHMETIC, COMPARISONS, DROPS_NAME, SET_OPERATORS
from gpuagent_alerts.promql.series import Plan, ScalarPlan, StringPlan, Tick, VectorPlan, checked, require_distinct
from gpuagent_alerts.promql.syntax import Binary, Cardinality, Matching
from gpuagent_alerts.promql.values import (
    METRIC_NAME,
    Element,
    EvaluationError,
    ExpressionError,
    Keys,
    LabelSet,
    display,
    keys_of,
    with_name,
    without_name,
)


def plan_set(node: Binary, left: VectorPlan, right: VectorPlan) -> VectorPlan:
    """Return what is kept, is kept with its name and value."""
    keys = keys_of(node.matching.labels, on=node.matching.on)
    first, second = left.run, right.run

    # Both sides are evaluated whatever the other has: an error in either is an error of the rule.
    def conjunction(tick: Tick) -> list[Element]:
        elements, others = first(tick), second(tick)
        if not elements or not others:
            return []
        wanted = set(keys(others))
        return [element for element, key in zip(elements, keys(elements), strict=True) if key in wanted]

    def exclusion(tick: Tick) -> list[Element]:
        elements, others = first(tick), second(tick)
        if not elements or not others:
            return elements
        unwanted = set(keys(others))
        return [element for element, key in zip(elements, keys(elements), strict=True) if key not in unwanted]

    def union(tick: Tick) -> list[Element]:
        elements, others = first(tick), second(tick)
        if not elements or not others:
            return elements or others
        present = set(keys(elements))
        return elements + [element for element, key in zip(others, keys(others), strict=True) if key not in present]

    if node.operator == "and":
        return VectorPlan(conjunction, distinct=left.distinct)
    if node.operator == "unless":
        return VectorPlan(exclusion, distinct=left.distinct)
    # What the right side adds differs from the left in its key, which is made of labels unless names are matched.
    if left.distinct and right.distinct and not (node.matching.on and METRIC_NAME in node.matching.labels):
        return VectorPlan(union, distinct=True)
    return VectorPlan(lambda tick: require_distinct(union(tick)), distinct=False)


ResultLabels = Callable[[str, LabelSet, str, LabelSet], tuple[str, LabelSet]]
"""Name and labels of a result, from those of the "many" side and of the "one" side."""
Pair = tuple[Hashable, Element, Element, float]
"""A key, the element of the "many" side, its partner, and the value that comes of them."""


def plan_join(node: Binary, left: VectorPlan, right: VectorPlan) -> VectorPlan:
    """Plan arithmetic or a comparison of vectors; a comparison without `bool` keeps the left side's value."""
    matching = node.matching
    many, one = (right, left) if matching.cardinality is Cardinality.ONE_TO_MANY else (left, right)
    drops_name = node.returns_bool or node.operator in DROPS_NAME
    join = _Join(
        matching,
        keys_of(matching.labels, on=matching.on),
        _result_labels(node),
        _value(node),
        drops_name=drops_name,
        many_distinct=many.distinct,
    )
    if matching.cardinality is not Cardinality.ONE_TO_ONE:
        distinct = drops_name or (many.distinct and not matching.include)
        return VectorPlan(lambda tick: join.many_to_one(many.run(tick), one.run(tick)), distinct=distinct)
    if matching.on and METRIC_NAME in matching.labels:
        # Results differ in what they were matched on, and that is the name, which they may have lost.
        return VectorPlan(
            lambda tick: require_distinct(join.one_to_one(many.run(tick), one.run(tick))), distinct=drops_name
        )
    return VectorPlan(lambda tick: join.one_to_one(many.run(tick), one.run(tick)), distinct=True)


@dataclass(frozen=True, slots=True)
class _Join:
    matching: Matching
    keys: Keys
    labels: ResultLabels | None
    """None where results have the labels of the "many" side."""
    value: Callable[[float, float], float | None]
    """From the values of the "many" and the "one" side; None leaves the result out."""
    drops_name: bool
    many_distinct: bool

    def one_to_one(self, many: list[Element], one: list[Element]) -> list[Element]:
        pairs = self._pairs(many, one)
        if len({pair[0] for pair in pairs}) < len(pairs):
            raise EvaluationError(
                "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
            )
        return self._results(pairs)

    def many_to_one(self, many: list[Element], one: list[Element]) -> list[Element]:
        pairs = self._pairs(many, one)
        results = self._results(pairs)
        if self._may_coincide(many):
            group_keys = {(pair[0], name, labels.key()) for pair, (name, labels, _) in zip(pairs, results, strict=True)}
            if len(group_keys) < len(results):
                raise EvaluationError("multiple matches for labels: grouping labels must ensure unique matches")
            require_distinct(results)
        return results

    def _pairs(self, many: list[Element], one: list[Element]) -> list[Pair]:
        if not many or not one:
            return []
        ones = self.keys(one)
        partners = dict(zip(ones, one, strict=True))
        if len(partners) < len(one):
            raise EvaluationError(self._duplicate(ones, one))
        partner_of, value_of = partners.get, self.value
        return [
            (key, element, partner, value)
            for key, element in zip(self.keys(many), many, strict=True)
            if (partner := partner_of(key)) is not None and (value := value_of(element[2], partner[2])) is not None
        ]

    def _results(self, pairs: list[Pair]) -> list[Element]:
        labels_of = self.labels
        if labels_of is not None:
            return [(*labels_of(many[0], many[1], one[0], one[1]), value) for _, many, one, value in pairs]
        if self.drops_name:
            return [("", many[1], value) for _, many, _, value in pairs]
        return [(many[0], many[1], value) for _, many, _, value in pairs]

    def _may_coincide(self, many: list[Element]) -> bool:
        """Return whether results could have the same labels: only if a label that tells them apart is replaced."""
        if not self.many_distinct:
            return True
        return any(label in labels for label in self.matching.include for _, labels, _ in many)

    def _duplicate(self, keys: Sequence[Hashable], one: list[Element]) -> str:
        seen: dict[Hashable, Element] = {}
        for key, element in zip(keys, one, strict=True):
            other = seen.setdefault(key, element)
            if other is not element:
                break
        on, names = self.matching.on, {*self.matching.labels, *(() if self.matching.on else (METRIC_NAME,))}
        labels = with_name(element[0], element[1])
        group = display("", {label: value for label, value in labels.items() if (label in names) == on})
        side = "left" if self.matching.cardinality is Cardinality.ONE_TO_MANY else "right"
        return (
            f"found duplicate series for the match group {group} on the {side} hand-side of the operation: "
            f"[{display(element[0], element[1])}, {display(other[0], other[1])}]"
            ";many-to-many matching not allowed: matching labels must be unique on one side"
        )


def _value(node: Binary) -> Callable[[float, float], float | None]:
    """Return the operation on "many" and "one"; group_right has them the other way round in the expression."""
    swapped = node.matching.cardinality is Cardinality.ONE_TO_MANY
    arithmetic = ARITHMETIC.get(node.operator)
    if arithmetic is not None:
        return (lambda many, one: arithmetic(one, many)) if swapped else arithmetic
    compare = COMPARISONS[node.operator]
    if node.returns_bool:
        if swapped:
            return lambda many, one: float(compare(one, many))
        return lambda many, one: float(compare(many, one))
    if swapped:
        return lambda many, one: one if compare(one, many) else None
    return lambda many, one: many if compare(many, one) else None


def _result_labels(node: Binary) -> ResultLabels | None:
    """Return how result labels are made (Prometheus' resultMetric); None where nothing but the name changes."""
    matching = node.matching
    names = frozenset(matching.labels)
    if METRIC_NAME in names or METRIC_NAME in matching.include:
        return _labels_with_name(node)
    name_kept = not (node.returns_bool or node.operator in DROPS_NAME)
    if matching.cardinality is not Cardinality.ONE_TO_ONE:
        return _labels_included(matching.include, name_kept=name_kept) if matching.include else None
    if matching.on:
        return lambda _name, labels, _one_name, _one: (
            "",
            LabelSet((label, labels[label]) for label in names if label in labels),
        )
    if not names:
        return None
    return lambda name, labels, _one_name, _one: (
        name if name_kept else "",
        LabelSet(item for item in labels.items() if item[0] not in names),
    )


def _labels_included(include: tuple[str, ...], *, name_kept: bool) -> ResultLabels:
    def result(name: str, labels: LabelSet, _one_name: str, one: LabelSet) -> tuple[str, LabelSet]:
        merged = LabelSet(labels)
        for label in include:
            value = one[label]
            if value:
                merged[label] = value
            else:
                merged.pop(label, None)
        return name if name_kept else "", merged

    return result


def _labels_with_name(node: Binary) -> ResultLabels:
    """Return how result labels are made where the metric's name takes part like other labels."""
    matching = node.matching
    drops_name = node.operator in DROPS_NAME
    names = frozenset(matching.labels)

    def result(name: str, labels: LabelSet, one_name: str, one: LabelSet) -> tuple[str, LabelSet]:
        merged = with_name("" if drops_name else name, labels)
        if matching.cardinality is Cardinality.ONE_TO_ONE:
            merged = {label: value for label, value in merged.items() if (label in names) == matching.on}
        for label in matching.include:
            merged[label] = one_name if label == METRIC_NAME else one[label]
        new_name, new_labels = without_name(merged)
        return ("" if node.returns_bool else new_name), new_labels

    return result


Result = TypeVar("Result")


def plan_negation(operand: Plan) -> Plan:
    """Plan the unary minus. Raises ExpressionError for a string."""
    match operand:
        case ScalarPlan(scalar):
            return ScalarPlan(lambda tick: -scalar(tick))
        case VectorPlan(vector, distinct):
            return checked(lambda tick: [("", labels, -value) for _, labels, value in vector(tick)], distinct=distinct)
        case StringPlan():
            raise ExpressionError("a string has no negative")


def plan_binary(node: Binary, left: Plan, right: Plan) -> Plan:
    """Plan a binary operator. Raises ExpressionError where it does not suit the types of its operands."""
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
