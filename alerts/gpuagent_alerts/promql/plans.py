"""What a node of the tree is compiled to: a closure over the tick, of the node's type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Element, EvaluationError, ValueType


class Tick(NamedTuple):
    """What an evaluation looks at. Time is in milliseconds because Prometheus' is."""

    series: SeriesIndex
    milliseconds: int


@dataclass(frozen=True, slots=True)
class ScalarPlan:
    """Evaluates to a number."""

    run: Callable[[Tick], float]
    type = ValueType.SCALAR


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """Evaluates to a vector; the list is the caller's to read, not to change.

    `distinct` says that no two elements can have the same labels even without their names: then dropping the names
    needs no check, which would cost more than the operation itself.
    """

    run: Callable[[Tick], list[Element]]
    distinct: bool
    type = ValueType.VECTOR


@dataclass(frozen=True, slots=True)
class StringPlan:
    """A literal: an argument of a function or aggregation."""

    value: str
    type = ValueType.STRING


Plan = ScalarPlan | VectorPlan | StringPlan


def checked(run: Callable[[Tick], list[Element]], *, distinct: bool) -> VectorPlan:
    """Return a plan that drops names: where elements may become the same by that, it is checked that they do not."""
    if distinct:
        return VectorPlan(run, distinct=True)
    return VectorPlan(lambda tick: require_distinct(run(tick)), distinct=True)


def require_distinct(elements: list[Element]) -> list[Element]:
    """Return the elements. Raises EvaluationError where two have the same name and labels."""
    if len(elements) > 1 and len({(name, labels.key()) for name, labels, _ in elements}) < len(elements):
        raise EvaluationError("vector cannot contain metrics with the same labelset")
    return elements
