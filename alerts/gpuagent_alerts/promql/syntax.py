"""The tree of an expression, which is the part of PromQL that the agent evaluates, and how it is made of a text.

The one module that knows promql-parser. What has no node here is refused. The parser is given a text in which strings
are replaced by `"0"`, `"1"` and so on, and looked up again in the tree: it reads escapes by other rules than Prometheus
2.42. Each matcher becomes an equality: the parser would run patterns through another engine, and judge what they match
by the replaced string. Numbers are written anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

import promql_parser

from gpuagent.core.matchers import Matcher, MatchOperator
from gpuagent_alerts.promql.lexer import (
    Kind,
    Token,
    check_depth,
    check_length,
    place,
    read_number,
    read_string,
    tokenize,
)
from gpuagent_alerts.promql.values import METRIC_NAME, ExpressionError


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: float


@dataclass(frozen=True, slots=True)
class String:
    """A literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """Series by name and labels. Without a name, matchers on `__name__` choose among the metrics."""

    name: str | None
    matchers: tuple[Matcher, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """The unary minus."""

    operand: Node


class Cardinality(StrEnum):
    """How many elements of each side belong together."""

    ONE_TO_ONE = "one-to-one"
    MANY_TO_ONE = "many-to-one"
    ONE_TO_MANY = "one-to-many"


@dataclass(frozen=True, slots=True)
class Matching:
    """Which elements of two vectors belong together: `on` or `ignoring`, and `group_left` or `group_right`."""

    cardinality: Cardinality = Cardinality.ONE_TO_ONE
    on: bool = False
    labels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands and what stands between them."""

    operator: str
    left: Node
    right: Node
    returns_bool: bool
    matching: Matching


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Groups of a vector's elements, by some labels or without some."""

    operator: str
    operand: Node
    parameter: Node | None
    without: bool
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function."""

    function: str
    arguments: tuple[Node, ...]


Node = Number | String | Selector | Negation | Binary | Aggregation | Call


def is_scalar(node: Node) -> bool:
    """Return whether a node is a scalar: it is matched with nothing."""
    match node:
        case Number():
            return True
        case Negation(operand):
            return is_scalar(operand)
        case Call(function):
            return function in {"scalar", "time"}
        case Binary(_, left, right):
            return is_scalar(left) and is_scalar(right)
    return False


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
    """Raise ExpressionError for constructs that need history, and for those that Prometheus 2.42 does not know."""
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
        """Take the next token. Raises ExpressionError."""
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
        """Return what the parser gets. Raises ExpressionError."""
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


# The parser's enumerations have no hashes: they are told by their names.
_CARDINALITIES = {
    "VectorMatchCardinality.OneToOne": Cardinality.ONE_TO_ONE,
    "VectorMatchCardinality.ManyToMany": Cardinality.ONE_TO_ONE,  # of and, or, unless, which match as sets
    "VectorMatchCardinality.ManyToOne": Cardinality.MANY_TO_ONE,
    "VectorMatchCardinality.OneToMany": Cardinality.ONE_TO_MANY,
}


def parse(text: str) -> Node:
    """Return the tree of an expression, with types not yet checked.

    Raises ExpressionError: the text is too long, too deep, no PromQL, or more than the agent evaluates.
    """
    check_length(text)
    tokens = tokenize(text)
    check_depth(tokens)
    skeleton = make_skeleton(text, tokens)
    try:
        root = promql_parser.parse(skeleton.text)
    except ValueError as error:
        raise ExpressionError(_explain(str(error))) from None
    return _Tree(skeleton).node(root)


def _explain(error: str) -> str:
    if error == "invalid promql query":
        return "this is no PromQL: look at its operators, parentheses and label lists"
    return error


class _Tree:
    """Turns the parser's nodes into ours."""

    def __init__(self, skeleton: Skeleton) -> None:
        self._skeleton = skeleton

    def node(self, expr: promql_parser.Expr) -> Node:
        """Return the node of a parsed expression; parentheses are in the shape of the tree already."""
        node: Node
        match expr:
            case promql_parser.ParenExpr():
                node = self.node(expr.expr)
            case promql_parser.NumberLiteral():
                node = Number(expr.val)
            case promql_parser.StringLiteral():
                node = String(self._skeleton.strings[int(expr.val)])
            case promql_parser.VectorSelector():
                node = self._selector(expr)
            case promql_parser.UnaryExpr():
                node = Negation(self.node(expr.expr))
            case promql_parser.BinaryExpr():
                node = self._binary(expr)
            case promql_parser.AggregateExpr():
                node = self._aggregation(expr)
            case promql_parser.Call():
                node = Call(expr.func.name, tuple(self.node(argument) for argument in expr.args))
            case _:
                raise ExpressionError(f"{type(expr).__name__} is not available in the agent")
        return node

    def _selector(self, expr: promql_parser.VectorSelector) -> Selector:
        if expr.offset is not None or expr.at is not None or expr.matchers.or_matchers:
            raise ExpressionError("offset, @ and `or` between matchers are not available in the agent")
        matchers = [self._matcher(matcher.name, int(matcher.value)) for matcher in expr.matchers.matchers]
        if expr.name is not None:
            return Selector(expr.name, tuple(matchers))
        for matcher in matchers:
            if matcher.name == METRIC_NAME and matcher.op is MatchOperator.EQUAL and matcher.value:
                return Selector(matcher.value, tuple(other for other in matchers if other is not matcher))
        return Selector(None, tuple(matchers))

    def _matcher(self, label: str, number: int) -> Matcher:
        skeleton = self._skeleton
        return Matcher(label, MatchOperator(skeleton.match_operators[number]), skeleton.strings[number])

    def _binary(self, expr: promql_parser.BinaryExpr) -> Binary:
        matching, returns_bool = Matching(), False
        modifier = expr.modifier
        if modifier is not None:
            if modifier.fill_values.lhs is not None or modifier.fill_values.rhs is not None:
                raise ExpressionError("fill is not available in the agent, and Prometheus 2.42 does not know it")
            on_or_ignoring = modifier.matching
            matching = Matching(
                _CARDINALITIES[str(modifier.card)],
                on_or_ignoring is not None and str(on_or_ignoring.type) == "LabelModifierType.Include",
                tuple(on_or_ignoring.labels) if on_or_ignoring is not None else (),
                tuple(modifier.group_labels or ()),
            )
            returns_bool = modifier.return_bool
        return Binary(str(expr.op), self.node(expr.lhs), self.node(expr.rhs), returns_bool, matching)

    def _aggregation(self, expr: promql_parser.AggregateExpr) -> Aggregation:
        modifier = expr.modifier
        return Aggregation(
            str(expr.op),
            self.node(expr.expr),
            None if expr.param is None else self.node(expr.param),
            modifier is not None and str(modifier.type) == "AggModifierType.Without",
            tuple(modifier.labels) if modifier is not None else (),
        )
