"""Find what an expression hardly means: labels that none of its series has, and conditions that combine otherwise.

A matcher on a label that no series has holds of all series, or of none. Labels of the agent's families are known from
`core.metrics`, those of recorded series from what they record; a series of unknown origin may have any label. `or`
takes in more than it looks, and a range of amounts spares the process that holds most. Nothing of that is an error; it
is worth a note, because a rule that is true beside what was meant is noticed too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuagent.core.matchers import Matchers
from gpuagent_alerts.promql.expression import Expression
from gpuagent_alerts.promql.lexer import Kind, tokenize
from gpuagent_alerts.promql.numbers import COMPARISONS
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
from gpuagent_alerts.rules.plausibility import comparison_text
from gpuagent_alerts.rules.shares import amount_of, constant, share_of

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


_UPWARDS = {">": ">", ">=": ">", "<": "<", "<=": "<"}
_TURNED = {">": "<", ">=": "<", "<": ">", "<=": ">"}
_HELD = frozenset(
    f"gpuagent_{name}_bytes" for name in ("process_memory_used", "process_resident_memory", "budget_used")
)


def condition_notes(expression: Expression) -> list[str]:
    """Return a text for each alternative without the other's condition, and each range that spares the largest."""
    tree = expression.tree
    found = list(_ranges(tree))
    if _mixes_operators(expression.text):
        found += _alternatives(tree)
    return list(dict.fromkeys(found))


def _ranges(node: Node) -> Iterator[str]:
    """Yield a text for each comparison of what a comparison leaves, as in `used < 20e9 > 1e9`."""
    match node:
        case Binary(outer, Binary(inner) as compared, _) if outer in COMPARISONS and inner in COMPARISONS:
            limits = [_limit(compared), _limit(Binary(outer, compared.left, node.right, False, node.matching))]
            high = next((each for each in limits if each is not None and each[1] == "<"), None)
            if (
                high is not None
                and all(limits)
                and high[0] in _HELD
                and {each[1] for each in limits if each} == {"<", ">"}
            ):
                yield (
                    f"{high[0]} has to be below {high[2]:g} as well: whoever holds more than that, and so the largest,"
                    " is spared"
                )
    for child in children(node):
        yield from _ranges(child)


def _alternatives(node: Node) -> Iterator[str]:
    """Yield a text for each side of an `or` that is true of less than the other, and has no condition beside it."""
    match node:
        case Binary("or", left, right):
            for narrow, wide in ((left, right), (right, left)):
                conditions, alone = _conditions(narrow), _alternative(wide)
                if len(conditions) > 1 and alone is not None and any(_is_wider(alone, each) for each in conditions):
                    yield (
                        f"`or` binds weaker than `and`: {comparison_text(alone)} is enough by itself, without what"
                        " stands beside the other amount. Write `(A or B) and C`, or the"
                        " brackets of `(A and C) or B` if this is meant"
                    )
    for child in children(node):
        yield from _alternatives(child)


def _conditions(node: Node) -> list[Binary]:
    """Return the comparisons that have to hold together, with what must not hold."""
    match node:
        case Binary("and" | "unless", left, right):
            return [*_conditions(left), *_conditions(right)]
        case Binary(operator) if operator in COMPARISONS:
            return [node]
    return []


def _alternative(node: Node) -> Binary | None:
    return node if isinstance(node, Binary) and node.operator in COMPARISONS else None


def _is_wider(one: Binary, other: Binary) -> bool:
    """Return whether a comparison holds of more than another one of the same amount or share."""
    wide, narrow = _limit(one), _limit(other)
    if wide is None or narrow is None or wide[:2] != narrow[:2]:
        return False
    return wide[2] < narrow[2] if wide[1] == ">" else wide[2] > narrow[2]


def _limit(node: Binary) -> tuple[str, str, float] | None:
    """Return which amount or share is compared, in which direction, and its limit without factors."""
    for side, other, directions in ((node.left, node.right, _UPWARDS), (node.right, node.left, _TURNED)):
        limit, direction = constant(other), directions.get(node.operator)
        if limit is None or direction is None:
            continue
        if amount := amount_of(side):
            return amount.family, direction, limit / amount.factor
        if share := share_of(side):
            return f"{share.part} / {share.whole}", direction, limit / share.factor
    return None


def _mixes_operators(text: str) -> bool:
    """Return whether `or` stands beside `and` or `unless` within the same brackets."""
    levels: list[set[str]] = [set()]
    for token in tokenize(text):
        if token.in_braces:
            continue
        if token.text == "(":
            levels.append(set())
        elif token.text == ")":
            levels.pop()
        elif token.kind is Kind.NAME and (word := token.text.lower()) in {"and", "or", "unless"}:
            levels[-1].add(word)
            if len(levels[-1]) > 1 and "or" in levels[-1]:
                return True
    return False
