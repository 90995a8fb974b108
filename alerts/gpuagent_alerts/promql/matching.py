"""Operators between two vectors: which elements belong together, and the labels of what comes out.

What is checked is what Prometheus checks (promql/engine.go, VectorBinop): the side that has to be unique must be so
throughout, and the other side among the results that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from gpuagent_alerts.promql.errors import EvaluationError
from gpuagent_alerts.promql.keys import Keys, keys_of
from gpuagent_alerts.promql.operators import ARITHMETIC, COMPARISONS, DROPS_NAME
from gpuagent_alerts.promql.plans import VectorPlan, require_distinct
from gpuagent_alerts.promql.syntax import Binary, Cardinality, Matching
from gpuagent_alerts.promql.values import METRIC_NAME, Element, LabelSet, display, with_name, without_name

ResultLabels = Callable[[str, LabelSet, str, LabelSet], tuple[str, LabelSet]]
"""Name and labels of a result, from those of the "many" side and of the "one" side."""
Pair = tuple[Hashable, Element, Element, float]
"""A key, the element of the "many" side, its partner, and the value that comes of them."""


def plan_join(node: Binary, left: VectorPlan, right: VectorPlan) -> VectorPlan:
    """One of arithmetic and comparison between vectors. A comparison without `bool` keeps the left side's value."""
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
        """Whether results could have the same labels: only if a label that tells them apart is replaced."""
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
    """The operands come as "many" and "one": for group_right they stand the other way round in the expression."""
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
    """As Prometheus' resultMetric. None where nothing but the name changes: most joins, and the fast ones."""
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
    """Where the metric's name takes part like other labels."""
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
