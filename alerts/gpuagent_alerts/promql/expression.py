"""An expression: read once, evaluated every few seconds, on series of which few change."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_

from gpuagent_alerts.promql.aggregate import plan_aggregation
from gpuagent_alerts.promql.binary import plan_binary, plan_negation
from gpuagent_alerts.promql.functions import CALENDAR_FUNCTIONS, plan_call
from gpuagent_alerts.promql.numbers import COMPARISONS
from gpuagent_alerts.promql.series import Plan, ScalarPlan, SeriesIndex, StringPlan, Tick, VectorPlan, plan_selector
from gpuagent_alerts.promql.syntax import (
    Aggregation,
    Binary,
    Call,
    Negation,
    Node,
    Number,
    Selector,
    String,
    parse,
)
from gpuagent_alerts.promql.values import NO_LABELS, Element, ExpressionError, Row, Scalar, ValueType, Vector, to_vector


class Expression:
    """A compiled expression. Made by `compile_expression`."""

    __slots__ = ("_plan", "asks_time", "metric_names", "selectors", "text", "tree")

    def __init__(
        self, text: str, tree: Node, selectors: tuple[Selector, ...], plan: ScalarPlan | VectorPlan, *, asks_time: bool
    ) -> None:
        self.text = text
        self.tree = tree
        self.asks_time = asks_time
        """Its value may change although no series does."""
        self.selectors = selectors
        """What it looks at, in the order of the text."""
        self.metric_names = frozenset(selector.name for selector in selectors if selector.name is not None)
        """The names in the selectors that name a metric; one that chooses names by a pattern has none."""
        self._plan = plan

    @property
    def value_type(self) -> ValueType:
        """Scalar or instant vector."""
        return self._plan.type

    def evaluate(self, index: SeriesIndex, time_seconds: float) -> Vector | Scalar:
        """Return its value at a Unix time.

        Raises EvaluationError where the series do not suit it.
        """
        tick = Tick(index, round(time_seconds * 1000))
        if isinstance(self._plan, VectorPlan):
            return to_vector(self._plan.run(tick))
        return self._plan.run(tick)

    def rows(self, index: SeriesIndex, time_seconds: float) -> Vector:
        """Evaluate as a rule does: a number is one row without labels.

        Raises EvaluationError where the series do not suit it.
        """
        value = self.evaluate(index, time_seconds)
        return value if isinstance(value, Vector) else Vector([Row(NO_LABELS, value)])

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def compile_expression(text: str) -> Expression:
    """Read and check an expression.

    Raises ExpressionError: no PromQL, too large, or more than the agent evaluates. The text says what and the way out.
    """
    return compile_tree(text, parse(text))


def compile_measured_side(expression: Expression) -> Expression | None:
    """Compile what a rule compares with its threshold: `a` of `a > 0.9 unless on (gpu) b`; None where nothing is.

    Its value is there while the comparison does not hold, too.
    """
    node = expression.tree
    while isinstance(node, Binary):
        if node.operator in COMPARISONS and not node.returns_bool:
            return compile_tree(f"left side of {expression.text}", node.left)
        if node.operator not in {"and", "unless"}:
            return None
        node = node.left
    return None


def compile_tree(text: str, tree: Node) -> Expression:
    """Compile a tree that was made out of another one; `text` is for people. Raises as `compile_expression`."""
    plan = _plan(tree)
    if isinstance(plan, StringPlan):
        raise ExpressionError("a rule needs an instant vector or a scalar, and this expression is a string")
    nodes = list(_nodes(tree))
    selectors = tuple(node for node in nodes if isinstance(node, Selector))
    return Expression(text, tree, selectors, plan, asks_time=any(_asks_time(node) for node in nodes))


def _plan(node: Node) -> Plan:
    plan: Plan
    match node:
        case Number(number):
            plan = ScalarPlan(lambda _tick: number)
        case String(text):
            plan = StringPlan(text)
        case Selector():
            plan = plan_selector(node)
        case Negation(operand):
            plan = plan_negation(_plan(operand))
        case Binary(_, left, right):
            plan = plan_binary(node, _plan(left), _plan(right))
        case Aggregation(_, operand, parameter):
            plan = plan_aggregation(node, _plan(operand), None if parameter is None else _plan(parameter))
        case Call(_, arguments):
            plan = plan_call(node, [_plan(argument) for argument in arguments])
    return plan


def _nodes(node: Node) -> Iterator[Node]:
    """Yield all of a tree, in the order of the text."""
    yield node
    match node:
        case Negation(operand):
            yield from _nodes(operand)
        case Binary(_, left, right):
            yield from _nodes(left)
            yield from _nodes(right)
        case Aggregation(_, operand, parameter):
            if parameter is not None:
                yield from _nodes(parameter)
            yield from _nodes(operand)
        case Call(_, arguments):
            for argument in arguments:
                yield from _nodes(argument)
        case Number() | String() | Selector():
            return


def _asks_time(node: Node) -> bool:
    """Return whether a node is `time()`, or a function of the calendar that is given nothing."""
    return isinstance(node, Call) and not node.arguments and node.function in {"time", *CALENDAR_FUNCTIONS}


class CachedPlan:
    """Gives the last result again for as long as all that the expression selects is the very same.

    On a quiet node that is so for nearly all rules; where it is not, to find that out costs a look at each metric.
    """

    __slots__ = ("_expression", "_inputs", "_names", "_rows")

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        by_name = all(selector.name is not None for selector in expression.selectors)
        self._names = tuple(expression.metric_names) if by_name and not expression.asks_time else None
        """What its result depends on; None where it depends on more than these."""
        self._inputs: list[list[Element]] | None = None
        self._rows = Vector()

    def rows(self, index: SeriesIndex, time_seconds: float) -> Vector:
        """Evaluate as `Expression.rows` does. Neither the result nor what the index has given may be changed."""
        if self._names is None:
            return self._expression.rows(index, time_seconds)
        inputs = [index.elements(name) for name in self._names]
        if self._inputs is None or not all(map(is_, inputs, self._inputs)):
            self._inputs = None
            self._rows = self._expression.rows(index, time_seconds)
            self._inputs = inputs
        return self._rows
