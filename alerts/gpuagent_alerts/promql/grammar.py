"""From text to tree: the one module that knows promql-parser. What is not in `syntax` is refused here."""

from __future__ import annotations

import promql_parser

from gpuagent.matchers import Matcher, MatchOperator
from gpuagent_alerts.promql.bounds import check_depth, check_length
from gpuagent_alerts.promql.errors import ExpressionError
from gpuagent_alerts.promql.skeleton import Skeleton, make_skeleton
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
)
from gpuagent_alerts.promql.tokens import tokenize
from gpuagent_alerts.promql.values import METRIC_NAME

# The parser's enumerations have no hashes: they are told by their names.
_CARDINALITIES = {
    "VectorMatchCardinality.OneToOne": Cardinality.ONE_TO_ONE,
    "VectorMatchCardinality.ManyToMany": Cardinality.ONE_TO_ONE,  # of and, or, unless, which match as sets
    "VectorMatchCardinality.ManyToOne": Cardinality.MANY_TO_ONE,
    "VectorMatchCardinality.OneToMany": Cardinality.ONE_TO_MANY,
}


def parse(text: str) -> Node:
    """The tree of an expression, with types not yet checked.

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
        """Parentheses are in the shape of the tree already."""
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
