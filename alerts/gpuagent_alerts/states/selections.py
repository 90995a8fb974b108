"""What a rule depends on: the metrics that it selects, through recording rules down to what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpuagent.core.matchers import Matcher, MatchOperator
from gpuagent_alerts.promql.selectors import Pattern
from gpuagent_alerts.promql.syntax import Selector
from gpuagent_alerts.promql.values import METRIC_NAME
from gpuagent_alerts.rules.model import RecordRule, Rule
from gpuagent_alerts.states.group import GroupRunner, RuleKey
from gpuagent_alerts.states.missing import FAMILIES, Selection

ALERT_SERIES = ("ALERTS", "ALERTS_FOR_STATE")
"""What alert rules write, as in Prometheus."""
_GPU_LABELS = frozenset({"gpu", "uuid"})


def select(runners: Iterable[GroupRunner]) -> dict[RuleKey, Sequence[Selection]]:
    """The selections of every rule."""
    rules = {running.key: running.rule for runner in runners for running in runner.rules}
    recorded: dict[str, list[Rule]] = {}
    for rule in rules.values():
        if isinstance(rule, RecordRule):
            recorded.setdefault(rule.name, []).append(rule)
    return {key: tuple(_selections(rule, recorded, frozenset())) for key, rule in rules.items()}


def _selections(rule: Rule, recorded: Mapping[str, list[Rule]], above: frozenset[str]) -> Iterable[Selection]:
    for selector in rule.expression.selectors:
        for name in _names(selector, recorded):
            if name in recorded and name not in above:
                for source in recorded[name]:
                    yield from _selections(source, recorded, above | {name})
            elif name not in recorded:
                yield Selection(name, _takes(selector))


def _names(selector: Selector, recorded: Mapping[str, list[Rule]]) -> Iterable[str]:
    if selector.name is not None:
        return (selector.name,)
    tests = [_test(matcher) for matcher in selector.matchers if matcher.name == METRIC_NAME]
    known = dict.fromkeys((*(family.name for family in FAMILIES), *recorded, *ALERT_SERIES))
    return [name for name in known if all(test(name) for test in tests)]


def _takes(selector: Selector) -> Callable[[Mapping[str, str]], bool]:
    tests = [(matcher.name, _test(matcher)) for matcher in selector.matchers if matcher.name in _GPU_LABELS]
    return lambda labels: all(test(labels.get(name, "")) for name, test in tests)


def _test(matcher: Matcher) -> Callable[[str], bool]:
    match matcher.op:
        case MatchOperator.EQUAL:
            return lambda value: value == matcher.value
        case MatchOperator.NOT_EQUAL:
            return lambda value: value != matcher.value
        case MatchOperator.MATCHES:
            return Pattern(matcher.value).matches
        case MatchOperator.MATCHES_NOT:
            matches = Pattern(matcher.value).matches
            return lambda value: not matches(value)
