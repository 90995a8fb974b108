"""label_replace and label_join."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuagent.matchers import is_label_name
from gpuagent_alerts.promql.errors import ExpressionError
from gpuagent_alerts.promql.plans import Tick, VectorPlan, require_distinct
from gpuagent_alerts.promql.regexes import Pattern
from gpuagent_alerts.promql.values import Element, with_name, without_name


def plan_label_replace(vector: VectorPlan, destination: str, template: str, source: str, regex: str) -> VectorPlan:
    """Raises ExpressionError for a wrong regular expression or label.

    Prometheus tells of those when the rule is evaluated, and then every time.
    """
    pattern = Pattern(regex)
    replacement = pattern.template(template)
    _check_label(destination, "destination", "label_replace")

    def replace(element: Element) -> Element:
        labels = with_name(element[0], element[1])
        groups = pattern.groups(labels.get(source, ""))
        if groups is None:
            return element
        return *without_name({**labels, destination: replacement(groups)}), element[2]

    return _relabelled(vector, replace)


def plan_label_join(vector: VectorPlan, destination: str, separator: str, sources: Sequence[str]) -> VectorPlan:
    """Raises ExpressionError for a wrong label."""
    for source in sources:
        _check_label(source, "source", "label_join")
    _check_label(destination, "destination", "label_join")

    def join(element: Element) -> Element:
        labels = with_name(element[0], element[1])
        joined = separator.join([labels.get(source, "") for source in sources])
        return *without_name({**labels, destination: joined}), element[2]

    return _relabelled(vector, join)


def _relabelled(vector: VectorPlan, change: Callable[[Element], Element]) -> VectorPlan:
    def run(tick: Tick) -> list[Element]:
        return require_distinct([change(element) for element in vector.run(tick)])

    return VectorPlan(run, distinct=False)


def _check_label(label: str, role: str, function: str) -> None:
    if not is_label_name(label):
        raise ExpressionError(f"invalid {role} label name in {function}(): {label!r}")
