"""`and`, `or` and `unless`: elements are kept or left out, never changed."""

from __future__ import annotations

from gpuagent_alerts.promql.keys import keys_of
from gpuagent_alerts.promql.plans import Tick, VectorPlan, require_distinct
from gpuagent_alerts.promql.syntax import Binary
from gpuagent_alerts.promql.values import METRIC_NAME, Element


def plan_set(node: Binary, left: VectorPlan, right: VectorPlan) -> VectorPlan:
    """What is kept, is kept with its name and value."""
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
