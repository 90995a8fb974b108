"""Find conditions that are combined otherwise than they look: what `or` takes in, and whom a range of amounts spares.

Nothing here is impossible. It is worth a note, as what is true of a rule beside what was meant is noticed too late.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuagent_alerts.promql.expression import Expression
from gpuagent_alerts.promql.lexer import Kind, tokenize
from gpuagent_alerts.promql.numbers import COMPARISONS
from gpuagent_alerts.promql.syntax import Binary, Node
from gpuagent_alerts.rules.label_names import children
from gpuagent_alerts.rules.plausibility import comparison_text
from gpuagent_alerts.rules.shares import amount_of, constant, share_of

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
