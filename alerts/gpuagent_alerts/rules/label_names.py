"""Find labels in an expression that none of its series has: a matcher on one holds of all series, or of none.

Labels of the agent's families are known by the catalogue, those of recorded series by what they record. What is not
known has every label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuagent.core.matchers import Matchers
from gpuagent_alerts.promql.syntax import (
    Aggregation,
    Binary,
    Call,
    Cardinality,
    Negation,
    Node,
    Selector,
    is_scalar,
)
from gpuagent_alerts.promql.values import METRIC_NAME
from gpuagent_alerts.rules.alert_labels import FAMILY_LABELS, Labels, labels_of
from gpuagent_alerts.rules.model import suggest

_BY_PROMETHEUS = frozenset({"job", "instance"})
"""Labels that Prometheus adds: rules that are written for both group and match by them."""
_INFO = "gpuagent_process_info"
_OF_PROCESSES = "gpuagent_process_"
_MOST_SHOWN = 8

Known = Mapping[str, Labels | None]
"""Labels of series by name; None where they can be any."""


def unknown_matchers(tree: Node, known: Known = FAMILY_LABELS) -> list[str]:
    """Return a text for each matcher on a label that no series of its name has, with what was probably meant."""
    return list(dict.fromkeys(note for each in _selectors(tree) for note in _of_selector(each, known)))


def unknown_modifiers(tree: Node, known: Known = FAMILY_LABELS) -> list[str]:
    """Return a text for each label of `by`, `without`, `on`, `ignoring` and `group_left` that no operand has."""
    return list(dict.fromkeys(_modifiers(tree, known)))


def children(node: Node) -> tuple[Node, ...]:
    """Return the operands of a node, without the parameter of an aggregation."""
    match node:
        case Negation(operand) | Aggregation(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return (left, right)
        case Call(_, arguments):
            return arguments
    return ()


def _selectors(node: Node) -> Iterator[Selector]:
    if isinstance(node, Selector):
        yield node
    for child in children(node):
        yield from _selectors(child)


def _of_selector(node: Selector, known: Known) -> Iterator[str]:
    labels = known.get(node.name) if node.name is not None else None
    if labels is None:
        return
    for matcher in node.matchers:
        label = matcher.name
        if label in labels or label == METRIC_NAME:
            continue
        always = Matchers([matcher])({})
        effect = f"{matcher} holds of all of them" if always else f"{matcher} never holds"
        yield f"no series of {node.name} has a label {label}, so that {effect}{_instead(str(node.name), label, labels)}"


def _instead(name: str, label: str, labels: Labels) -> str:
    if label in _BY_PROMETHEUS:
        return ": Prometheus adds it, and the agent reads its own series"
    if name.startswith(_OF_PROCESSES) and label in FAMILY_LABELS[_INFO]:
        return f": {_INFO} has it, which is joined `on (gpu, uuid, pid)`"
    return _meant(label, labels)


def _meant(label: str, labels: Iterable[str]) -> str:
    names = sorted(labels)
    if near := suggest(label.lower(), names):
        return f"; {near}"
    return f": it has {', '.join(names)}" if 0 < len(names) <= _MOST_SHOWN else ""


def _modifiers(node: Node, known: Known) -> Iterator[str]:
    match node:
        case Aggregation(operator, operand) if node.labels:
            word = "without" if node.without else "by"
            yield from _unknown(node.labels, (labels_of(operand, known),), f"`{operator} {word} (...)`")
        case Binary(_, left, right) if not (is_scalar(left) or is_scalar(right)):
            sides = labels_of(left, known), labels_of(right, known)
            matching = node.matching
            yield from _unknown(matching.labels, sides, f"`{'on' if matching.on else 'ignoring'} (...)`")
            word = "group_right" if matching.cardinality is Cardinality.ONE_TO_MANY else "group_left"
            yield from _unknown(matching.include, sides, f"`{word} (...)`")
    for child in children(node):
        yield from _modifiers(child, known)


def _unknown(labels: Iterable[str], sides: tuple[Labels | None, ...], where: str) -> Iterator[str]:
    """Yield a text for each label that no side has; what reads no series has any, as nothing is looked for in it."""
    if None in sides or not any(sides):
        return
    names = frozenset[str]().union(*(side for side in sides if side is not None))
    for label in labels:
        if label not in names | _BY_PROMETHEUS:
            yield f"nothing that {where} is about has a label {label}{_meant(label, names)}"
