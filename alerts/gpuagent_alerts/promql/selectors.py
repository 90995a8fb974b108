"""Selectors: which series of a tick an expression looks at, with the regular expressions of Prometheus (RE2)."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuagent.core.matchers import Matcher, MatchOperator, RegexError, compile_regex
from gpuagent_alerts.promql.series import Tick, VectorPlan
from gpuagent_alerts.promql.syntax import Selector
from gpuagent_alerts.promql.values import METRIC_NAME, Element, ExpressionError

# C++ takes these and Go does not. What is quoted, a pair with a backslash or \Q...\E, is skipped first.
_FOREIGN = re.compile(r"(?P<foreign>\\C|\(\?<)|\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?\w*:\]|[^\]\\])*\]", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\$|\{(?P<braced>\w+)\}|(?P<plain>\w+))?")
_GROUP_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_REMEMBERED_VALUES = 4096


class Pattern:
    """A pattern that has to match the whole text. The same values come tick after tick, so answers are remembered."""

    def __init__(self, pattern: str) -> None:
        """Compile a pattern. Raises ExpressionError for what Prometheus would not compile."""
        try:
            # By itself first: `a)|(b` is no pattern, though it is one inside the parentheses.
            compile_regex(pattern)
            self._regex = compile_regex(f"(?:{pattern})")
        except RegexError as error:
            raise ExpressionError(f"the regular expression {pattern!r} is wrong: {error}") from None
        foreign = next((match["foreign"] for match in _FOREIGN.finditer(pattern) if match["foreign"]), None)
        if foreign is not None:
            raise ExpressionError(f"the regular expression {pattern!r} has {foreign}, which Prometheus does not know")
        self._answers: dict[str, bool] = {}

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        answer = self._answers.get(text)
        if answer is None:
            if len(self._answers) >= _REMEMBERED_VALUES:
                self._answers.clear()
            answer = self._answers[text] = self._regex.fullmatch(text) is not None
        return answer

    def groups(self, text: str) -> list[str] | None:
        """Return the whole text and the groups in it, "" for one that took no part; None without a match."""
        match = self._regex.fullmatch(text)
        return None if match is None else [match[0], *(group or "" for group in match.groups())]

    def template(self, template: str) -> Callable[[list[str]], str]:
        r"""Return how Go expands a replacement: `$1`, `${1}x`, `$name`, `$$`; a group that is not there is empty."""
        names = self._regex.groupindex
        count = self._regex.groups
        parts: list[str | int] = []
        end = 0
        for reference in _REFERENCE.finditer(template):
            parts.append(template[end : reference.start()])
            end = reference.end()
            name = reference["braced"] or reference["plain"]
            if name is None:
                parts.append("$")
            elif _GROUP_NUMBER.fullmatch(name):
                if int(name) <= count:
                    parts.append(int(name))
            elif name in names:
                parts.append(names[name])
        parts.append(template[end:])
        return lambda groups: "".join([groups[part] if isinstance(part, int) else part for part in parts])


Test = Callable[[str], bool]
Filter = Callable[[list[Element]], list[Element]]


def plan_selector(selector: Selector) -> VectorPlan:
    """Plan a selector. Raises ExpressionError for a wrong pattern, and where all would be selected by mistake."""
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


def accepts(selector: Selector, label: str, value: str) -> bool:
    """Return whether all matchers on a label take this value. Raises ExpressionError for a wrong pattern."""
    return all(_test(matcher)(value) for matcher in selector.matchers if matcher.name == label)


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
    """Return the test of a label's value; a label that is missing has the value ""."""
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
