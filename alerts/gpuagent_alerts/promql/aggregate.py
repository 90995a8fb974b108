"""Aggregations: one value per group of elements, or the best elements of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, reduce
from operator import add

from gpuagent.core.matchers import is_label_name
from gpuagent_alerts.promql.numbers import INFINITY, NAN, decimal_text, floor
from gpuagent_alerts.promql.series import Plan, ScalarPlan, StringPlan, Tick, VectorPlan
from gpuagent_alerts.promql.syntax import Aggregation
from gpuagent_alerts.promql.values import (
    METRIC_NAME,
    NO_LABELS,
    Element,
    EvaluationError,
    ExpressionError,
    Keys,
    LabelSet,
    keys_of,
)

Less = Callable[[float, float], bool]
"""Whether the first value goes before the second one. NaN goes first: it is what topk and bottomk keep last."""


def ascending(left: float, right: float) -> bool:
    """Compare for topk: the smallest is on top of the heap, to be replaced by a larger one."""
    return math.isnan(left) or left < right


def descending(left: float, right: float) -> bool:
    """Compare for bottomk: the largest is on top of the heap."""
    return math.isnan(left) or left > right


def best(elements: Sequence[Element], count: int, less: Less) -> list[Element]:
    """Return the `count` elements that go last by `less`, the best one first."""
    heap: list[Element] = []
    for element in elements[:count]:
        heap.append(element)
        _up(heap, less)
    worst = heap[0][2]
    for element in elements[count:]:
        if less(worst, element[2]) or math.isnan(worst):
            _pop(heap, less)
            heap.append(element)
            _up(heap, less)
            worst = heap[0][2]
    # NaN last, and equal values as they lie in the heap.
    worst_first = less(0.0, 1.0)
    return sorted(heap, key=lambda element: (math.isnan(element[2]), -element[2] if worst_first else element[2]))


def _up(heap: list[Element], less: Less) -> None:
    """Move the last element up, as container/heap's `up` does."""
    child = len(heap) - 1
    while child > 0:
        parent = (child - 1) // 2
        if not less(heap[child][2], heap[parent][2]):
            break
        heap[parent], heap[child] = heap[child], heap[parent]
        child = parent


def _pop(heap: list[Element], less: Less) -> None:
    """Drop the first element, as container/heap's `Pop` does: the last takes its place and goes down."""
    last = heap.pop()
    if not heap:
        return
    heap[0] = last
    parent = 0
    while (child := 2 * parent + 1) < len(heap):
        if child + 1 < len(heap) and less(heap[child + 1][2], heap[child][2]):
            child += 1
        if not less(heap[child][2], heap[parent][2]):
            break
        heap[parent], heap[child] = heap[child], heap[parent]
        parent = child


def quantile(fraction: float, values: Sequence[float]) -> float:
    """Return the quantile between the two nearest values, by their distance; infinite where the fraction is none."""
    if math.isnan(fraction):
        return NAN
    if not 0 <= fraction <= 1:
        return -INFINITY if fraction < 0 else INFINITY
    ordered = sorted(values, key=lambda value: (not math.isnan(value), value))
    rank = fraction * (len(ordered) - 1)
    lower = int(floor(rank))
    weight = rank - lower
    upper = min(len(ordered) - 1, lower + 1)
    return ordered[lower] * (1 - weight) + ordered[upper] * weight


Values = Sequence[float]
GroupLabels = Callable[[str, LabelSet], tuple[str, LabelSet]]


def _mean(values: Values) -> float:
    """Return the mean, computed incrementally as Prometheus does: a sum could overflow. An infinite mean stays."""
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
    """Return the variance by Welford's algorithm."""
    mean, squares = values[0], 0.0
    for count, value in enumerate(values[1:], start=2):
        delta = value - mean
        mean += delta / count
        squares += delta * (value - mean)
    return squares / len(values)


def _sum(values: Values) -> float:
    """Return the sum in order and without compensation: Python's own sum compensates from 3.12 on."""
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
    """Plan an aggregation. Raises ExpressionError for one that is not available, and for a wrong type."""
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
