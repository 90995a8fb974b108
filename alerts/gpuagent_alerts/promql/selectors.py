"""Selectors: which series of a tick an expression looks at."""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.matchers import Matcher, MatchOperator
from gpuagent_alerts.promql.errors import ExpressionError
from gpuagent_alerts.promql.plans import Tick, VectorPlan
from gpuagent_alerts.promql.regexes import Pattern
from gpuagent_alerts.promql.syntax import Selector
from gpuagent_alerts.promql.values import METRIC_NAME, Element

Test = Callable[[str], bool]
Filter = Callable[[list[Element]], list[Element]]


def plan_selector(selector: Selector) -> VectorPlan:
    """Raises ExpressionError for a wrong regular expression, and where everything would be selected by mistake."""
    tests = [(matcher, _test(matcher)) for matcher in selector.matchers]
    if selector.name is None and all(test("") for _, test in tests):
        raise ExpressionError("a selector needs a metric's name, or a matcher that does not match an empty label")
    # Equality first: it costs least and leaves least.
    tests.sort(key=lambda pair: pair[0].op is not MatchOperator.EQUAL)
    filters = [_filter(matcher, test) for matcher, test in tests if matcher.name != METRIC_NAME]
    name_tests = [test for matcher, test in tests if matcher.name == METRIC_NAME]

    if selector.name is not None and all(test(selector.name) for test in name_tests):
        return VectorPlan(_by_name(selector.name, filters), distinct=True)

    def run(tick: Tick) -> list[Element]:
        elements = [
            element
            for name in (tick.series.names() if selector.name is None else ())
            if all(test(name) for test in name_tests)
            for element in tick.series.elements(name)
        ]
        for keep in filters:
            elements = keep(elements)
        return elements

    return VectorPlan(run, distinct=False)


def _by_name(name: str, filters: list[Filter]) -> Callable[[Tick], list[Element]]:
    if not filters:
        return lambda tick: tick.series.elements(name)

    def run(tick: Tick) -> list[Element]:
        elements = tick.series.elements(name)
        for keep in filters:
            elements = keep(elements)
        return elements

    return run


def _filter(matcher: Matcher, test: Test) -> Filter:
    label, value = matcher.name, matcher.value
    match matcher.op:
        case MatchOperator.EQUAL:
            return lambda elements: [element for element in elements if element[1][label] == value]
        case MatchOperator.NOT_EQUAL:
            return lambda elements: [element for element in elements if element[1][label] != value]
        case _:
            return lambda elements: [element for element in elements if test(element[1][label])]


def _test(matcher: Matcher) -> Test:
    """On a label's value; a label that is missing has the value ""."""
    wanted = matcher.value
    match matcher.op:
        case MatchOperator.EQUAL:
            return lambda value: value == wanted
        case MatchOperator.NOT_EQUAL:
            return lambda value: value != wanted
        case MatchOperator.MATCHES:
            return Pattern(wanted).matches
        case MatchOperator.MATCHES_NOT:
            matches = Pattern(wanted).matches
            return lambda value: not matches(value)
