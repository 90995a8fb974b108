"""Functions: which there are, what they take, and what they are compiled to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuagent.matchers import MatchOperator
from gpuagent_alerts.promql.dates import CALENDAR_FUNCTIONS, Moment, moment
from gpuagent_alerts.promql.errors import ExpressionError
from gpuagent_alerts.promql.floats import FUNCTIONS_OF_ONE_VALUE, NAN, larger, rounding, smaller
from gpuagent_alerts.promql.plans import Plan, ScalarPlan, StringPlan, Tick, VectorPlan, checked
from gpuagent_alerts.promql.relabel import plan_label_join, plan_label_replace
from gpuagent_alerts.promql.syntax import Call, Node, Selector
from gpuagent_alerts.promql.values import METRIC_NAME, NO_LABELS, Element, LabelSet


class _Arguments:
    """Of one call. Asking for one of another type raises ExpressionError, which says how the function is written."""

    def __init__(self, node: Call, plans: Sequence[Plan], signature: str) -> None:
        self.nodes = node.arguments
        self.count = len(plans)
        self._plans = plans
        self._wrong = ExpressionError(f"the arguments of {node.function} are wrong: write {signature}")

    def expect(self, counts: range) -> None:
        if self.count not in counts:
            raise self._wrong

    def vector(self, position: int) -> VectorPlan:
        plan = self._plans[position]
        if isinstance(plan, VectorPlan):
            return plan
        raise self._wrong

    def scalar(self, position: int) -> Callable[[Tick], float]:
        plan = self._plans[position]
        if isinstance(plan, ScalarPlan):
            return plan.run
        raise self._wrong

    def string(self, position: int) -> str:
        plan = self._plans[position]
        if isinstance(plan, StringPlan):
            return plan.value
        raise self._wrong


class _Function(NamedTuple):
    signature: str
    counts: range
    """How many arguments it takes."""
    plan: Callable[[_Arguments], Plan]


def plan_call(node: Call, arguments: Sequence[Plan]) -> Plan:
    """Raises ExpressionError for a function that is not available, and for arguments of the wrong number or type."""
    function = _FUNCTIONS.get(node.function)
    if function is None:
        hint = _HINTS.get(node.function, "evaluate this rule in Prometheus, or use " + ", ".join(sorted(_FUNCTIONS)))
        raise ExpressionError(f"{node.function}(...) is not available in the agent: {hint}")
    taken = _Arguments(node, arguments, function.signature)
    taken.expect(function.counts)
    return function.plan(taken)


def _of_one_value(function: Callable[[float], float]) -> Callable[[_Arguments], Plan]:
    return lambda arguments: _mapped(arguments.vector(0), lambda _tick: function)


def _of_date(part: Callable[[Moment], int]) -> Callable[[_Arguments], Plan]:
    def plan(arguments: _Arguments) -> Plan:
        if arguments.count:
            return _mapped(arguments.vector(0), lambda _tick: lambda value: float(part(moment(value))))
        return VectorPlan(lambda tick: [("", NO_LABELS, float(part(moment(tick.milliseconds // 1000))))], distinct=True)

    return plan


def _mapped(vector: VectorPlan, function_at: Callable[[Tick], Callable[[float], float]]) -> VectorPlan:
    """A function of each value, which may depend on scalars of the tick. Names are dropped."""
    elements = vector.run

    def run(tick: Tick) -> list[Element]:
        function = function_at(tick)
        return [("", labels, function(value)) for _, labels, value in elements(tick)]

    return checked(run, distinct=vector.distinct)


def _round(arguments: _Arguments) -> Plan:
    if arguments.count == 1:
        by_one = rounding(1.0)
        return _mapped(arguments.vector(0), lambda _tick: by_one)
    nearest = arguments.scalar(1)
    return _mapped(arguments.vector(0), lambda tick: rounding(nearest(tick)))


def _clamp(arguments: _Arguments) -> Plan:
    vector, low, high = arguments.vector(0), arguments.scalar(1), arguments.scalar(2)

    def between(tick: Tick) -> list[Element]:
        elements = vector.run(tick)
        # Nothing is, where the bounds are the wrong way round.
        return [] if high(tick) < low(tick) else elements

    def function_at(tick: Tick) -> Callable[[float], float]:
        minimum, maximum = low(tick), high(tick)
        return lambda value: larger(minimum, smaller(maximum, value))

    return _mapped(VectorPlan(between, distinct=vector.distinct), function_at)


def _bounded(choose: Callable[[float, float], float]) -> Callable[[_Arguments], Plan]:
    def plan(arguments: _Arguments) -> Plan:
        bound = arguments.scalar(1)

        def function_at(tick: Tick) -> Callable[[float], float]:
            limit = bound(tick)
            return lambda value: choose(limit, value)

        return _mapped(arguments.vector(0), function_at)

    return plan


def _sort(direction: int) -> Callable[[_Arguments], Plan]:
    def plan(arguments: _Arguments) -> Plan:
        vector = arguments.vector(0)

        def run(tick: Tick) -> list[Element]:
            # NaN comes last either way.
            return sorted(vector.run(tick), key=lambda element: (math.isnan(element[2]), direction * element[2]))

        return VectorPlan(run, distinct=vector.distinct)

    return plan


def _scalar(arguments: _Arguments) -> Plan:
    elements = arguments.vector(0).run

    def run(tick: Tick) -> float:
        found = elements(tick)
        return found[0][2] if len(found) == 1 else NAN

    return ScalarPlan(run)


def _vector(arguments: _Arguments) -> Plan:
    scalar = arguments.scalar(0)
    return VectorPlan(lambda tick: [("", NO_LABELS, scalar(tick))], distinct=True)


def _time(_arguments: _Arguments) -> Plan:
    return ScalarPlan(lambda tick: tick.milliseconds / 1000)


def _absent(arguments: _Arguments) -> Plan:
    elements = arguments.vector(0).run
    labels = _labels_of_absent(arguments.nodes[0])
    return VectorPlan(lambda tick: [] if elements(tick) else [("", labels, 1.0)], distinct=True)


def _labels_of_absent(argument: Node) -> LabelSet:
    """What a selector asks for by equality; a label that is asked for twice is left out."""
    wanted: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in argument.matchers if isinstance(argument, Selector) else ():
        if matcher.name == METRIC_NAME:
            continue
        if matcher.op is MatchOperator.EQUAL and matcher.name not in seen:
            wanted[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            wanted.pop(matcher.name, None)
    return LabelSet((name, value) for name, value in wanted.items() if value)


def _label_replace(arguments: _Arguments) -> Plan:
    destination, template, source, regex = (arguments.string(position) for position in range(1, 5))
    return plan_label_replace(arguments.vector(0), destination, template, source, regex)


def _label_join(arguments: _Arguments) -> Plan:
    destination, separator, *sources = (arguments.string(position) for position in range(1, arguments.count))
    return plan_label_join(arguments.vector(0), destination, separator, sources)


_FUNCTIONS: dict[str, _Function] = {
    **{
        name: _Function(f"{name}(vector)", range(1, 2), _of_one_value(function))
        for name, function in FUNCTIONS_OF_ONE_VALUE.items()
    },
    **{
        name: _Function(f"{name}() or {name}(vector)", range(2), _of_date(part))
        for name, part in CALENDAR_FUNCTIONS.items()
    },
    "absent": _Function("absent(vector)", range(1, 2), _absent),
    "scalar": _Function("scalar(vector)", range(1, 2), _scalar),
    "vector": _Function("vector(scalar)", range(1, 2), _vector),
    "time": _Function("time()", range(1), _time),
    "sort": _Function("sort(vector)", range(1, 2), _sort(1)),
    "sort_desc": _Function("sort_desc(vector)", range(1, 2), _sort(-1)),
    "round": _Function("round(vector) or round(vector, nearest)", range(1, 3), _round),
    "clamp": _Function("clamp(vector, min, max)", range(3, 4), _clamp),
    "clamp_min": _Function("clamp_min(vector, min)", range(2, 3), _bounded(larger)),
    "clamp_max": _Function("clamp_max(vector, max)", range(2, 3), _bounded(smaller)),
    "label_replace": _Function(
        'label_replace(vector, "destination", "replacement", "source", "regex")', range(5, 6), _label_replace
    ),
    "label_join": _Function(
        'label_join(vector, "destination", "separator", "source", ...)', range(3, 1_000_000), _label_join
    ),
}
_HINTS = {
    "timestamp": "the agent's series are all of the same moment; use time()",
    "histogram_quantile": "the agent has no histograms; evaluate this rule in Prometheus",
    "pi": "write 3.141592653589793",
}
