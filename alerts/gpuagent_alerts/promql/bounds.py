"""How large an expression may be. Checked before it is parsed: promql-parser's stack overflows on deep nesting."""

from __future__ import annotations

from collections.abc import Iterable

from gpuagent_alerts.promql.errors import ExpressionError
from gpuagent_alerts.promql.tokens import Kind, Token

MAX_BYTES = 8 * 1024
MAX_DEPTH = 64

_OPERATORS = frozenset(["+", "-", "*", "/", "%", "^", "==", "!=", "<", "<=", ">", ">="])
_OPERATOR_WORDS = frozenset(["and", "or", "unless", "atan2"])


def check_length(text: str) -> None:
    """Raises ExpressionError for a text that is too long, or that is no Unicode."""
    try:
        # A character has one byte at least: what is much too long is not even encoded.
        length = len(text) if len(text) > MAX_BYTES else len(text.encode())
    except UnicodeEncodeError:
        raise ExpressionError("the expression has half of a character (a lone surrogate)") from None
    if length > MAX_BYTES:
        raise ExpressionError(
            f"the expression has {length} bytes and may have {MAX_BYTES}: split it with recording rules"
        )


def check_depth(tokens: Iterable[Token]) -> None:
    """Raises ExpressionError where the tree could be deeper than MAX_DEPTH.

    Each operator on one level of parentheses may add one to the depth, and so does each pair of parentheses.
    """
    # Per open parenthesis: the operators since it, and how deep its insides went where they are closed again.
    levels = [(0, 0)]
    open_operators = 0
    for token in tokens:
        if token.in_braces or token.kind in {Kind.STRING, Kind.NUMBER, Kind.DURATION}:
            continue
        operators, inside = levels[-1]
        if token.text == "(":
            levels.append((0, 0))
        elif token.text == ")" and len(levels) > 1:
            levels.pop()
            open_operators -= operators
            outer_operators, outer_inside = levels[-1]
            levels[-1] = (outer_operators, max(outer_inside, operators + inside + 1))
        elif token.text in _OPERATORS or token.text.lower() in _OPERATOR_WORDS:
            levels[-1] = (operators + 1, inside)
            open_operators += 1
        if open_operators + levels[-1][1] + len(levels) - 1 > MAX_DEPTH:
            raise ExpressionError(
                f"the expression is nested more than {MAX_DEPTH} deep (parentheses and operators count): "
                "split it with recording rules"
            )
