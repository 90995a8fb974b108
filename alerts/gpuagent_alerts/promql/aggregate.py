"""Aggregations: one value per group of elements, or the best elements of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, reduce
from operator import add

from gpuagent.matchers import is_label_name
from gpuagent_alerts.promql.errors import EvaluationError, ExpressionError
from gpuagent_alerts.promql.floats import decimal_text
from gpuagent_alerts.promql.keys import Keys, keys_of
from gpuagent_alerts.promql.plans import Plan, ScalarPlan, StringPlan, Tick, VectorPlan
from gpuagent_alerts.promql.ranking import ascending, best, descending, quantile
from gpuagent_alerts.promql.syntax import Aggregation
from gpuagent_alerts.promql.values import METRIC_NAME, NO_LABELS, Element, LabelSet

Values = Sequence[float]
GroupLabels = Callable[[str, LabelSet], tuple[str, LabelSet]]


def _mean(values: Values) -> float:
    """Incremental, as Prometheus does it: a sum could overflow. An infinite mean stays what it is."""
    mean = values[0]
    for count, value in enumerate(values[1:], start=2):
        if math.isinf(mean):
            if math.isinf(value) and (mean > 0) == (value > 0):
                continue
            if math.isfinite(value):
                continue
        mean += value / count - mean / count
    return mean


def _largest(values: Values) -> float:
    largest = values[0]
    for value in values:
        if largest < value or math.isnan(largest):
            largest = value
    return largest


def _smallest(values: Values) -> float:
    smallest = values[0]
    for value in values:
        if smallest > value or math.isnan(smallest):
            smallest = value
    return smallest


def _variance(values: Values) -> float:
    """Welford's algorithm."""
    mean, squares = values[0], 0.0
    for count, value in enumerate(values[1:], start=2):
        delta = value - mean
        mean += delta / count
        squares += delta * (value - mean)
    return squares / len(values)


def _sum(values: Values) -> float:
    """In order and without compensation: Python's own sum compensates from 3.12 on."""
    return reduce(add, values)


FOLDS: dict[str, Callable[[Values], float]] = {
    "sum": _sum,
    "avg": _mean,
    "min": _smallest,
    "max": _largest,
    "count": lambda values: float(len(values)),
    "group": lambda _values: 1.0,
    "stdvar": _variance,
    "stddev": lambda values: math.sqrt(_variance(values)),
}
RANKINGS = {"topk": ascending, "bottomk": descending}


def plan_aggregation(node: Aggregation, operand: Plan, parameter: Plan | None) -> VectorPlan:
    """Raises ExpressionError for an aggregation that is not available, and for a wrong type."""
    if not isinstance(operand, VectorPlan):
        raise ExpressionError(f"{node.operator} takes an instant vector, not a {operand.type}")
    # Names in groups are rare and only by request; without them, what comes out differs in its labels.
    distinct = node.without or METRIC_NAME not in node.labels
    match node.operator, parameter:
        case operator, None if operator in FOLDS:
            return VectorPlan(_folding(node, operand, FOLDS[operator]), distinct=distinct)
        case "quantile", ScalarPlan(fraction):
            return VectorPlan(_quantile(node, operand, fraction), distinct=distinct)
        case ("topk" | "bottomk") as operator, ScalarPlan(count):
            return VectorPlan(_ranking(node, operand, count, RANKINGS[operator]), distinct=operand.distinct)
        case "count_values", StringPlan(label):
            return VectorPlan(_count_values(node, operand, label), distinct=distinct)
        case ("quantile" | "topk" | "bottomk" | "count_values") as operator, _:
            wanted = "a string" if operator == "count_values" else "a scalar"
            raise ExpressionError(f"the first argument of {operator} has to be {wanted}")
        case operator, _:
            raise ExpressionError(
                f"{operator}(...) is not available in the agent, and Prometheus 2.42 does not know it"
            )


def _group_labels(node: Aggregation) -> GroupLabels:
    names = frozenset(node.labels)
    if node.without:
        return lambda _name, labels: ("", LabelSet(item for item in labels.items() if item[0] not in names))
    keeps_name = METRIC_NAME in names
    return lambda name, labels: (
        name if keeps_name else "",
        LabelSet((label, labels[label]) for label in node.labels if label in labels),
    )


def _grouped(keys: Keys, elements: list[Element]) -> Iterable[list[Element]]:
    groups: dict[Hashable, list[Element]] = defaultdict(list)
    for key, element in zip(keys(elements), elements, strict=True):
        groups[key].append(element)
    return groups.values()


def _folding(
    node: Aggregation, operand: VectorPlan, fold: Callable[[Values], float]
) -> Callable[[Tick], list[Element]]:
    elements = operand.run
    keys, group_labels = keys_of(node.labels, on=not node.without), _group_labels(node)

    def run_on_all(tick: Tick) -> list[Element]:
        values = [value for _, _, value in elements(tick)]
        return [("", NO_LABELS, fold(values))] if values else []

    def run(tick: Tick) -> list[Element]:
        return [
            (*group_labels(group[0][0], group[0][1]), fold([value for _, _, value in group]))
            for group in _grouped(keys, elements(tick))
        ]

    return run if node.without or node.labels else run_on_all


def _quantile(
    node: Aggregation, operand: VectorPlan, fraction: Callable[[Tick], float]
) -> Callable[[Tick], list[Element]]:
    def run(tick: Tick) -> list[Element]:
        return _folding(node, operand, partial(quantile, fraction(tick)))(tick)

    return run


def _ranking(
    node: Aggregation,
    operand: VectorPlan,
    count: Callable[[Tick], float],
    less: Callable[[float, float], bool],
) -> Callable[[Tick], list[Element]]:
    keys = keys_of(node.labels, on=not node.without)

    def run(tick: Tick) -> list[Element]:
        number, elements = count(tick), operand.run(tick)
        if not -(2.0**63) <= number < 2.0**63:  # nor NaN
            raise EvaluationError(f"Scalar value {decimal_text(number)} overflows int64")
        if number < 1:
            return []
        return [best_one for group in _grouped(keys, elements) for best_one in best(group, int(number), less)]

    return run


def _count_values(node: Aggregation, operand: VectorPlan, label: str) -> Callable[[Tick], list[Element]]:
    if not is_label_name(label) or label == METRIC_NAME:
        raise ExpressionError(f"invalid label name {label!r} in count_values")
    by = node.labels if node.without else (*node.labels, label)
    counting = Aggregation(node.operator, node.operand, None, node.without, by)

    def labelled(tick: Tick) -> list[Element]:
        return [
            (name, LabelSet({**labels, label: decimal_text(value)}), value) for name, labels, value in operand.run(tick)
        ]

    return _folding(counting, VectorPlan(labelled, distinct=False), FOLDS["count"])
