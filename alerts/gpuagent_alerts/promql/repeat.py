"""An expression that is evaluated tick after tick, on series of which few change."""

from __future__ import annotations

from operator import is_

from gpuagent_alerts.promql.compile import Expression
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Element, Vector


class Repeated:
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
        """As `Expression.rows`. What is returned, and what the index has given, must not be changed by anyone."""
        if self._names is None:
            return self._expression.rows(index, time_seconds)
        inputs = [index.elements(name) for name in self._names]
        if self._inputs is None or not all(map(is_, inputs, self._inputs)):
            self._inputs = None
            self._rows = self._expression.rows(index, time_seconds)
            self._inputs = inputs
        return self._rows
