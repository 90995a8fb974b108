"""Which labels and values the alerts of a rule can have, by its expression and labels; and matchers that miss them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice, product
from types import MappingProxyType

from gpuagent.core.growth import Evidence, Verdict
from gpuagent.core.matchers import Matcher, Matchers, MatchOperator
from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.alerting import UndeliveredReason
from gpuagent_alerts.promql.functions import CALENDAR_FUNCTIONS
from gpuagent_alerts.promql.numbers import SET_OPERATORS
from gpuagent_alerts.promql.syntax import (
    Aggregation,
    Binary,
    Call,
    Cardinality,
    Matching,
    Negation,
    Node,
    Number,
    Selector,
    String,
    is_scalar,
)
from gpuagent_alerts.rules.model import AlertRule, RecordRule, Rule, RuleGroup, suggest

Values = frozenset[str] | None
"""What a label can be, "" where it may be missing; None is anything."""
Labels = Mapping[str, Values]
"""The labels that results can have; any other is missing."""

_MISSING = frozenset({""})
_NOTHING: Labels = MappingProxyType({})
_CLOSED: Mapping[str, frozenset[str]] = {
    "evidence": frozenset(map(str, Evidence)),
    "verdict": frozenset(map(str, Verdict)),
    "why": frozenset(map(str, UndeliveredReason)),
    "dry_run": frozenset({"true", "false"}),
}
"""Labels whose values the agent chooses from a fixed set, of whichever family."""
FAMILY_LABELS: Mapping[str, Labels] = {
    family.name: {name: _CLOSED[name] | _MISSING if name in _CLOSED else None for name in family.labels}
    for family in FAMILIES
}
"""Labels of the series of each family that the agent exports."""
_OF_THE_NODE: Labels = {"simulated": frozenset({"", "true"})}
"""Labels of every alert on a simulated node."""
_KEEPING = frozenset({"topk", "bottomk"})
_ALWAYS_THERE = frozenset({"gpu", "uuid", "pid", "process", "xid"})
"""Labels of open values that every series has whose family has them."""
_WITHOUT_LABELS = frozenset({"scalar", "time", "vector"})
_LITERALS = re.compile(r"[^\\^$.*+?()\[\]{}]*")


class _UnknownError(Exception):
    """The expression reads series of which nothing is known."""


class AlertLabels:
    """What the labels of the alerts of one rule can be."""

    __slots__ = ("labels", "name", "rule")

    def __init__(self, rule: AlertRule, labels: Labels | None) -> None:
        """`labels` are those of the expression's results; None where they can be any."""
        self.rule = rule
        self.name = rule.name
        self.labels = labels

    def has(self, label: str) -> bool:
        """Return whether some of the alerts may have this label."""
        return self.values(label) != _MISSING

    def values(self, label: str) -> Values:
        """Return what a label can be."""
        if label == "alertname":
            return frozenset({self.name})
        if (own := self.rule.labels.get(label)) is not None:
            return frozenset({own.text}) if own.is_constant else None
        if label in _OF_THE_NODE:
            return _OF_THE_NODE[label]
        return None if self.labels is None else self.labels.get(label, _MISSING)

    def narrowed(self, label: str, matchers: Iterable[Matcher]) -> Values:
        """Return what a label can be where all of these matchers hold that are about it."""
        return narrow(self.values(label), [matcher for matcher in matchers if matcher.name == label])

    def can_match(self, matchers: Sequence[Matcher]) -> bool:
        """Return whether all of these can hold of an alert."""
        return all(self.narrowed(matcher.name, matchers) != frozenset() for matcher in matchers)

    def is_taken_by(self, earlier: Sequence[Matcher], later: Sequence[Matcher]) -> bool:
        """Return whether every alert of which the later matchers hold is one of which the earlier ones do."""
        return all(self._follows(matcher, later) for matcher in earlier)

    def _follows(self, matcher: Matcher, given: Sequence[Matcher]) -> bool:
        values = self.narrowed(matcher.name, given)
        if values is None:
            return matcher in given
        return all(Matchers([matcher])({matcher.name: value}) for value in values)

    @property
    def names(self) -> frozenset[str]:
        """Every label that is known of them."""
        return frozenset({"alertname", *self.rule.labels, *_OF_THE_NODE, *(self.labels or ())})


def labels_of_rules(groups: Iterable[RuleGroup], budgets: Iterable[str] = ()) -> list[AlertLabels]:
    """Return what is known of the alerts of all rules; `budgets` are the labels of those that are configured."""
    families: dict[str, Labels | None] = dict(FAMILY_LABELS)
    named = frozenset(budgets) | _MISSING
    for name, family_labels in FAMILY_LABELS.items():
        if "budget" in family_labels:
            families[name] = {**family_labels, "budget": named}
    rules: list[Rule] = [rule for group in groups for rule in group.rules]
    known = series_labels(rules, families)
    return [AlertLabels(rule, labels_of(rule.expression.tree, known)) for rule in rules if isinstance(rule, AlertRule)]


def series_labels(
    rules: Iterable[Rule], families: Mapping[str, Labels | None] = FAMILY_LABELS
) -> dict[str, Labels | None]:
    """Return the labels of all series by name: those of families, and of what these rules record."""
    known = dict(families)
    for rule in rules:
        if isinstance(rule, RecordRule):
            labels = labels_of(rule.expression.tree, known)
            own = {name: frozenset({value}) for name, value in rule.labels.items()}
            before = known.get(rule.name, _NOTHING)
            known[rule.name] = None if labels is None or before is None else _either(before, {**labels, **own})
    return known


def untaken_example(
    alert: AlertLabels, routes: Sequence[Sequence[Matcher]], most: int = 4096
) -> Mapping[str, str] | None:
    """Return labels that an alert may have and that none of these matchers take; None where no such are found.

    Of a label that may be any text, the values that the matchers name are tried, another one, and that it is missing.
    """
    matchers = [matcher for route in routes for matcher in route]
    tried = {name: _samples(alert, name, matchers) for name in dict.fromkeys(matcher.name for matcher in matchers)}
    compiled = [Matchers(route) for route in routes]
    for values in islice(product(*tried.values()), most):
        labels = dict(zip(tried, values, strict=True))
        if not any(matches(labels) for matches in compiled):
            return {name: value for name, value in labels.items() if value}
    return None


def _samples(alert: AlertLabels, label: str, matchers: Iterable[Matcher]) -> list[str]:
    values = alert.values(label)
    if values is not None:
        return sorted(values)
    named = {value for matcher in matchers if matcher.name == label for value in literals(matcher) or _meant(matcher)}
    other = next(text for text in ("7", "other", "another one", "8") if text not in named)
    found = (named | {other, ""}) - ({""} if label in _ALWAYS_THERE else set())
    return sorted(found)


def labels_of(node: Node, known: Mapping[str, Labels | None]) -> Labels | None:
    """Return the labels of an expression's results; None where it reads series of which they are not known."""
    try:
        return _of(node, known)
    except _UnknownError:
        return None


def _of(node: Node, known: Mapping[str, Labels | None]) -> Labels:
    match node:
        case Number() | String():
            return _NOTHING
        case Selector():
            return _of_selector(node, known)
        case Negation(operand):
            return _of(operand, known)
        case Aggregation():
            return _of_aggregation(node, known)
        case Call():
            return _of_call(node, known)
        case Binary():
            return _of_binary(node, known)


def _of_selector(node: Selector, known: Mapping[str, Labels | None]) -> Labels:
    labels = known.get(node.name) if node.name is not None else None
    if labels is None:
        raise _UnknownError
    found = dict(labels)
    for matcher in node.matchers:
        values = narrow(found.get(matcher.name, _MISSING), [matcher])
        if matcher.name in found or values != _MISSING:  # a matcher makes no label that the series do not have
            found[matcher.name] = values
    return found


def _of_aggregation(node: Aggregation, known: Mapping[str, Labels | None]) -> Labels:
    labels = _of(node.operand, known)
    if node.operator in _KEEPING:
        return labels
    kept = {name: values for name, values in labels.items() if (name in node.labels) != node.without}
    if node.operator == "count_values" and isinstance(node.parameter, String):
        kept[node.parameter.value] = None
    return kept


def _of_call(node: Call, known: Mapping[str, Labels | None]) -> Labels:
    if node.function in _WITHOUT_LABELS or (node.function in CALENDAR_FUNCTIONS and not node.arguments):
        return _NOTHING
    if node.function == "absent":
        (operand,) = node.arguments
        equal = operand.matchers if isinstance(operand, Selector) else ()
        return {each.name: frozenset({each.value}) for each in equal if each.op is MatchOperator.EQUAL}
    operands = [each for each in node.arguments if not isinstance(each, Number | String)]
    labels = _of(operands[0], known) if operands else _NOTHING
    match node:
        case Call("label_replace" | "label_join", (_, String(label), *_)):
            return {**labels, label: None}
    return labels


def _of_binary(node: Binary, known: Mapping[str, Labels | None]) -> Labels:
    left = _of(node.left, known)
    if node.operator in SET_OPERATORS and node.operator != "or":
        return left
    right = _of(node.right, known)
    if node.operator == "or":
        return _either(left, right)
    if is_scalar(node.left) or is_scalar(node.right):
        return right if is_scalar(node.left) else left
    return _joined(node.matching, left, right)


def _joined(matching: Matching, left: Labels, right: Labels) -> Labels:
    if matching.cardinality is Cardinality.ONE_TO_ONE:
        return {name: values for name, values in left.items() if (name in matching.labels) == matching.on}
    is_right = matching.cardinality is Cardinality.ONE_TO_MANY
    many, one = (right, left) if is_right else (left, right)
    taken = {name: one[name] for name in matching.include if name in one}
    return {**{name: values for name, values in many.items() if name not in matching.include}, **taken}


def _either(left: Labels, right: Labels) -> Labels:
    found: dict[str, Values] = {}
    for name in {**left, **right}:
        sides = left.get(name, _MISSING), right.get(name, _MISSING)
        found[name] = None if None in sides else frozenset().union(*(side for side in sides if side is not None))
    return found


def narrow(values: Values, matchers: Sequence[Matcher]) -> Values:
    """Return what a label can be where all of these hold, which are about it; empty where they cannot hold."""
    if values is None:
        equal = [matcher.value for matcher in matchers if matcher.op is MatchOperator.EQUAL]
        literal = [frozenset(found) for each in matchers if (found := literals(each)) and _is_positive(each)]
        if not (equal or literal):
            return None
        values = reduce(frozenset.intersection, [*literal, *(frozenset({one}) for one in equal)])
    return frozenset(value for value in values if Matchers(matchers)({matchers[0].name: value})) if matchers else values


def literals(matcher: Matcher) -> tuple[str, ...]:
    """Return the values that a matcher names: one, or the alternatives of a pattern; none of any other pattern."""
    if not matcher.op.is_pattern:
        return (matcher.value,)
    inner = matcher.value
    if inner.startswith("(") and inner.endswith(")") and inner.count("(") == 1:
        inner = inner[1:-1].removeprefix("?:")
    return tuple(inner.split("|")) if _LITERALS.fullmatch(inner) else ()


def _meant(matcher: Matcher) -> tuple[str, ...]:
    """Return texts that a simple pattern means, as `a.service` and `a.*` do; they may as well not match."""
    plain = re.sub(r"\\(.)", r"\1", matcher.value.replace(".*", "").replace(".+", "x"))
    return tuple(plain.split("|"))


def _is_positive(matcher: Matcher) -> bool:
    return matcher.op in {MatchOperator.EQUAL, MatchOperator.MATCHES}


_MOST_NAMED = 6
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def matcher_note(
    matcher: Matcher, alerts: Sequence[AlertLabels], disabled: Collection[str] = (), further: Collection[str] = ()
) -> str:
    """Return why a matcher cannot mean what it says, with what was probably meant; "" where it can.

    `disabled` are names of rules that were left out, `further` are labels that may be matched beside those of alerts.
    """
    if matcher.name in further:
        return ""
    if note := label_note(matcher.name, alerts, further):
        return note
    values = known_values(matcher.name, alerts)
    if values is None:
        return _form_note(matcher)
    named = literals(matcher)
    unknown = [value for value in named if value and value not in values]
    if unknown:
        return "; ".join(_never(matcher.name, value, values, disabled) for value in unknown)
    if named or any(Matchers([_positive(matcher)])({matcher.name: value}) for value in values):
        return ""
    return (
        f"no rule has a name of which {matcher} holds"
        if matcher.name == "alertname"
        else f"{matcher} holds of no alert"
    )


def label_note(label: str, alerts: Sequence[AlertLabels], further: Collection[str] = ()) -> str:
    """Return why a label means nothing: no alert has it; "" where one may."""
    if label in further or not alerts or any(alert.labels is None or label in alert.names for alert in alerts):
        return ""
    near = suggest(label, set(further).union(*(alert.names for alert in alerts)))
    return f"no alert has a label {label}{near and f'; {near}'}"


def excludes_by_unknown(matcher: Matcher, alerts: Iterable[AlertLabels]) -> bool:
    """Return whether a matcher holds of all of these because none can have its label, as `usr!="ann"` does."""
    is_unknown = all(alert.labels is not None and matcher.name not in alert.names for alert in alerts)
    return is_unknown and Matchers([matcher])({})


def unknown_label_text(label: str, alerts: Sequence[AlertLabels]) -> str:
    """Return that alerts have no such label, with one that was probably meant."""
    names = list(dict.fromkeys(alert.name for alert in alerts))
    near = suggest(label, frozenset[str]().union(*(alert.names for alert in alerts)))
    subject = f"{names[0]} has no" if len(names) == 1 else f"none of {len(names)} alerts has a"
    return f"{subject} label {label}{near and f' ({near})'}"


def known_values(label: str, alerts: Sequence[AlertLabels]) -> frozenset[str] | None:
    """Return every value that a label may have, without ""; None where it may be any text."""
    found: set[str] = set()
    for alert in alerts:
        values = alert.values(label)
        if values is None:
            return None
        found |= values
    return frozenset(found - {""})


def _never(label: str, value: str, values: frozenset[str], disabled: Collection[str]) -> str:
    near = suggest(value, values)
    if label == "alertname":
        if value in disabled:
            return f"{value} is among disabled_rules: there is no such alert"
        return f"there is no rule {value}{near and f'; {near}'}"
    if not values:
        return f'{label} is never "{value}": none is configured'
    names = sorted(values)
    if near or len(names) > _MOST_NAMED:
        return f'{label} is never "{value}"{near and f"; {near}"}'
    return f'{label} is never "{value}", only {" or ".join(names)}'


def _form_note(matcher: Matcher) -> str:
    """Return why a value does not have the form that all values of a label have."""
    return "; ".join(_wrong_forms(matcher.name, literals(matcher)))


def _wrong_forms(label: str, values: Sequence[str]) -> Iterator[str]:
    for value in filter(None, values):
        if label in {"gpu", "pid", "xid", "uid"} and not (value.isascii() and value.isdecimal()):
            yield f'{label} is a number, as in {label}="0", and never "{value}"'
        if label == "uuid" and _UUID.fullmatch(value) is None:
            yield f'uuid is never "{value}": `nvidia-smi -L` shows those of this machine'


def _positive(matcher: Matcher) -> Matcher:
    return matcher._replace(op=MatchOperator.MATCHES)
