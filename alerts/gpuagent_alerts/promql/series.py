"""What expressions are evaluated on: the series of one tick, by metric name, and the selectors that choose among them.

A node of the tree is compiled to a plan: a closure over the tick, of the node's type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from gpuagent.core.matchers import Matcher, MatchOperator, RegexError, compile_regex, literal_alternatives
from gpuagent.core.metrics.family import Family, Sample
from gpuagent_alerts.promql.syntax import Selector
from gpuagent_alerts.promql.values import (
    METRIC_NAME,
    Element,
    EvaluationError,
    ExpressionError,
    LabelSet,
    Row,
    ValueType,
    to_vector,
    without_name,
)

LabelValues = tuple[str | None, ...]
_NOTHING: list[Element] = []
"""Always the same object, so that nothing is seen to be the same again."""


class _Read(NamedTuple):
    """Samples of a metric, and the elements that they became."""

    samples: list[Sample]
    elements: list[Element]


class SeriesIndex:
    """Built once per tick. A metric's samples become elements when a rule first asks for them, and not again.

    Samples that are the very list of the tick before become the very elements of then: an expression on nothing else
    need not be evaluated.

    No two series of a tick have the same name and labels: what makes them sees to that.
    """

    def __init__(self, samples: Iterable[tuple[str, Mapping[str, str], float]] = ()) -> None:
        self._names: dict[str, None] = {}
        self._elements: dict[str, list[Element]] = {}
        self._pending: dict[str, list[tuple[tuple[str, ...], list[Sample]]]] = {}
        self.read: dict[str, _Read] = {}
        """The samples of registered families that rules have asked for: for the index after this one."""
        self._before: Mapping[str, _Read] = {}
        self._label_sets: dict[tuple[str, ...], dict[LabelValues, LabelSet]] = {}
        for name, labels, value in samples:
            self._names[name] = None
            self._elements.setdefault(name, []).append((name, without_name(labels)[1], float(value)))

    @classmethod
    def of(cls, series: Iterable[tuple[Family[Any], list[Sample]]], before: SeriesIndex | None = None) -> Self:
        """Index series of registered families. A label that is None or "" is absent. `before` is the last tick's."""
        index = cls()
        index._before = before.read if before is not None else {}
        for family, samples in series:
            index.add(family, samples)
        return index

    def add(self, family: Family[Any], samples: list[Sample]) -> None:
        """Add a registered family (`core.metrics`); its samples are read when they are asked for."""
        self._names[family.name] = None
        # No closure: an index that refers to itself would outlive its tick until the garbage collector comes.
        self._pending.setdefault(family.name, []).append((family.labels, samples))

    def names(self) -> Sequence[str]:
        """Return every metric name, in the order in which it came."""
        return list(self._names)

    def get(self, name: str) -> Sequence[Row]:
        """Return the series of a metric as rows, `__name__` among the labels; empty for a name that is not there."""
        return to_vector(self.elements(name))

    def elements(self, name: str) -> list[Element]:
        """Return the series of a metric as the engine sees them. Not to be changed."""
        for label_names, samples in self._pending.pop(name, ()):
            elements = self._elements_of(name, label_names, samples)
            known = self._elements.get(name)
            self._elements[name] = elements if known is None else [*known, *elements]
        return self._elements.get(name, _NOTHING)

    def _elements_of(self, name: str, label_names: tuple[str, ...], samples: list[Sample]) -> list[Element]:
        before = self._before.get(name)
        if before is not None and before.samples is samples:
            self.read[name] = before
            return before.elements
        old = before if before is not None and len(before.samples) == len(samples) else None
        elements = (
            self._made(name, label_names, samples) if old is None else self._renewed(name, label_names, samples, old)
        )
        self.read[name] = _Read(samples, elements)
        return elements

    def _made(self, name: str, label_names: tuple[str, ...], samples: Iterable[Sample]) -> list[Element]:
        return [(name, self._label_set(label_names, values), float(value)) for values, value in samples]

    def _renewed(self, name: str, label_names: tuple[str, ...], samples: Iterable[Sample], old: _Read) -> list[Element]:
        """Return this tick's elements; where as many as before came, labels of the same need not be made again."""
        return [
            (name, element[1] if values is then else self._label_set(label_names, values), float(value))
            for (values, value), (then, _), element in zip(samples, old.samples, old.elements, strict=True)
        ]

    def _label_set(self, label_names: tuple[str, ...], values: LabelValues) -> LabelSet:
        known = self._label_sets.setdefault(label_names, {})
        labels = known.get(values)
        if labels is None:
            labels = known[values] = LabelSet(
                (label, text) for label, text in zip(label_names, values, strict=True) if text
            )
        return labels


class Tick(NamedTuple):
    """What an evaluation looks at. Time is in milliseconds because Prometheus' is."""

    series: SeriesIndex
    milliseconds: int


@dataclass(frozen=True, slots=True)
class ScalarPlan:
    """Evaluates to a number."""

    run: Callable[[Tick], float]
    type = ValueType.SCALAR


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """Evaluates to a vector; the list is the caller's to read, not to change.

    `distinct` says that no two elements can have the same labels even without their names: then dropping the names
    needs no check, which would cost more than the operation itself.
    """

    run: Callable[[Tick], list[Element]]
    distinct: bool
    type = ValueType.VECTOR


@dataclass(frozen=True, slots=True)
class StringPlan:
    """A literal: an argument of a function or aggregation."""

    value: str
    type = ValueType.STRING


Plan = ScalarPlan | VectorPlan | StringPlan


def checked(run: Callable[[Tick], list[Element]], *, distinct: bool) -> VectorPlan:
    """Return a plan that drops names: where elements may become the same by that, it is checked that they do not."""
    if distinct:
        return VectorPlan(run, distinct=True)
    return VectorPlan(lambda tick: require_distinct(run(tick)), distinct=True)


def require_distinct(elements: list[Element]) -> list[Element]:
    """Return the elements. Raises EvaluationError where two have the same name and labels."""
    if len(elements) > 1 and len({(name, labels.key()) for name, labels, _ in elements}) < len(elements):
        raise EvaluationError("vector cannot contain metrics with the same labelset")
    return elements


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
    tests = [(matcher, value_test(matcher)) for matcher in selector.matchers]
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
    return all(value_test(matcher)(value) for matcher in selector.matchers if matcher.name == label)


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


def value_test(matcher: Matcher) -> Test:
    """Return the test of a label's value; a label that is missing has the value ""."""
    wanted = matcher.value
    match matcher.op:
        case MatchOperator.EQUAL:
            return lambda value: value == wanted
        case MatchOperator.NOT_EQUAL:
            return lambda value: value != wanted
        case MatchOperator.MATCHES:
            return _whole_match(wanted)
        case MatchOperator.MATCHES_NOT:
            matches = _whole_match(wanted)
            return lambda value: not matches(value)


def _whole_match(pattern: str) -> Test:
    literals = literal_alternatives(pattern)
    return Pattern(pattern).matches if literals is None else literals.__contains__
