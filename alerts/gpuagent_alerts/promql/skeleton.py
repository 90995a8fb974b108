"""What promql-parser gets to read: the expression without its literals, and without what the agent does not have.

Strings are replaced by `"0"`, `"1"` and so on, and looked up again in the tree: the parser reads escapes by other rules
than Prometheus 2.42. Each matcher becomes an equality: the parser would run patterns through another engine, and judge
what they match by the replaced string. Numbers are written anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from gpuagent_alerts.promql.errors import ExpressionError
from gpuagent_alerts.promql.literals import read_number, read_string
from gpuagent_alerts.promql.tokens import Kind, Token, place
from gpuagent_alerts.promql.values import METRIC_NAME

_LABEL_LISTS = frozenset(["by", "without", "on", "ignoring", "group_left", "group_right"])
_MATCHING_WORDS = frozenset(["on", "ignoring", "group_left", "group_right"])
_OPERATOR_WORDS = frozenset(["and", "or", "unless", "atan2", "bool"])
_AFTER_OPERAND = frozenset(["and", "or", "unless", "atan2", "by", "without"])
_NEEDS_HISTORY = "needs history, which the agent does not have"
_ELSEWHERE = "evaluate this rule in Prometheus"
_MATCH_OPERATORS = frozenset(["=", "!=", "=~", "!~"])


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A text for the parser, and what was taken out of it."""

    text: str
    strings: tuple[str, ...]
    match_operators: tuple[str, ...]
    """What stood before each of the strings, where that is a matcher's."""


def make_skeleton(text: str, tokens: Sequence[Token]) -> Skeleton:
    """Raises ExpressionError for constructs that need history, and for those that Prometheus 2.42 does not know."""
    walk = _Walk(text)
    for token in tokens:
        walk.take(token)
    return walk.end()


class _Walk:
    """Goes through the words once, remembering what is needed to judge the next."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._strings: list[str] = []
        self._match_operators: list[str] = []
        self._words: list[str] = []
        # Per open parenthesis, the word before it: a function, `by`, or "" for a plain one.
        self._owners: list[str] = []
        self._before: Token | None = None
        self._operand_next = True
        self._named_selector = False
        self._plus: Token | None = None

    def take(self, token: Token) -> None:
        """The next word. Raises ExpressionError."""
        self._plus_before(token)
        if token.in_braces:
            self._in_braces(token)
        elif token.kind is Kind.STRING and self._owners and self._owners[-1] in _LABEL_LISTS:
            self._refuse(token, "a label is not quoted: Prometheus 2.42 takes plain names only")
        elif token.kind is Kind.DURATION or (token.text.lower() == "offset" and not self._operand_next):
            self._refuse(token, f"{token.text} {_NEEDS_HISTORY}; write seconds as a number, or {_ELSEWHERE}")
        elif token.kind is not Kind.SYMBOL and not self._operand_next and token.text.lower() not in _AFTER_OPERAND:
            self._refuse(token, f"an operator or a comma is missing before {token.text}")
        else:
            self._outside(token)
        self._words.append(self._written(token))
        self._before = token

    def end(self) -> Skeleton:
        """What the parser gets. Raises ExpressionError."""
        if self._owners:
            raise ExpressionError("a parenthesis ( is not closed")
        if self._before is None:
            raise ExpressionError("the expression is empty")
        if self._operand_next:
            self._refuse(self._before, f"nothing follows {self._before.text}")
        return Skeleton(" ".join(self._words), tuple(self._strings), tuple(self._match_operators))

    def _plus_before(self, token: Token) -> None:
        if self._plus is not None and token.kind is not Kind.NUMBER:
            # promql-parser leaves it out of the tree, and absent(+x) is not absent(x).
            self._refuse(self._plus, "the plus sign before this operand does nothing: leave it out")
        self._plus = token if token.text == "+" and self._operand_next and not token.in_braces else None

    def _outside(self, token: Token) -> None:
        operand_next, self._operand_next = self._operand_next, False
        match token.text:
            case "(":
                named = self._before is not None and self._before.kind is Kind.NAME
                self._owners.append(self._before.text.lower() if named and self._before else "")
                self._operand_next = True
            case ")":
                if not self._owners:
                    self._refuse(token, "this parenthesis ) closes none")
                self._operand_next = self._owners.pop() in _MATCHING_WORDS
            case "[":
                caller = next((f"{owner}(...)" for owner in reversed(self._owners) if owner), "this")
                self._refuse(
                    token,
                    f"{caller} {_NEEDS_HISTORY}: a range vector or a subquery is made of past values; "
                    f"export a *_per_second series or {_ELSEWHERE}",
                )
            case "@":
                self._refuse(token, f"the @ modifier {_NEEDS_HISTORY}: {_ELSEWHERE}")
            case "=":
                self._refuse(token, "= stands inside braces only: values are compared with ==")
            case text:
                self._named_selector = text == "{" and not operand_next
                operator = token.kind is Kind.SYMBOL or text.lower() in _OPERATOR_WORDS | _MATCHING_WORDS
                self._operand_next = operator and text != "{"

    def _in_braces(self, token: Token) -> None:
        before = self._before.text if self._before else ""
        if token.kind is Kind.STRING and before not in _MATCH_OPERATORS:
            self._refuse(token, "a name is not quoted: Prometheus 2.42 takes plain names only")
        if token.kind is Kind.NAME and before not in {"{", ","}:
            self._refuse(token, "matchers are separated by commas, and all of them have to match")
        if token.text == METRIC_NAME and self._named_selector:
            self._refuse(token, "the metric's name is set twice")

    def _written(self, token: Token) -> str:
        try:
            if token.kind is Kind.STRING:
                self._strings.append(read_string(token.text))
                self._match_operators.append(self._before.text if self._before and token.in_braces else "")
                return f'"{len(self._strings) - 1}"'
            if token.kind is Kind.NUMBER:
                return _decimal(read_number(token.text))
        except ExpressionError as error:
            self._refuse(token, str(error))
        return "=" if token.in_braces and token.text in _MATCH_OPERATORS else token.text

    def _refuse(self, token: Token, why: str) -> NoReturn:
        raise ExpressionError(f"{place(self._text, token.offset)}: {why}")


def _decimal(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Inf" if math.isinf(value) else repr(value)
